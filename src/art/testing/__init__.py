"""Models to test against: a real HTTP endpoint of OpenAI's shape that knows the truth, and can misbehave.

    async with LlmServer(TruthfulJudge(quality), mischief=Mischief.everything(0.3)) as server:
        ...  # anything that is given `server.base_url` and `server.key` asks it over the network

`python -m art.testing --help` starts one from the command line. The server needs the extra `server`.
"""

from __future__ import annotations

from art.testing.answers import Served, either
from art.testing.generator import ScriptedGenerator
from art.testing.judge import TruthfulJudge
from art.testing.llm_server import LlmServer
from art.testing.mischief import Mischief
from art.testing.task_truths import mail, tic_tac_toe
from art.testing.truth import KnownQualities, fingerprint

__all__ = [
    "KnownQualities",
    "LlmServer",
    "Mischief",
    "ScriptedGenerator",
    "Served",
    "TruthfulJudge",
    "either",
    "fingerprint",
    "mail",
    "tic_tac_toe",
]
