"""The trainer as a process of its own: `art.wire.training` over HTTP, started with one line of JSON on stdin.

    python -m art.training.worker < (a pipe that stays open)

All of torch runs in one thread, so that health answers while a step runs and steps never overlap.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from art.errors import ARTError, ConfigurationError
from art.process.environment import inherited_variables
from art.process.imports import import_lock
from art.process.resources import keep_freed_memory, listen, resume_collector
from art.process.runtimes import user_cache
from art.process.threads import cpu_threads
from art.wire.records import flaws_without_values
from art.wire.training import RankSpec, TrainerConfig

if TYPE_CHECKING:
    from torch.distributed import Store

    from art.training.ranks.group import RankGroup
    from art.training.trainer import Trainer

LOST_RANKS = 75
"""The exit code of a rank that lost the others. The fault is not its own."""


def main() -> int:
    """Reads the configuration, loads the model, reports that it is ready, serves until stdin ends."""
    keep_freed_memory()
    line = sys.stdin.readline()
    try:
        config = TrainerConfig.model_validate_json(line)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch")
        trainer, rendezvous = _begin(config, thread)
        listener = listen(config.host, config.port)
    except (ARTError, ValidationError, OSError, ValueError) as error:
        ours = isinstance(error, ValidationError | ConfigurationError)
        _write_line({"ready": False, "error": _explain(error), "code": "configuration" if ours else "start"})
        return 2
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    _serve(config, trainer, thread, listener, rendezvous)
    return 0


def _begin(config: TrainerConfig, thread: ThreadPoolExecutor) -> tuple[Future[Trainer], int | None]:
    """The trainer, loaded; of the leader of several ranks, still waiting for them, and the port where."""
    gang = config.gang
    if gang is None:
        trainer = thread.submit(load_trainer, config)
        trainer.result()
        resume_collector()
        return trainer, None
    leave_out_bitsandbytes(config)
    with import_lock:
        from art.training.lockstep import follow, meet

    store, port = meet(config.host, gang)
    trainer = thread.submit(join_gang, config, gang, store)
    if gang.rank == 0:
        trainer.add_done_callback(_end_if_it_failed)
        return trainer, port
    thread.submit(follow, trainer.result()).add_done_callback(_end_if_it_failed)
    return trainer, None


def join_gang(config: TrainerConfig, gang: RankSpec, store: Store) -> Trainer:
    """The trainer of one rank. All ranks load at the same time: a sharded base is cut by all of them."""
    with import_lock:
        from art.training.lockstep import join

    ranks = join(store, gang, host=config.host, device=_placement(config)[0], when_lost=_end_with_group)
    trainer = load_trainer(config, ranks)
    resume_collector()
    return trainer


def _end_if_it_failed(work: Future[Any]) -> None:
    if (error := work.exception()) is not None:
        _end_with_group(error)


def _end_with_group(error: BaseException) -> None:
    """Ends this process: a rank without the others is of no use, and they are started again together."""
    logging.getLogger(__name__).error("%s: %s", type(error).__name__, error)
    sys.stderr.flush()
    os._exit(LOST_RANKS)


def leave_out_bitsandbytes(config: TrainerConfig) -> None:
    """Lets this process do without bitsandbytes where the base model is a folder that is not quantized.

    PEFT imports it wherever it is installed, and it imports torch's compiler: two seconds of each start.
    """
    file = Path(config.model_path or config.base_model) / "config.json"
    if config.bits == 16 and file.is_file() and b"quantization_config" not in file.read_bytes():
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]


def _placement(config: TrainerConfig) -> tuple[str, str]:
    """Returns device and dtype; of several ranks, each has a GPU of its own."""
    with import_lock:
        from art.training.policy import choose_placement

    device, dtype = choose_placement(config.device, config.dtype)
    if config.gang is not None and device == "cuda":
        with import_lock:
            import torch

        # On a node of a cluster each process sees its own GPU alone.
        device = f"cuda:{config.gang.local_rank if torch.cuda.device_count() > 1 else 0}"
    return device, dtype


def load_trainer(
    config: TrainerConfig, ranks: RankGroup | None = None, *, kind: type[Trainer] | None = None
) -> Trainer:
    """Returns a trainer with its base model in memory; torch has the configuration's threads."""
    leave_out_bitsandbytes(config)
    with import_lock:
        import torch

    with import_lock:
        from art.training.known_footprints import KnownFootprints
        from art.training.lockstep import LeadingTrainer
        from art.training.policy import load_policy
        from art.training.trainer import Trainer

    device, dtype = _placement(config)
    policy = load_policy(
        config.model_path or config.base_model,
        name=config.base_model,
        device=device,
        dtype=dtype,
        attention=config.attention,
        accelerator=config.accelerator,
        bits=config.bits,
        sharing=ranks if config.gang is not None and config.gang.sharding == "fsdp" else None,
    )
    threads = cpu_threads(config.threads, policy.causal_lm.num_parameters(), inherited_variables())
    if threads is not None:
        torch.set_num_threads(threads)
    leads = ranks is not None and ranks.is_leader
    return (kind or (LeadingTrainer if leads else Trainer))(
        policy,
        token_budget=config.token_budget,
        checkpointing=config.checkpoint_activations,
        ranks=ranks,
        known=KnownFootprints(folder=user_cache() / "memory"),
    )


def _serve(
    config: TrainerConfig,
    trainer: Future[Trainer],
    thread: ThreadPoolExecutor,
    listener: socket.socket,
    rendezvous: int | None,
) -> None:
    import uvicorn

    with import_lock:
        from art.training.trainer_app import make_app

    app = make_app(trainer, thread, config, rendezvous)
    served = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,  # longer than a client keeps an idle connection: no call meets one that closes
    )
    server = uvicorn.Server(served)
    _write_line({"ready": True, "port": listener.getsockname()[1]})  # the socket listens already
    server.run(sockets=[listener])


def _end_with_parent() -> None:
    """The parent holds our stdin open for as long as it lives.

    Its end is ours, in the middle of a step too: what is not saved would be lost, and nobody is left to
    save it.
    """
    sys.stdin.read()
    os._exit(0)


def _write_line(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _explain(error: Exception) -> str:
    """Returns the error without the values of the configuration, one of which is the key."""
    if isinstance(error, ValidationError):
        return flaws_without_values(error)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
