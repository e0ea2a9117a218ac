"""One rank of a gang of the tests: reads cases as lines, answers each with a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch
from cases import Learned, make_policy

from art.errors import ARTError
from art.training.ranks.group import RankGroup, join_ranks, open_store


def answer(case: dict[str, Any], ranks: RankGroup) -> dict[str, Any]:
    return Learned(case, ranks, make_policy(ranks if case.get("sharded") else None)).outcome()


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
        except ARTError as error:
            told = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
