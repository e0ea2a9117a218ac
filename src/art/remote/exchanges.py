"""What a server heard in a rollout, as a trajectory."""

from __future__ import annotations

from typing import Any

from art.capture.recorder import Recorder
from art.trajectories import Trajectory
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art.wire.rollouts import Exchange, ExchangeChoice, RolloutExchanges


def fill(trajectory: Trajectory, told: RolloutExchanges) -> None:
    """Write the conversations into the trajectory, in place of those that were in it.

    The conversation that began first is the main one; sub-agents, compacted contexts and branches are
    additional histories. Each sample is one choice of one history; where a later conversation repeats it, it
    is context. `metrics` get `forks`, and `base_samples` if the base model was asked.
    """
    heard = Trajectory(rollout_id=trajectory.rollout_id)
    recorder = Recorder(heard)
    for request, completion in conversations(told.exchanges):
        recorder.hear(request, completion)
    recorder.close()
    trajectory.messages_and_choices = heard.messages_and_choices
    trajectory.tools = heard.tools
    trajectory.additional_histories = heard.additional_histories
    steps = [choice.step for one in told.exchanges for choice in one.choices if choice.step is not None]
    trajectory.initial_policy_version = min(steps, default=None)
    trajectory.final_policy_version = max(steps, default=None)
    trajectory.metrics["forks"] = sum(told.forks.values())
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
