"""Rules that decide: exact match, patterns, JSON schemas, mathematics, code that is run."""

from __future__ import annotations

from art.rewards.verifiers.code import CodeTests, ProgramCases
from art.rewards.verifiers.limited_process import Limits
from art.rewards.verifiers.matches import ExactMatch, JsonSchemaMatch, MathMatch, RegexMatch
from art.rewards.verifiers.verifier import Verifier, last_answer

__all__ = [
    "CodeTests",
    "ExactMatch",
    "JsonSchemaMatch",
    "Limits",
    "MathMatch",
    "ProgramCases",
    "RegexMatch",
    "Verifier",
    "last_answer",
]
