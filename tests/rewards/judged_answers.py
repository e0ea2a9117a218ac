"""Groups whose true quality can be read in the answers: "worth 0.7: ..."."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from art.rewards.llm import Channel, resolve_llm
from art.trajectories import Trajectory, TrajectoryGroup
from art_extensions.testing import LlmServer

_WORTH = re.compile(r"worth (-?[\d.]+)")


def worth(messages: Sequence[Mapping[str, Any]]) -> float:
    """The true quality of a trajectory."""
    found = _WORTH.search(str(messages[-1]["content"]))
    assert found is not None, messages
    return float(found[1])


def attempts_worth(*values: float, text: str = "") -> TrajectoryGroup:
    """One group of these true qualities."""
    question = {"role": "user", "content": "Write a line."}
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[question, {"role": "assistant", "content": f"worth {value}: a line{text}"}]
        )
        for value in values
    )


def channel_to(server: LlmServer, **options: Any) -> Channel:
    llm = resolve_llm("truth", base_url=server.base_url, api_key=server.key)
    return Channel(llm, **options)
