# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.testing.answers import Mischief as Mischief
from art_extensions.testing.answers import ScriptedGenerator as ScriptedGenerator
from art_extensions.testing.answers import Served as Served
from art_extensions.testing.answers import either as either
from art_extensions.testing.llm_server import LlmServer as LlmServer
from art_extensions.testing.truthful_judge import KnownQualities as KnownQualities
from art_extensions.testing.truthful_judge import TruthfulJudge as TruthfulJudge
from art_extensions.testing.truthful_judge import fingerprint as fingerprint
from art_extensions.testing.truthful_judge import mail as mail
from art_extensions.testing.truthful_judge import tic_tac_toe as tic_tac_toe

__all__ = ["KnownQualities", "LlmServer", "Mischief", "ScriptedGenerator", "Served", "TruthfulJudge", "either", "fingerprint", "mail", "tic_tac_toe"]

