"""Tasks of inspect-ai for tests: a word to say, a sum by a tool, scores of several kinds, and faults."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText
from inspect_ai.scorer import Score, Target, accuracy, exact, match, mean, scorer
from inspect_ai.solver import TaskState, generate, solver, system_message, use_tools
from inspect_ai.tool import tool


def words(count: int) -> MemoryDataset:
    return MemoryDataset([Sample(input=f"Say w{n}", target=f"w{n}", id=f"word-{n}") for n in range(count)])


@task
def say(count: int = 60, prompt: str = "") -> Task:
    first = [system_message(prompt)] if prompt else []
    return Task(dataset=words(count), solver=[*first, generate()], scorer=exact())


@task
def look(image: str) -> Task:
    shown = ChatMessageUser(content=[ContentText(text="What is this?"), ContentImage(image=image)])
    return Task(dataset=[Sample(input=[shown], target="a door")], solver=[generate()], scorer=exact())


@tool
def add() -> Any:
    async def execute(first: int, second: int) -> int:
        """Add two numbers.

        Args:
            first: One number.
            second: The other.
        """
        return first + second

    return execute


@task
def sums() -> Task:
    samples = [Sample(input=f"What is {n} + 30?", target=str(n + 30)) for n in range(4)]
    return Task(dataset=samples, solver=[use_tools(add()), generate()], scorer=match())


@scorer(metrics={"*": [mean()]})
def parts() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(
            value={"length": len(state.output.completion), "right": state.output.completion == target.text}
        )

    return score


@scorer(metrics=[accuracy()])
def silent() -> Any:
    async def score(state: TaskState, target: Target) -> Score | None:
        return Score(value=float("nan"))

    return score


@task
def several() -> Task:
    return Task(dataset=words(3), scorer=[exact(), parts()])


@task
def unscored() -> Task:
    return Task(dataset=words(3), scorer=silent())


@solver
def broken() -> Any:
    async def solve(state: TaskState, generate: Any) -> TaskState:
        state = await generate(state)
        if state.user_prompt.text == "Say w1":
            raise KeyError("no board")
        return state

    return solve


@task
def fails() -> Task:
    return Task(dataset=words(3), solver=broken(), scorer=exact())


@task
def empty() -> Task:
    return Task(dataset=[], scorer=exact())
