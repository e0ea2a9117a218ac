# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.sandbox.code import CodeTests as CodeTests
from art_extensions.sandbox.code import ProgramCases as ProgramCases
from art_extensions.sandbox.limits import Limits as Limits
from art_extensions.sandbox.matches import ExactMatch as ExactMatch
from art_extensions.sandbox.matches import JsonSchemaMatch as JsonSchemaMatch
from art_extensions.sandbox.matches import MathMatch as MathMatch
from art_extensions.sandbox.matches import RegexMatch as RegexMatch
from art_extensions.sandbox.verifier import Verifier as Verifier
from art_extensions.sandbox.verifier import last_answer as last_answer

__all__ = ["CodeTests", "ExactMatch", "JsonSchemaMatch", "Limits", "MathMatch", "ProgramCases", "RegexMatch", "Verifier", "last_answer"]

