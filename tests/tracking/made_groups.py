"""Groups with everything that a log must keep: one by hand, and any by hypothesis."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

import art
from art.trajectories import PydanticException

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
IMAGE = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


def exact(value: Any) -> Any:
    """Plain values of which two are equal only where the types are too: 1 is not True, and not 1.0."""
    if isinstance(value, BaseModel):
        return type(value).__name__, exact(vars(value)), exact(value.model_extra)
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    return [exact(one) for one in value] if isinstance(value, list) else repr(value)


def reply(content: str | None = "hi", **extra: Any) -> Choice:
    message = {"role": "assistant", "content": content, **extra.pop("message", {})}
    return Choice.construct(
        **{"index": 0, "finish_reason": "stop", "logprobs": None, "message": message, **extra}
    )


def full_group() -> art.TrajectoryGroup:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    logprobs = {"content": [{"token": "hi", "bytes": [104, 105], "logprob": -0.125, "top_logprobs": []}]}
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "s", "name": "me"},
            {"role": "user", "content": IMAGE},
            reply(None, sample_id="s1", step=3, logprobs=logprobs, message={"tool_calls": [call]}),
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            reply("done", sample_id="s2", message={"reasoning": "because"}),
        ],
        tools=[TOOL],
        additional_histories=[art.History(messages_and_choices=[reply("sub", sample_id="s3")], tools=[TOOL])],
        reward=0.1 + 0.2,
        initial_policy_version=2,
        final_policy_version=3,
        metrics={"turns": 3, "won": True, "seconds": 1.5, "huge": 2**80},
        metadata={
            "scenario_id": "a",
            "n": 1,
            "ok": False,
            "none": None,
            "plan": {"steps": [1.0, {"to": None}]},
        },
        logs=["one", "two\n"],
        rollout_id="r1",
    )
    unscored = art.Trajectory(reward=art.Unscored("the judge is down"))
    return art.TrajectoryGroup(
        [trajectory, unscored, ValueError("boom")],
        metadata={"scenario_id": "a"},
        metrics={"judge": 0.5},
        logs=["group"],
    )


text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates and NUL among them
scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
tree = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"])},
    optional={
        "content": st.none() | text | st.lists(st.dictionaries(text, tree, max_size=2), max_size=2),
        "tool_calls": st.lists(st.dictionaries(text, tree, max_size=2), max_size=2),
        "tool_call_id": text,
        "name": text,
        "reasoning": st.none() | text,
    },
)
metrics = st.dictionaries(text, st.booleans() | st.integers() | st.floats(allow_nan=False), max_size=3)
token = st.fixed_dictionaries(
    {"token": text, "bytes": st.none(), "logprob": st.floats(max_value=0.0), "top_logprobs": st.just([])}
)


def any_groups(*, logprobs: bool = True) -> st.SearchStrategy[list[art.TrajectoryGroup]]:
    """Groups of anything. logprobs: whether choices may have log probabilities."""
    told = st.none() | st.fixed_dictionaries({"content": st.lists(token, max_size=2)})
    choice = st.builds(
        reply,
        st.none() | text,
        sample_id=text,
        message=st.dictionaries(st.just("reasoning"), text),
        logprobs=told if logprobs else st.none(),
        extra=tree,
    )
    turns = st.lists(message | choice, max_size=4)
    tools = st.none() | st.lists(st.dictionaries(text, tree, max_size=2), max_size=2)
    trajectory = st.builds(
        art.Trajectory,
        messages_and_choices=turns,
        tools=tools,
        additional_histories=st.lists(
            st.builds(art.History, messages_and_choices=turns, tools=tools), max_size=2
        ),
        reward=st.floats(allow_nan=False) | st.builds(art.Unscored, text),
        initial_policy_version=st.none() | st.integers(),
        metrics=metrics,
        metadata=st.dictionaries(text, tree, max_size=3),
        logs=st.lists(text, max_size=2),
        start_time=(st.datetimes() | st.datetimes(timezones=st.just(UTC))).map(lambda t: t.replace(fold=0)),
        rollout_id=st.none() | text,
    )
    failure = st.builds(PydanticException, type=text, message=text, traceback=text)
    group = st.builds(
        art.TrajectoryGroup,
        st.lists(trajectory, max_size=3),
        exceptions=st.lists(failure, max_size=2),
        metadata=st.dictionaries(text, tree, max_size=2),
        metrics=metrics,
        logs=st.lists(text, max_size=2),
    )
    return st.lists(group, max_size=3)
