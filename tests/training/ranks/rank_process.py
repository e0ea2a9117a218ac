"""One rank of a gang of the tests: reads cases as lines, answers each with a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch  # noqa: E402
from cases import Learned, make_policy  # noqa: E402

from art.errors import ARTError  # noqa: E402
from art.training.ranks.group import RankGroup, join_ranks, open_store  # noqa: E402
from art.training.step import BatchStep  # noqa: E402


@contextmanager
def failing(case: dict[str, Any], ranks: RankGroup) -> Iterator[None]:
    """On the ranks that the case names, the first micro-batch has no memory, or fails."""
    loss, seen = BatchStep.loss, []

    def hurt(step: BatchStep, *arguments: Any) -> torch.Tensor:
        seen.append(0)
        if ranks.rank in case.get("no_memory", []) and len(seen) == 1:
            raise MemoryError(f"rank {ranks.rank} is full")
        if ranks.rank in case.get("fails", []):
            raise RuntimeError(f"shapes differ on rank {ranks.rank}")
        return loss(step, *arguments)

    BatchStep.loss = hurt  # type: ignore[method-assign]
    try:
        yield
    finally:
        BatchStep.loss = loss  # type: ignore[method-assign]


def answer(case: dict[str, Any], ranks: RankGroup) -> dict[str, Any]:
    policy = make_policy(ranks if case.get("sharded") else None, experts="experts" in case)
    with failing(case, ranks), ranks.agree():
        learned = Learned(case, ranks, policy)
        before = learned.trainer.digest("project/model")
        try:
            return learned.outcome()
        finally:
            assert not case.get("fails") or learned.trainer.digest("project/model") == before


def main() -> None:
    torch.set_num_threads(1)
    rank, world, port, deadline = (int(word) for word in sys.argv[1:5])
    store = open_store("127.0.0.1", port, deadline=60.0, leader=rank == 0)
    print(json.dumps({"port": store.port}), flush=True)
    ranks = join_ranks(store, rank, world, host="127.0.0.1", device=torch.device("cpu"), deadline=deadline)
    print(json.dumps({"joined": world}), flush=True)
    for line in sys.stdin:
        try:
            told = answer(json.loads(line), ranks)
        except (ARTError, RuntimeError) as error:
            told = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
