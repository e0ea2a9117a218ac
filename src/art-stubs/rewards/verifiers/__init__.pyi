# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.rewards.matches import ExactMatch as ExactMatch
from art.rewards.matches import JsonSchemaMatch as JsonSchemaMatch
from art.rewards.matches import MathMatch as MathMatch
from art.rewards.matches import RegexMatch as RegexMatch
from art.rewards.sandbox import Limits as Limits
from art.rewards.verifier import Verifier as Verifier
from art.rewards.verifier import last_answer as last_answer
from art_extensions.sandbox.code import CodeTests as CodeTests
from art_extensions.sandbox.code import ProgramCases as ProgramCases

__all__ = ["CodeTests", "ExactMatch", "JsonSchemaMatch", "Limits", "MathMatch", "ProgramCases", "RegexMatch", "Verifier", "last_answer"]

