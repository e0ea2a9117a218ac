"""One attempt: the input, and what the model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.prompted_model import Model

TIMEOUT_S = 120.0


async def rollout(
    model: Model[Any, Any],
    text: str,
    *,
    system_prompt: str = "",
    max_tokens: int | None = None,
    temperature: float = 1.0,
    timeout: float = TIMEOUT_S,
    seed: int | None = None,
) -> Trajectory:
    """Ask the model once. system_prompt: "" for none. timeout: seconds. Raises what its client raises.

    Metrics: `cut` (1.0 where the answer ended at `max_tokens`), `answer_chars`.
    """
    opening: list[Any] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    opening.append({"role": "user", "content": text})
    chosen = {"max_tokens": max_tokens, "seed": seed}
    completions: Any = model.openai_client().chat.completions
    completion = await completions.create(
        model=model.get_inference_name(),
        messages=opening,
        temperature=temperature,
        timeout=timeout,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    choice = completion.choices[0]
    return Trajectory(
        messages_and_choices=[*opening, choice],
        reward=0.0,
        metrics={
            "cut": float(choice.finish_reason == "length"),
            "answer_chars": float(len(choice.message.content or "")),
        },
        metadata={"input": text},
    )
