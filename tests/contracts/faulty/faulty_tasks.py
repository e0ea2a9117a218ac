"""Tasks of inspect-ai with a fault, and users of tau2 with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from faulty_worlds import PROMPT, commit, reward_of
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import TaskState, solver


@solver
def commits(fault: str) -> Any:
    async def solve(state: TaskState, generate: Any) -> TaskState:
        state = await generate(state)
        if flood := commit(fault):
            state.messages.append(type(state.user_prompt)(content=flood))
            state = await generate(state)
        return state

    return solve


@scorer(metrics=[mean()])
def given(fault: str) -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=reward_of(fault))

    return score


@task
def faulty(fault: str = "") -> Task:
    text = PROMPT if fault == "prompt" else "Guess."
    samples = [Sample(input=f"{number}: {text}", target="1", id=f"one-{number}") for number in range(20)]
    return Task(dataset=samples, solver=commits(fault), scorer=given(fault))


def user_of(fault: str) -> Any:
    async def reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
        said = any(one["role"] == "assistant" for one in messages)
        return commit(fault) or ("###STOP###" if said else "Hello.")

    return reply


def hanging(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
    said = any(one["role"] == "assistant" for one in messages)
    return commit("hangs") if said else "Hello."


dying, flooding, plain = map(user_of, ("dies", "floods", ""))
