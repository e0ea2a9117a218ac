"""A package of the Environments Hub as people write them: a module with `load_environment`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import verifiers as vf
import verifiers.v1 as v1
from datasets import Dataset

from art.environments.tasks import mail

BLOCKED, UNBLOCK = threading.Event(), threading.Event()
HANGS, ENDED = threading.Event(), threading.Event()
WORDS = [f"{left}{right}" for left in "abcdefghij" for right in ("ba", "co", "du", "fe", "gi", "ho")]


def said(completion: Any) -> str:
    return str(completion[-1].content).strip() if completion else ""


async def exact(completion: Any, answer: str) -> float:
    return float(said(completion) == answer)


def words(rows: list[str]) -> Dataset:
    return Dataset.from_list([{"question": f"Say {word}", "answer": word} for word in rows])


def single(fault: str, held_out: bool, **given: Any) -> vf.Environment:
    """One question, one reply. `fault` is a function of the rubric that fails, or the kind of rubric."""

    async def broken(completion: Any) -> float:
        raise KeyError("no judge answers")

    def compared(completions: list[Any]) -> list[float]:
        return [0.0 for _ in completions]

    functions: dict[str, tuple[Any, float]] = {"exact": (exact, 1.0)}
    if fault in ("reward", "metric"):
        functions["broken"] = (broken, 1.0 if fault == "reward" else 0.0)
    if fault == "group":
        functions["compared"] = (compared, 1.0)
    rubric = vf.Rubric()
    for function, weight in functions.values():
        rubric.add_reward_func(function, weight)
    if held_out:
        given["eval_dataset"] = words(WORDS[40:])
    return vf.SingleTurnEnv(
        dataset=words(WORDS[: 40 if held_out else None] * (2 if fault == "repeated" else 1)),
        rubric=rubric,
        **given,
    )


class GuessEnv(vf.MultiTurnEnv):
    """Higher or lower, five times."""

    fault = ""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        if self.fault == "step":
            raise KeyError("the number is gone")
        if self.fault == "hang":
            HANGS.set()
            try:
                await asyncio.Event().wait()
            finally:
                ENDED.set()
        if self.fault == "block":
            BLOCKED.set()
            if not UNBLOCK.wait(60):
                raise RuntimeError("nobody went on meanwhile")
        guess, number = said(messages), int(state["answer"])
        if guess == str(number):
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        if self.fault == "longer":
            return [{"role": "user", "content": "That is not it. " * 20}]
        hint = "Higher." if not guess.isdigit() or int(guess) < number else "Lower."
        return [{"role": "user", "content": hint}]


async def right(state: Any) -> float:
    return float(any(said(step["completion"]) == state["answer"] for step in state["trajectory"]))


def multi(fault: str, **given: Any) -> vf.Environment:
    rows = [
        {"question": "Guess a number from 0 to 9.", "answer": str(one % 10), "info": {"game": one}}
        for one in range(50)
    ]
    is_stepped = fault == "stepped"
    world = (SteppedEnv if is_stepped else GuessEnv)(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[right, of_steps] if is_stepped else [right]),
        **{"max_turns": 5, **given},
    )
    world.fault = fault
    return world


class SteppedEnv(GuessEnv):
    """The same, with a reward for each step that it answers."""

    async def env_response(self, messages: Any, state: Any, **given: Any) -> Any:
        state["trajectory"][-1]["reward"] = sum(map(ord, said(messages))) % 10 / 10  # anything that differs
        return await super().env_response(messages, state, **given)


async def of_steps(state: Any) -> float:
    return sum(step["reward"] or 0.0 for step in state["trajectory"])


def questions() -> tuple[list[mail.MailScenario], Dataset]:
    asked = [mail.scenario(3, index) for index in range(40)]
    rows = [
        {"question": one.question, "answer": one.wanted.name, "info": {"index": one.index}} for one in asked
    ]
    return asked, Dataset.from_list(rows)


def text_of(inbox: tuple[mail.Mail, ...], id: str) -> str:
    return next((f"{one.project} {one.role} {one.name}" for one in inbox if one.id == id), "nothing")


async def found(state: Any) -> float:
    return float(state.get("told") == state["answer"])


async def read_first(completion: Any, answer: str) -> float:
    return float(any(one.role == "tool" and answer in str(one.content) for one in completion))


MAIL = vf.Rubric(funcs=[found, read_first], weights=[1.0, 0.25])


class MailEnv(vf.StatefulToolEnv):
    """An inbox of each rollout's own, which the tools get from its state."""

    def __init__(self, asked: list[mail.MailScenario], **given: Any) -> None:
        super().__init__(**given)
        self.asked = asked
        for tool in (self.search, self.read, self.answer):
            self.add_tool(tool, args_to_skip=["state"])

    async def search(self, keyword: str, state: Any) -> str:
        """List up to five mails whose subject contains every word of the keyword."""
        return mail.search(state["inbox"], keyword)

    async def read(self, id: str, state: Any) -> str:
        """Read the mail with this id."""
        return text_of(state["inbox"], id)

    async def answer(self, text: str, state: Any) -> str:
        """Give the answer to the question; this ends the conversation."""
        state["told"] = text
        state["final_env_response"] = [{"role": "user", "content": "Thank you."}]
        return "thank you"

    async def setup_state(self, state: Any) -> None:
        state["inbox"] = self.asked[state["info"]["index"]].inbox

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **_: Any) -> Any:
        return {**tool_args, "state": state}


def stateful(**given: Any) -> vf.Environment:
    asked, rows = questions()
    return MailEnv(asked, dataset=rows, rubric=MAIL, system_prompt=mail.SYSTEM_PROMPT, max_turns=5, **given)


def tools(**given: Any) -> vf.Environment:
    """Tools without a state: one inbox for all."""
    asked, _ = questions()
    inbox = asked[0].inbox
    rows = [{"question": f"Who is the {one.role} of {one.project}?", "answer": one.name} for one in inbox]

    def search(keyword: str) -> str:
        """List up to five mails whose subject contains every word of the keyword."""
        return mail.search(inbox, keyword)

    def read(id: str) -> str:
        """Read the mail with this id."""
        return text_of(inbox, id)

    return vf.ToolEnv(
        tools=[search, read],
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[read_first]),
        system_prompt=mail.SYSTEM_PROMPT,
        max_turns=4,
        **given,
    )


@v1.reward(weight=1.0)
async def last_said(task: Any, state: Any) -> float:
    return float(state["completion"][-1]["content"].strip() == task["answer"])


def tasks() -> vf.Environment:
    """Rows in a taskset, as newer packages have them, with the default harness."""
    rows = [
        {"prompt": [{"role": "user", "content": f"Say {word}"}], "answer": word, "max_turns": 1}
        for word in WORDS
    ]
    return v1.Env(taskset=v1.Taskset(source=rows, rewards=[last_said]))


def load_environment(
    kind: str = "single", fault: str = "", held_out: bool = True, **given: Any
) -> vf.Environment:
    match kind:
        case "single":
            return single(fault, held_out, **given)
        case "multi":
            return multi(fault, **given)
        case "tools":
            return tools(**given)
        case "stateful":
            return stateful(**given)
        case "tasks":
            return tasks()
        case "several":
            return vf.EnvGroup([single(fault, held_out=False), tools(), stateful()])
    raise ValueError(f"no kind {kind!r}")
