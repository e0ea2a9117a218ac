"""`art audit-model` on this device: the checks of a model's whole path, each one's answer.

python -m bench.gpu.audit art/nano-words
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.gpu.quickstart import ART
from bench.gpu.results import Session


def main(arguments: list[str]) -> None:
    session, others = Session.open("audit", arguments)
    model = others[0] if others else "art/nano-words"
    report = session.work / "audit.json"
    command = [
        sys.executable,
        "-c",
        ART,
        "audit-model",
        model,
        "--device",
        session.device,
        "--json",
        str(report),
    ]
    code = subprocess.run(command, check=False).returncode
    if not report.exists():
        raise SystemExit(f"art audit-model {model} ended with exit code {code} and no verdicts")
    verdicts = json.loads(report.read_text(encoding="utf-8"))["verdicts"]
    failed = [f"{one['check']}: {one['what']}" for one in verdicts if one["level"] == "fail"]
    agreements = [one["what"] for one in verdicts if one["check"] == "sampler = trainer"]
    session.record(
        f"{model}: checks of `art audit-model` that hold",
        float(len(verdicts) - len(failed)),
        f"of {len(verdicts)}",
        note="; ".join(failed or agreements),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
