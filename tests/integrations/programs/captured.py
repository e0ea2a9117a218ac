"""Another program of this folder, recorded in its own process.

python captured.py PROGRAM FILE        writes what was recorded to FILE
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import art
from art.types import sample_id


def main() -> None:
    with art.Trajectory() as trajectory:
        runpy.run_path(str(Path(__file__).with_name(f"{sys.argv[1]}.py")), run_name="__main__")
    histories = [trajectory, *trajectory.additional_histories]
    turns = [
        [sample_id(item) or item["role"] for item in history.messages_and_choices] for history in histories
    ]
    dialects = [exchange.dialect for exchange in trajectory.exchanges.in_order()]
    Path(sys.argv[2]).write_text(json.dumps({"turns": turns, "dialects": dialects}), encoding="utf-8")


main()
