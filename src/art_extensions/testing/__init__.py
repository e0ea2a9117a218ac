"""Models to test against: a real HTTP endpoint of OpenAI's shape that knows the truth, and can misbehave.

    async with LlmServer(TruthfulJudge(quality), mischief=Mischief.everything(0.3)) as server:
        ...  # anything that is given `server.base_url` and `server.key` asks it over the network

`python -m art_extensions.testing --help` starts one from the command line. The server needs the extra
`server`.
"""

from __future__ import annotations

from art_extensions.testing.answers import Mischief, ScriptedGenerator, Served, ToolCalls, either
from art_extensions.testing.llm_server import LlmServer
from art_extensions.testing.truthful_judge import (
    KnownQualities,
    TruthfulJudge,
    fingerprint,
    mail,
    tic_tac_toe,
)

__all__ = [
    "KnownQualities",
    "LlmServer",
    "Mischief",
    "ScriptedGenerator",
    "Served",
    "ToolCalls",
    "TruthfulJudge",
    "either",
    "fingerprint",
    "mail",
    "tic_tac_toe",
]
