"""A judge that notes each question it is asked, so that an answer that was paid for twice is seen.

    python -m bench.faults.paid_judge --port PORT --log FILE

The program notes a question before it is sent and when its answer is on the disk, the judge when it comes
in. One that is sent after its answer was recorded was paid for twice, and so was one that comes in more often
than it was sent. A question that was given up on a line that stalls may come in late: it was sent before.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults.program import note_question, quality

KEY = "test-key"


@dataclass(frozen=True, kw_only=True)
class JudgeBooks:
    """The questions of one run. asked: how often any came in. recorded: answers that the run has on its disk.
    again: questions that were sent although their answer was recorded, or came in more often than they were
    sent. unheard: recorded ones that did not come in."""

    asked: int
    recorded: int
    again: int
    unheard: int


def read_books(asked: Path, sent: Path, recorded: Path, *, since: float) -> JudgeBooks:
    """asked: what the judge heard. since: by the monotonic clock; what was heard before belongs to another
    run."""
    questions = [(name, at) for name, at in _lines(asked) if at >= since]
    kept: dict[str, float] = {}
    for name, at in _lines(recorded):
        kept.setdefault(name, at)
    sendings = _lines(sent)
    unsent = Counter(name for name, _ in questions) - Counter(name for name, _ in sendings)
    return JudgeBooks(
        asked=len(questions),
        recorded=len(kept),
        again=sum(at > kept.get(name, math.inf) for name, at in sendings) + unsent.total(),
        unheard=len(kept.keys() - {name for name, _ in questions}),
    )


def _lines(path: Path) -> list[tuple[str, float]]:
    """A process that was killed may have left half a line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(str(name), float(at)) for name, at in (json.loads(one) for one in lines if one.endswith("]"))]


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal."""
    from art.testing import LlmServer, TruthfulJudge

    parser = argparse.ArgumentParser(prog="python -m bench.faults.paid_judge", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args(arguments)
    judge = TruthfulJudge(quality)

    def answer(body: Mapping[str, Any]) -> Any:
        note_question(options.log, body["messages"])
        return judge(body)

    with LlmServer(answer, key=KEY, port=options.port) as server:
        print(f"{server.base_url} key {server.key}", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
