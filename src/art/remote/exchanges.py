"""What a server heard in a rollout, as a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art.capture.likeness import message_key, tools_key
from art.capture.recorder import Recorder
from art.trajectories import Trajectory
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art.wire.rollouts import Exchange, ExchangeChoice, RolloutExchanges


def fill(trajectory: Trajectory, told: RolloutExchanges) -> None:
    """Write the conversations into the trajectory, in place of those that were in it.

    The conversation that began first is the main one; sub-agents, compacted contexts and branches are
    additional histories. Each sample is one choice of one history; where a later conversation repeats it, it
    is context. Every sample of the model is in it, except for replies that were lost on the way and asked
    for again. `metrics` get `forks`, and where there are any `superseded_samples` (those) and `base_samples`
    (the base model's, which are not trained).
    """
    heard = Trajectory(rollout_id=trajectory.rollout_id)
    recorder = Recorder(heard)
    asked = conversations(told.exchanges)
    lost = {place for place, one in enumerate(told.exchanges) if not one.delivered}
    left_out = superseded(asked) & lost
    for place, (request, completion) in enumerate(asked):
        if place not in left_out:
            recorder.hear(request, completion, parent_id=told.exchanges[place].parent_id)
    recorder.close()
    trajectory.messages_and_choices = heard.messages_and_choices
    trajectory.tools = heard.tools
    trajectory.additional_histories = heard.additional_histories
    steps = [choice.step for one in told.exchanges for choice in one.choices if choice.step is not None]
    trajectory.initial_policy_version = min(steps, default=None)
    trajectory.final_policy_version = max(steps, default=None)
    trajectory.metrics["forks"] = sum(told.forks.values())
    if left_out:
        trajectory.metrics["superseded_samples"] = sum(len(asked[n][1].choices) for n in left_out)
    if told.unlisted_samples:
        trajectory.metrics["base_samples"] = told.unlisted_samples


def conversations(exchanges: list[Exchange]) -> list[tuple[dict[str, Any], Any]]:
    """Each request, its messages whole, with its completion, in the order in which they were asked."""
    from openai.types.chat import ChatCompletion

    messages: dict[str, list[dict[str, Any]]] = {}
    pairs = []
    for one in exchanges:
        before = messages[one.extends][: one.shared] if one.extends is not None else []
        messages[one.request_id] = [*before, *one.messages]
        completion = ChatCompletion.model_validate(
            {
                "id": one.request_id,
                "object": "chat.completion",
                "created": int(one.created_at),
                "model": one.model,
                "choices": [_choice(choice) for choice in one.choices],
            }
        )
        pairs.append(({"messages": messages[one.request_id], "tools": one.tools}, completion))
    return pairs


def superseded(asked: Sequence[tuple[dict[str, Any], Any]]) -> set[int]:
    """Places of requests that a client asked again, word by word, and of which it went on with the later
    reply alone: if the earlier reply was never delivered, that is a retry and no second turn.
    """
    nodes: dict[tuple[int, Any], int] = {}

    def reached(parent: int, key: Any) -> int:
        return nodes.setdefault((parent, key), len(nodes) + 1)

    ends: list[tuple[int, list[int]]] = []
    passed: set[int] = set()
    for request, completion in asked:
        node = reached(0, tools_key(request["tools"]))
        for message in request["messages"]:
            node = reached(node, message_key(message))
            passed.add(node)
        replies = [message_key(choice.message.model_dump(mode="json")) for choice in completion.choices]
        ends.append((node, [reached(node, reply) for reply in replies]))
    went_on = [any(reply in passed for reply in replies) for _, replies in ends]
    return {
        place
        for place, (node, replies) in enumerate(ends)
        if not went_on[place]
        and any(
            node == later and went_on[further] and replies != others
            for further, (later, others) in enumerate(ends[place + 1 :], place + 1)
        )
    }


def _choice(choice: ExchangeChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": choice.message,
        "finish_reason": choice.finish_reason,
        "logprobs": None,
        SAMPLE_FIELD: choice.sample_id,
        STEP_FIELD: choice.step,
        TOKENS_FIELD: choice.completion_tokens,
    }
