"""A trainer of several ranks: the leader announces each call and makes it, the followers make the same one.

Only the leader writes files. Before it writes a checkpoint, all ranks compare what they hold: ranks that came
apart are started again from the last step that was committed.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store

from art.batch.batch_types import LossEntries, TokenTree
from art.batch.encode import decode_batch, encode_arrays
from art.errors import ARTError, WorkerError
from art.training.ranks.group import RankGroup, join_ranks, open_store
from art.training.tally import Progress
from art.training.trainer import Trainer
from art.wire.training import (
    LoraSpec,
    ProbeReply,
    ProbeRequest,
    RankSpec,
    StepReply,
    StepRequest,
    TrainRequest,
)

LOG = logging.getLogger(__name__)


class LeadingTrainer(Trainer):
    """Rank 0: what is asked of it is asked of all ranks. A group that is broken raises WorkerError."""

    def open(self, name: str, lora: LoraSpec | None, *, seed: int = 0, checkpoint: Path | None = None) -> int:
        self._announce(
            "open",
            model=name,
            lora=None if lora is None else lora.model_dump(mode="json"),
            seed=seed,
            checkpoint=None if checkpoint is None else str(checkpoint),
        )
        with self.ranks.agree():
            return super().open(name, lora, seed=seed, checkpoint=checkpoint)

    def train(
        self,
        tree: TokenTree,
        entries: LossEntries,
        request: TrainRequest,
        progress: Progress = lambda done, total: None,
    ) -> dict[str, float]:
        self.check(tree, request, entries)
        self.ranks.announce({"call": "train"}, encode_arrays(tree, entries, request))
        with self.ranks.agree():
            return super().train(tree, entries, request, progress)

    def step(self, request: StepRequest) -> StepReply:
        self._announce("step", asked=request.model_dump(mode="json"))
        with self.ranks.agree():
            return super().step(request)

    def score(self, name: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        self._announce("score", model=name, rows=[list(row) for row in rows])
        with self.ranks.agree():
            return super().score(name, rows)

    def probe(
        self, lora: LoraSpec | None, path: Path, rows: Sequence[Sequence[int]], *, seed: int
    ) -> ProbeReply:
        asked = ProbeRequest(lora=lora, path=str(path), rows=[list(row) for row in rows], seed=seed)
        self._announce("probe", asked=asked.model_dump(mode="json"))
        with self.ranks.agree():
            return super().probe(lora, path, rows, seed=seed)

    def begin_save(self, name: str, path: Path) -> Callable[[], list[str]]:
        self._announce("compare", model=name)
        compare(self, name)
        return super().begin_save(name, path)

    def close(self, name: str) -> None:
        self._announce("close", model=name)
        with self.ranks.agree():
            super().close(name)

    def _announce(self, call: str, **arguments: Any) -> None:
        self.ranks.announce({"call": call, **arguments})


def compare(trainer: Trainer, name: str) -> None:
    """Raises WorkerError, on all ranks, unless they hold the same weights, moments and random state."""
    with trainer.ranks.agree():
        own_digest = trainer.digest(name)
    digests = trainer.ranks.gather(own_digest)
    if apart := [rank for rank, one in enumerate(digests) if one != digests[0]]:
        raise trainer.ranks.end(
            WorkerError(f"ranks {apart} hold other weights or moments of {name!r} than rank 0")
        )


def meet(host: str, gang: RankSpec) -> tuple[Store, int]:
    """The ranks' meeting place and its port: opened by the leader, found by the others.

    Raises WorkerDiedError when there is no leader.
    """
    if gang.rendezvous is None:
        store = open_store(host, deadline=gang.deadline, leader=True)
    else:
        address, _, port = gang.rendezvous.rpartition(":")
        store = open_store(address.strip("[]"), int(port), deadline=gang.deadline, leader=False)
    return store, store.port


def join(
    store: Store, gang: RankSpec, *, host: str, device: str, when_lost: Callable[[WorkerError], None]
) -> RankGroup:
    """See `join_ranks`."""
    return join_ranks(
        store,
        gang.rank,
        gang.world,
        host=host,
        device=torch.device(device),
        deadline=gang.deadline,
        when_lost=when_lost,
    )


def follow(trainer: Trainer) -> None:
    """Make the calls that the leader announces, until the group ends. Raises WorkerError, which says why."""
    calls: dict[str, Callable[[Trainer, dict[str, Any]], object]] = {
        "open": _open,
        "close": lambda trainer, asked: trainer.close(asked["model"]),
        "score": lambda trainer, asked: trainer.score(asked["model"], asked["rows"]),
        "probe": _probe,
        "step": lambda trainer, asked: trainer.step(StepRequest.model_validate(asked["asked"])),
    }
    while True:
        command, body = trainer.ranks.next_command()
        try:
            if command["call"] == "compare":
                compare(trainer, command["model"])
                continue
            with trainer.ranks.agree():
                if command["call"] == "train":
                    tree, entries, request = decode_batch(body)
                    reference = find_folder(trainer, request.reference)
                    trainer.train(tree, entries, request.model_copy(update={"reference": reference}))
                else:
                    calls[command["call"]](trainer, command)
        except WorkerError:
            raise
        except (ARTError, RuntimeError, MemoryError) as error:  # the leader has the same, and tells it
            LOG.warning("Rank %d: %s failed: %s", trainer.ranks.rank, command["call"], error)


def find_folder(trainer: Trainer, leaders: str | None) -> str | None:
    """Returns where this rank's machine has a folder that the leader named."""
    return None if leaders is None else trainer.ranks.found.get(leaders, leaders)


def _open(trainer: Trainer, asked: dict[str, Any]) -> None:
    lora, folder = asked["lora"], find_folder(trainer, asked["checkpoint"])
    trainer.open(
        asked["model"],
        None if lora is None else LoraSpec.model_validate(lora),
        seed=asked["seed"],
        checkpoint=None if folder is None else Path(folder),
    )


def _probe(trainer: Trainer, asked: dict[str, Any]) -> None:
    request = ProbeRequest.model_validate(asked["asked"])
    with tempfile.TemporaryDirectory(prefix="art-probe-") as folder:
        trainer.probe(request.lora, Path(folder) / "probe", request.rows, seed=request.seed)
