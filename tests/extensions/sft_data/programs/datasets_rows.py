"""What the client reads of the objects of the `datasets` library; run where that is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset

from art.client.sft.sft_request import sft_request
from art.types import TrainSFTConfig
from art.utils.sft import create_sft_dataset_iterator, iterate_file

ROWS: list[dict[str, Any]] = [
    {
        "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
        "conversations": None,
    },
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
]


def sent(rows: Iterable[Any]) -> list[Any]:
    made = sft_request("j", rows, TrainSFTConfig(), None)
    assert made is not None
    return [one.messages for one in made.conversations]


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


data = Dataset.from_list(ROWS)  # each row has both columns, one of them null
data.to_parquet(sys.argv[1])
asked = Dataset.from_list([{"question": "a", "answer": "b"}])
(chunk,) = create_sft_dataset_iterator(data, shuffle=False, show_progress=False)
told = {
    "rows": sent(data),
    "stream": sent(data.to_iterable_dataset()),
    "chunk": [one.messages_and_choices for one in chunk.trajectories],
    "parquet": [one.messages_and_choices for one in iterate_file(sys.argv[1], shuffle_buffer_size=1)],
    "map": sent(asked.map(lambda row: {"prompt": row["question"], "completion": row["answer"]})),
    "splits": refusal(lambda: sent(DatasetDict(train=data))),
    "table": refusal(lambda: sent(data.data.table)),
    "pandas": refusal(lambda: sent(data.to_pandas())),
}
assert sent(load_dataset("parquet", data_files=sys.argv[1], split="train")) == told["rows"]
print(json.dumps(told))
