"""The builtin engine as a process: `python -m art.engine.builtin.worker`, spoken to as `art.wire.engine`
says."""

from __future__ import annotations

import sys

from art.engine.builtin.engine import BuiltinEngine
from art.engine.worker_process import run_worker
from art.process.resources import keep_freed_memory
from art.wire.engine import BuiltinOptions, WorkerStart, checked_options


async def start_engine(start: WorkerStart) -> BuiltinEngine:
    """Raises: ConfigurationError."""
    options = checked_options("builtin", BuiltinOptions, start.options)
    if start.device is not None:
        options = options.model_copy(update={"device": start.device})
    return await BuiltinEngine.start(start.base_model, options, bits=start.bits)


def main() -> int:
    keep_freed_memory()
    return run_worker(start_engine)


if __name__ == "__main__":
    sys.exit(main())
