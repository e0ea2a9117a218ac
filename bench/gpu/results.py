"""The results of a run on a GPU: one JSON line each, on the disk as soon as it is known.

Three kinds of lines share a file, told apart by `kind`:

    machine   the card, and the versions of what computes
    result    one figure of a part, beside its peer and the limit that arithmetic gives
    part      how a part ended: done, cut, failed or left out, after how many seconds

A part opens a `Session`; `bench.gpu.tables` reads the lines back.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

MATMUL, COPY = "matrix product in bfloat16", "copy within the GPU's memory"
"""The two ceilings that limits are computed from: TFLOP/s and TB/s."""
Status = Literal["done", "cut", "failed", "left out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One figure. `peer` was measured in the same run, `published` by others; `limit` is the best that the
    measured ceilings allow.
    """

    part: str
    name: str
    value: float | None
    """None: it could not be measured, and `note` says why."""
    unit: str
    peer: float | None = None
    peer_name: str = ""
    published: float | None = None
    published_by: str = ""
    limit: float | None = None
    limit_how: str = ""
    note: str = ""
    dry: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PartEnd:
    """How a part ended."""

    part: str
    status: Status
    seconds: float
    limit: float
    said: str = ""
    """The last line of its output, or why it was stopped."""
    dry: bool = False


def append_line(path: Path, kind: str, fields: Mapping[str, Any]) -> None:
    """Adds one line to the file, and returns when it is on the disk: what follows may be killed."""
    line = json.dumps({"kind": kind, **fields, "time": round(time.time(), 1)}) + "\n"
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file. The last one is left out where it was cut off."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is no JSON: {line[:80]!r}") from None


@dataclass(frozen=True, kw_only=True)
class Session:
    """The run that a part belongs to."""

    part: str
    device: str
    dry: bool
    path: Path
    work: Path
    """Files that parts share, such as a model of random weights."""
    seconds: float
    """The time that the part has."""

    @classmethod
    def open(cls, part: str, arguments: list[str]) -> tuple[Session, list[str]]:
        """Returns the session that the command line asks for, and the arguments left over."""
        parser = argparse.ArgumentParser(prog=f"python -m bench.gpu.{part}")
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--dry", action="store_true", help="tiny shapes, to see that all of it runs")
        parser.add_argument("--results", type=Path, help="lines are added here; default: a new file")
        parser.add_argument("--work", type=Path, help="shared files; default: a new folder")
        parser.add_argument("--seconds", type=float, default=600.0)
        parser.add_argument("--part", default=part, help="the name of the part in the results")
        asked, others = parser.parse_known_args(arguments)
        work = asked.work or Path(tempfile.mkdtemp(prefix="art-gpu-"))
        work.mkdir(parents=True, exist_ok=True)
        path = asked.results or work / "gpu.jsonl"
        return cls(
            part=asked.part, device=asked.device, dry=asked.dry, path=path, work=work, seconds=asked.seconds
        ), others

    def record(self, name: str, value: float | None, unit: str, **fields: Any) -> Result:
        """Writes a result down at once, and prints it."""
        made = Result(part=self.part, name=name, value=value, unit=unit, dry=self.dry, **fields)
        append_line(self.path, "result", asdict(made))
        print(
            f"{made.part}: {made.name}: {figure(made.value)} {made.unit} {aside(made)}".rstrip(), flush=True
        )
        return made

    def ceiling(self, name: str) -> float | None:
        """Returns the newest measured ceiling of this run, `MATMUL` in TFLOP/s or `COPY` in TB/s."""
        found = None
        for line in read_lines(self.path):
            if line["kind"] == "result" and line["name"] == name:
                found = line["value"]
        return found

    def tokens_limit(self, flops_per_token: float) -> float | None:
        """Returns the tokens a second that the measured matrix rate allows."""
        rate = self.ceiling(MATMUL)
        return None if rate is None else rate * 1e12 / flops_per_token


def figure(value: float | None) -> str:
    """Returns a number as tables print it."""
    if value is None:
        return "not measured"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def aside(result: Result) -> str:
    """Returns what stands beside a result, in brackets."""
    parts = []
    if result.peer is not None:
        parts.append(f"{result.peer_name or 'peer'} {figure(result.peer)}")
    if result.published is not None:
        parts.append(f"{result.published_by} {figure(result.published)}")
    if result.limit is not None:
        parts.append(f"limit {figure(result.limit)}: {result.limit_how}")
    if result.note:
        parts.append(result.note)
    return f"({'; '.join(parts)})" if parts else ""
