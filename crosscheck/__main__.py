"""`python -m crosscheck [PEER ...]`: our algorithms against TRL, verl and OpenRLHF, or those named.

Makes the peers' environments where they are missing, gives everyone the same fixtures, compares every loss,
gradient and advantage, prints the table, and exits with 1 when a difference is above 1e-6 of the largest
value. `--keep` writes every difference of a run of all peers into bench/records/crosscheck.jsonl, and the
table of docs/reference/algorithms.md from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench.marked_pages import replace_between_marks
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from crosscheck import environment, fixtures
from crosscheck.agreements import LIMITS, adjusted, left_out
from crosscheck.cases import CASES
from crosscheck.inputs import Parts

LIMIT = 1e-6
PEER_SECONDS = 600.0
SCRIPTS = Path(__file__).parent / "peers"
RECORD = Path(__file__).parents[1] / "bench" / "records" / "crosscheck.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "algorithms.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One figure of one case at one peer: the largest value of each side, and their largest difference."""

    peer: str
    case: str
    part: str
    ours: float
    theirs: float
    difference: float
    """Of the largest value that the peer has."""

    @property
    def ok(self) -> bool:
        return self.difference <= LIMITS.get(self.case, LIMIT)


def ask(peer: str, folder: Path) -> dict[str, Parts]:
    """What a peer makes of the fixtures, by case and part."""
    output = folder / f"{peer}.safetensors"
    done = subprocess.run(
        [
            str(environment.python(peer)),
            "-P",
            str(SCRIPTS / "run.py"),
            str(SCRIPTS / f"{peer}.py"),
            str(folder / fixtures.FILE),
            str(output),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PEER_SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed:\n{done.stderr[-3000:]}")
    results: dict[str, Parts] = {}
    for key, tensor in load_file(output).items():
        case, part = key.rsplit("/", 1)
        results.setdefault(case, {})[part] = tensor
    return results


def compare(peer: str, results: dict[str, Parts], x: Parts) -> list[Finding]:
    """Every figure that the peer gave. Raises SystemExit for a case that has no counterpart here."""
    if unknown := sorted(set(results) - set(CASES)):
        raise SystemExit(f"{peer} computed {unknown[0]!r}, which is not in crosscheck/cases.py")
    found = []
    for case, parts in sorted(results.items()):
        ours = CASES[case](x)
        for part, theirs in sorted(parts.items()):
            if part in ours and not left_out(peer, case, part):
                found.append(finding(peer, case, part, ours[part], adjusted(peer, case, part, theirs, x)))
    return found


def finding(peer: str, case: str, part: str, ours: torch.Tensor, theirs: torch.Tensor) -> Finding:
    if not (ours.shape == theirs.shape and bool(theirs.any())):
        raise SystemExit(
            f"{peer}, {case}, {part}: {tuple(theirs.shape)} beside our {tuple(ours.shape)}, or all zero"
        )
    largest = float(theirs.abs().max())
    return Finding(
        peer=peer,
        case=case,
        part=part,
        ours=float(ours.abs().max()),
        theirs=largest,
        difference=float((ours - theirs).abs().max()) / largest,
    )


def show(findings: Sequence[Finding]) -> None:
    table = Table(title=f"largest values, and the largest difference (limit {LIMIT:g} of the largest)")
    for heading in ("case", "figure", "peer", "ours", "theirs", "difference", "ok"):
        table.add_column(heading, justify="right" if heading in {"ours", "theirs", "difference"} else "left")
    for one in sorted(findings, key=lambda one: (one.case, one.part, one.peer)):
        numbers = f"{one.ours:.9f}", f"{one.theirs:.9f}", f"{one.difference:.1e}"
        table.add_row(one.case, one.part, one.peer, *numbers, "yes" if one.ok else "NO")
    console = Console(width=120)
    console.print(table)
    wrong = sum(not one.ok for one in findings)
    cases = len({one.case for one in findings})
    console.print(f"{len(findings)} figures of {cases} cases: {len(findings) - wrong} agree, {wrong} differ")
    for name in sorted(set(CASES) - {one.case for one in findings}):
        console.print(f"not computed by the peers that were asked: {name}")


def keep(findings: Sequence[Finding]) -> None:
    """Writes the record of all differences, and the page's table of it."""
    rows = sorted((asdict(one) for one in findings), key=lambda row: (row["case"], row["part"], row["peer"]))
    RECORD.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    replace_between_marks(PAGE, table_of(read_record()), name="agreements")


def read_record() -> list[Finding]:
    return [Finding(**json.loads(line)) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def table_of(findings: Sequence[Finding]) -> str:
    """Returns the largest difference of each case at each peer."""
    peers = sorted({one.peer for one in findings}, key=list(environment.PEERS).index)
    cases = sorted({one.case for one in findings})
    lines = [
        f"{len(findings)} figures of {len(cases)} cases. A number is the largest difference of a case.",
        "",
    ]
    lines += [f"| case | {' | '.join(peers)} |", f"|---|{'---|' * len(peers)}"]
    for case in cases:
        of_peers = [
            [one.difference for one in findings if (one.case, one.peer) == (case, peer)] for peer in peers
        ]
        told = [f"{max(each):.0e}" if each else "" for each in of_peers]
        lines.append(f"| {case} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    names = [one for one in arguments if one != "--keep"]
    if names and len(names) < len(arguments):
        raise SystemExit("--keep is of all peers: name none")
    torch.set_num_threads(1)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="art-crosscheck-") as name:
        folder = Path(name)
        x = load_file(fixtures.write(folder))
        for peer in names or environment.PEERS:
            findings += compare(peer, ask(peer, folder), x)
    show(findings)
    if "--keep" in arguments:
        keep(findings)
    return 0 if all(one.ok for one in findings) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
