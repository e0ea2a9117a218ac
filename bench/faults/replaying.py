"""The program that does the last step of a finished run again, as `art replay` does it.

    python bench/faults/replaying.py '{"path": RUN, "evaluated": DIGEST}'

It tells its phase and its end as the program of the matrix does. evaluated: what that program told, passed on
when the step was bit-equal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from art.errors import ARTError

RUN, STEP = "faults/player", 2


class DifferentStepError(Exception):
    """The step was done again, and is another one."""


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    asked = json.loads(sys.argv[1])
    try:
        from art_extensions.replay.replayed_step import replay_step

        tell(phase="replay")
        found = replay_step(RUN, STEP, Path(asked["path"]))
        if not found.difference.bit_equal:
            raise DifferentStepError(f"{found.difference.differing} tensors differ")
    except Exception as error:
        tell(error=type(error).__name__, ours=isinstance(error, ARTError), message=str(error)[:500])
        raise
    tell(steps=found.recorded.step, evaluated=asked["evaluated"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
