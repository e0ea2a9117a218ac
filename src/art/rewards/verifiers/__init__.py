"""Rules that decide: exact match, patterns, JSON schemas, mathematics, code that is run."""

from __future__ import annotations

from art.rewards.verifiers.code import CodeTests, ProgramCases
from art.rewards.verifiers.exact import ExactMatch
from art.rewards.verifiers.json_schema import JsonSchemaMatch
from art.rewards.verifiers.limits import Limits
from art.rewards.verifiers.math import MathMatch
from art.rewards.verifiers.regex import RegexMatch
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
