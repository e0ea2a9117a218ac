"""vLLM as a worker: `python -m art.engine.vllm.worker`, spoken to as `art.wire.engine` says.

This process is ours and light. vLLM runs in a process and an environment of its own and is spoken to through
its stock HTTP routes; when it ends, the worker ends, and whoever watches the worker starts both again.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from typing import TYPE_CHECKING

from art.engine.vllm.options import VllmOptions
from art.engine.worker_process import run_worker
from art.errors import ConfigurationError
from art.wire.engine import WorkerStart, checked_options

if TYPE_CHECKING:
    from art.engine.vllm.engine import VllmEngine

logger = logging.getLogger(__name__)


async def start_engine(start: WorkerStart) -> VllmEngine:
    """Raises: what `start_vllm` raises."""
    options = checked_options("vllm", VllmOptions, start.options)
    try:
        from art.engine.vllm.start import start_vllm
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the vLLM engine needs {error.name}: pip install 'agent-reinforcement-trainer[vllm]'"
        ) from error
    engine, process = await start_vllm(start, options)
    if process is not None:
        engine.owns(process, _end)
    return engine


def _end(how: str) -> None:
    """Nothing can be served any more. The closed connection tells those who wait."""
    logger.error("%s", how)
    os._exit(1)


def _allow_many_connections() -> None:
    """A request that runs is a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    _allow_many_connections()
    return run_worker(start_engine)


if __name__ == "__main__":
    sys.exit(main())
