"""A vLLM server as a worker of ours: `python -m art_extensions.vllm.worker`, with the protocol of
`art.wire.engine`.

On one machine the server speaks to vLLM's own HTTP. On a node of a cluster this worker stands between: vLLM
listens on a socket that only its user can reach, also there, and the worker is placed, watched, given
adapters and ended as the builtin engine's is. vLLM ends with it (`art.process.guard`).
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from art.engine.protocol import ServerOrder
from art.engine.worker_process import run_worker
from art.process.environment import CUDA_VISIBLE_DEVICES, variable
from art.process.files import ScratchFolder
from art.wire.engine import WorkerStart, checked_options
from art_extensions.vllm.engine import VllmEngine
from art_extensions.vllm.options import VllmOptions
from art_extensions.vllm.start import start_vllm


def given_device(start: WorkerStart) -> str | None:
    """Returns the device that was chosen, or all GPUs that this process was given; None: as the options say.

    vLLM is told them by number, because the ones that it sees are counted anew.
    """
    visible = variable(CUDA_VISIBLE_DEVICES)
    return start.device if start.device is not None or visible is None else f"cuda:{visible}"


async def start_engine(logs: Path, start: WorkerStart) -> VllmEngine:
    """Raises: ConfigurationError, WorkerDiedError (with vLLM's last lines), DeadlineError."""
    options = checked_options("vllm", VllmOptions, start.options)
    order = ServerOrder(
        name="vllm",
        base_model=start.base_model,
        options=options,
        log_path=logs / "vllm.log",
        device=given_device(start),
        start_deadline=options.start_deadline,
    )
    server = await start_vllm(order)
    server.engine.keeper = server
    return server.engine


def main() -> int:
    logs = ScratchFolder("art-vllm-log")
    code = run_worker(partial(start_engine, logs.path))
    if code == 0:  # else its log says why, until another one starts here
        logs.remove()
    return code


if __name__ == "__main__":
    sys.exit(main())
