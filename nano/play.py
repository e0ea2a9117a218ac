"""Let a model attempt many scenarios of a task at once, on token level, as the server would render them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.environments.tasks import Environment, Message, Task
from art.rendering.nano import NanoRenderer, create_nano_renderer
from nano.model import MAX_POSITIONS
from nano.sampler import Sampler


@dataclass(kw_only=True)
class Attempt:
    """One conversation: its world, its ids so far, and for each reply (start, ids, logprobs)."""

    world: Environment
    ids: list[int]
    replies: list[tuple[int, list[int], list[float]]] = field(default_factory=list)


def play(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    worlds: Sequence[Environment],
    *,
    max_tokens: int,
    generator: torch.Generator | None,
    capacity: int = MAX_POSITIONS,
) -> list[Attempt]:
    """Play each world to its end; with no generator, greedily."""
    renderer = create_nano_renderer(tokenizer)
    sampler = Sampler(model, len(worlds), capacity)
    stop_ids = set(renderer.get_stop_token_ids())
    chunks = [
        renderer.render_ids(world.opening, tools=world.tools, add_generation_prompt=True) for world in worlds
    ]
    attempts = [Attempt(world=world, ids=list(chunk)) for world, chunk in zip(worlds, chunks, strict=True)]
    going = list(range(len(worlds)))
    while going:
        completions, logprobs = sampler.complete(
            going, chunks, stop_ids=stop_ids, max_tokens=max_tokens, generator=generator
        )
        chunks, playing = [], []
        for row, reply, scores in zip(going, completions, logprobs, strict=True):
            chunk = _advance(attempts[row], renderer, reply, scores)
            if chunk:
                playing.append(row)
                chunks.append(chunk)
        going = playing
    return attempts


def _advance(attempt: Attempt, renderer: NanoRenderer, reply: list[int], scores: list[float]) -> list[int]:
    """Hand a reply to its world; the ids of the world's answer up to the next generation prompt, or []."""
    attempt.replies.append((len(attempt.ids), reply, scores))
    answers = attempt.world.reply(as_message(renderer, reply))
    if attempt.world.done:
        attempt.ids += reply
        return []
    bridged = renderer.bridge_to_next_turn(attempt.ids, reply, answers)
    if bridged is None:
        raise ValueError(f"the answer {answers!r} cannot extend the conversation")
    known = len(attempt.ids) + len(reply)
    attempt.ids = bridged.token_ids
    return bridged.token_ids[known:]


def as_message(renderer: NanoRenderer, reply: list[int]) -> Message:
    """The OpenAI message that a server makes of a reply."""
    parsed = renderer.parse_response(reply)
    calls: list[dict[str, Any]] = []
    for i, call in enumerate(parsed.tool_calls):
        if call.status == "ok":
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            calls.append({"id": f"call_{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": parsed.content, "tool_calls": calls}


def measure(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    *,
    count: int,
    seed: int,
    greedy: bool = False,
    batch: int = 256,
) -> dict[str, float]:
    """Mean reward and metrics of `count` attempts at the scenarios `0..count-1` of the stream `seed`."""
    generator = None if greedy else torch.Generator().manual_seed(seed)
    totals: dict[str, float] = {}
    for start in range(0, count, batch):
        indices = range(start, min(start + batch, count))
        worlds = [task.environment(task.scenario(seed, index), seed) for index in indices]
        attempts = play(
            model, tokenizer, worlds, max_tokens=task.DEFAULTS.max_tokens, generator=generator, capacity=512
        )
        for attempt in attempts:
            values = attempt.world.metrics | {
                "reward": attempt.world.reward,
                "turns": float(len(attempt.replies)),
            }
            for key, value in values.items():
                totals[key] = totals.get(key, 0.0) + value / count
    return totals
