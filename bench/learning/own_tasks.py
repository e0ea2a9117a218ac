"""Five small tasks of a user's own, learned by `art/nano-words` from rewards alone.

    python -m bench.learning.own_tasks [--task NAME ...] [--seed 0] [--steps 40] [--demonstrations 0]

Each task is played by the untrained adapter, trained for some steps, and played again on scenarios that no
step trained on. The score is a share of rollouts; the goal is twice the first. The tasks were written after
the model's recipe was fixed; no dialog that it was taught is about them. With demonstrations, the adapter
is first fine-tuned on noisy conversations (`DEMONSTRATORS`), and scored then.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nano.vocabulary import WORDS
from nano.words import schema
from openai.types.chat import ChatCompletionMessage

import art
from bench.rows import Row, write_rows

BASE = "art/nano-words"
LEARNING_RATE = 7e-4
"""A third of what docs/guides/tuning.md gives for models of this size: at 2e-3 replies became alike."""
GROUPS, GROUP_SIZE, EVALUATIONS = 16, 16, 256
DEMONSTRATION_RATE, DEMONSTRATION_BATCH = 2e-3, 8
LEAST = 0.1
"""The goal where the first score is nearly nothing."""


@dataclass(kw_only=True)
class Talk:
    """A conversation with the policy, recorded as a trajectory."""

    model: art.TrainableModel
    seed: int
    trajectory: art.Trajectory = field(default_factory=art.Trajectory)

    async def reply_to(self, *messages: dict[str, Any]) -> Any:
        """What the policy says to these messages: the message of its choice."""
        self.trajectory.messages_and_choices += messages
        choice = await self.next_choice()
        self.trajectory.messages_and_choices.append(choice)
        return choice.message

    async def next_choice(self) -> Any:
        """A completion of the conversation so far."""
        tools = self.trajectory.tools
        self.seed += 1
        completion = await self.model.openai_client().chat.completions.create(
            model=self.model.get_inference_name(),
            messages=self.trajectory.messages(),
            max_tokens=40,
            seed=self.seed,
            **({"tools": tools} if tools else {}),
        )
        return completion.choices[0]

    async def say(self, text: str) -> str:
        """The policy's answer to a user."""
        message = await self.reply_to({"role": "user", "content": text})
        return message.content or ""


@dataclass(kw_only=True)
class Demonstration(Talk):
    """A conversation with a scripted player; its replies are examples to be fine-tuned on."""

    player: Player
    dice: random.Random

    async def reply_to(self, *messages: dict[str, Any]) -> Any:
        """What the player says to these messages."""
        self.trajectory.messages_and_choices += messages
        message = {"role": "assistant", **self.player(self.trajectory.messages(), self.dice)}
        self.trajectory.messages_and_choices.append(message)
        return ChatCompletionMessage.model_validate({"content": None, **message})


Player = Callable[[list[Any], random.Random], dict[str, Any]]
"""What somebody says to a conversation: `content` or `tool_calls`."""
Play = Callable[[Talk, random.Random], Awaitable[tuple[float, bool]]]
"""Plays the scenario that the generator draws: its reward, and whether it succeeded."""


async def rollout(play: Play, model: art.TrainableModel, scenario: str, seed: int) -> art.Trajectory:
    """One rollout; those of a scenario differ by `seed` alone."""
    talk = Talk(model=model, seed=1000 * seed)
    reward, success = await play(talk, random.Random(scenario))
    talk.trajectory.reward, talk.trajectory.metrics["success"] = reward, success
    return talk.trajectory


async def score(play: Play, model: art.TrainableModel, seed: int) -> float:
    """The share of successes in new scenarios."""
    played = await art.gather_trajectories(
        rollout(play, model, f"test/{seed}/{index}", index) for index in range(EVALUATIONS)
    )
    return sum(bool(one.metrics["success"]) for one in played) / len(played)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Shares of successes before and after, and the mean reward of each step."""

    first: float
    last: float
    rewards: list[float]
    seconds: float


async def demonstrate(name: str, model: art.TrainableModel, seed: int, count: int) -> None:
    """Fine-tune the adapter on so many conversations of the task's noisy player."""
    conversations = []
    for index in range(count):
        dice = random.Random(f"player/{seed}/{index}")
        talk = Demonstration(model=model, seed=0, player=DEMONSTRATORS[name], dice=dice)
        await TASKS[name](talk, random.Random(f"shown/{seed}/{index}"))
        conversations.append(talk.trajectory)
    await model.train_sft(
        conversations, art.TrainSFTConfig(learning_rate=DEMONSTRATION_RATE, batch_size=DEMONSTRATION_BATCH)
    )


async def learn(
    name: str, *, seed: int, steps: int, folder: Path, base: str = BASE, demonstrations: int = 0
) -> Learned:
    """Train a new adapter on the task `name`, after so many demonstrations."""
    play = TASKS[name]
    model = art.TrainableModel(
        name=f"{name}-{seed}",
        project="own-tasks",
        base_model=base,
        _internal_config=art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(random_state=seed)),
    )
    rewards = []
    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        if demonstrations:
            await demonstrate(name, model, seed, demonstrations)
        first = await score(play, model, seed)
        begin = time.perf_counter()
        for step in range(steps):
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(
                    rollout(play, model, f"train/{seed}/{step}/{group}", GROUP_SIZE * group + index)
                    for index in range(GROUP_SIZE)
                )
                for group in range(GROUPS)
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=LEARNING_RATE))
            played = [float(one.reward) for group in groups for one in group]
            rewards.append(sum(played) / len(played))
        seconds = time.perf_counter() - begin
        return Learned(first=first, last=await score(play, model, seed), rewards=rewards, seconds=seconds)


async def guess_a_number(talk: Talk, dice: random.Random, *, strictly: bool = False) -> tuple[float, bool]:
    """A number from 1 to 8, in three guesses. Who halves the range finds seven of eight.

    strictly: a guess that the hints rule out ends the game.
    """
    secret, text = dice.randint(1, 8), "Guess a number from 1 to 8"
    low, high = 1, 8
    for _ in range(3):
        guess = await talk.say(text)
        if guess == str(secret):
            return 1.0, True
        if guess not in map(str, range(low, high + 1)):
            return -0.5, False
        text = "higher" if int(guess) < secret else "lower"
        if strictly:
            low, high = (int(guess) + 1, high) if text == "higher" else (low, int(guess) - 1)
    return 0.0, False


async def call_a_tool(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """Three tools with made-up names; `open_zoda` alone tells what is in a box."""
    color, inside = dice.choice(WORDS["color"]), dice.choice(WORDS["thing"])
    names = dice.sample(("open_zoda", "open_mibe", "open_duka"), 3)
    talk.trajectory.tools = [schema(name, ["box"]) for name in names]
    asked = await talk.reply_to({"role": "user", "content": f"What is in the {color} box?"})
    name, arguments = called(asked)
    partly = 0.2 * (name == "open_zoda") + 0.2 * (color in str(arguments.get("box")).split())
    if partly < 0.4:
        return partly, False
    answer = await talk.reply_to(result(asked, f"{color}: {inside}"))
    return (1.0, True) if answer.content == inside else (partly, False)


async def sort_words(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """Three fruits in alphabetical order; a wrong order of the right words earns a little."""
    fruits = dice.sample(WORDS["fruit"][:8], 3)
    reply = await talk.say(f"Sort these words: {', '.join(fruits)}")
    said = reply.split(", ")
    if sorted(said) != sorted(fruits):
        return -0.5, False
    right = sum(one < other for one, other in itertools.pairwise(said))
    return right / 2, right == 2


async def look_up_twice(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """The city of the owner of a thing: two tools, the second asked for what the first found."""
    thing, owner, city = (dice.choice(WORDS[kind]) for kind in ("thing", "name", "city"))
    talk.trajectory.tools = [schema("find_city", ["name"]), schema("find_owner", ["name"])]
    question = f"Find the city of the owner of {thing}."
    message = await talk.reply_to({"role": "user", "content": question})
    tool, arguments = called(message)
    partly = 0.1 * (tool == "find_owner") + 0.1 * (arguments == {"name": thing})
    if partly < 0.2:
        return partly, False
    message = await talk.reply_to(result(message, owner))
    tool, arguments = called(message)
    partly += 0.2 * (tool == "find_city") + 0.2 * (arguments == {"name": owner})
    if partly < 0.6:
        return partly, False
    message = await talk.reply_to(result(message, city))
    return (1.0, True) if message.content == city else (partly, False)


async def follow_up(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """Facts about owners and cities; the second question is about what the policy found itself."""
    things, owners, cities = (dice.sample(WORDS[kind], 3) for kind in ("thing", "name", "city"))
    rows = [*zip(things, owners, strict=True), *zip(owners, cities, strict=True)]
    facts = "\n".join(f"{key}: {value}" for key, value in dice.sample(rows, len(rows)))
    owner = await talk.say(f"{facts}\nWho is the owner of {things[0]}?")
    if owner != owners[0]:
        return 0.0, False
    city = await talk.say("What is the city of the owner?")
    return (1.0, True) if city == cities[0] else (0.2, False)


async def beat_colors(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """Red beats green, green beats blue, blue beats red; the other side prefers one of them."""
    theirs = dice.choices(("red", "green", "blue"), (0.1, 0.1, 0.8))[0]
    mine = await talk.say("Choose one: red, green or blue")
    won = BEATS.get(mine) == theirs
    return (1.0 if won else 0.3 * (mine == theirs)), won


BEATS = {"red": "green", "green": "blue", "blue": "red"}


async def mix_colors(talk: Talk, dice: random.Random) -> tuple[float, bool]:
    """Which color two others make."""
    pair, mixed = dice.choice(MIXTURES)
    one, other = dice.sample(pair, 2)
    options = dice.sample([color for _, color in MIXTURES], len(MIXTURES))
    reply = await talk.say(f"Mix {one} and {other}. Choose one: {', '.join(options)}")
    return float(reply == mixed) - 0.5 * (reply not in options), reply == mixed


MIXTURES = (
    (("red", "yellow"), "orange"),
    (("blue", "yellow"), "green"),
    (("blue", "red"), "purple"),
    (("red", "white"), "pink"),
    (("black", "white"), "gray"),
)


def show_guesses(messages: list[Any], dice: random.Random) -> dict[str, Any]:
    """Numbers from 1 to 8; one of two guesses is made to fit the hints."""
    low, high = 1, 8
    for guess, hint in itertools.pairwise(message["content"] for message in messages[1:]):
        low = max(low, int(guess) + 1) if hint == "higher" else low
        high = min(high, int(guess) - 1) if hint == "lower" else high
    return {"content": str(dice.randint(low, high) if dice.random() < 0.5 else dice.randint(1, 8))}


def show_lookups(messages: list[Any], dice: random.Random) -> dict[str, Any]:
    """Two calls and the answer; one of two calls is of the wrong tool."""
    last = messages[-1]["content"]
    if len(messages) == 5:
        return {"content": last}
    name = last.rstrip(".").rsplit(" ", 1)[-1]
    tools = ("find_owner", "find_city")
    right = tools[len(messages) == 3]
    tool = right if dice.random() < 0.5 else dice.choice(tools)
    call = {"name": tool, "arguments": json.dumps({"name": name})}
    return {"tool_calls": [{"id": f"call{len(messages)}", "type": "function", "function": call}]}


def show_mixtures(messages: list[Any], dice: random.Random) -> dict[str, Any]:
    """One of the options; one of three answers is looked up, the others are drawn."""
    asked, _, listed = messages[-1]["content"].partition(". Choose one: ")
    pair = set(asked.removeprefix("Mix ").split(" and "))
    right = next(mixed for colors, mixed in MIXTURES if set(colors) == pair)
    return {"content": right if dice.random() < 1 / 3 else dice.choice(listed.split(", "))}


DEMONSTRATORS: dict[str, Player] = {
    "guess-a-number": show_guesses,
    "guess-strictly": show_guesses,
    "look-up-twice": show_lookups,
    "mix-colors": show_mixtures,
}
TASKS: dict[str, Play] = {
    "guess-a-number": guess_a_number,
    "guess-strictly": partial(guess_a_number, strictly=True),
    "call-a-tool": call_a_tool,
    "sort-words": sort_words,
    "look-up-twice": look_up_twice,
    "follow-up": follow_up,
    "beat-colors": beat_colors,
    "mix-colors": mix_colors,
}


def called(message: Any) -> tuple[str | None, dict[str, Any]]:
    """The one tool that a message calls, and its arguments."""
    if len(message.tool_calls or []) != 1:
        return None, {}
    function = message.tool_calls[0].function
    try:
        arguments = json.loads(function.arguments)
    except ValueError:
        return None, {}
    return function.name, arguments


def result(message: Any, text: str) -> dict[str, Any]:
    """What the tool that the message calls says."""
    return {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": text}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.own_tasks", description=__doc__)
    parser.add_argument("--task", action="append", choices=sorted(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--base", default=BASE, help="the base model (default: %(default)s)")
    parser.add_argument(
        "--demonstrations",
        type=int,
        default=0,
        help="noisy conversations to fine-tune on",
    )
    options = parser.parse_args()
    rows = []
    for name in options.task or (DEMONSTRATORS if options.demonstrations else TASKS):
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            learned = asyncio.run(
                learn(
                    name,
                    seed=options.seed,
                    steps=options.steps,
                    folder=Path(folder),
                    base=options.base,
                    demonstrations=options.demonstrations,
                )
            )
        print(json.dumps({name: [round(reward, 2) for reward in learned.rewards]}), flush=True)
        shown = f", {options.demonstrations} demonstrations" if options.demonstrations else ""
        at = f"{name}, seed {options.seed}{shown}, {options.steps} steps"
        goal = max(2 * learned.first, LEAST)
        rows += [
            Row(name=f"{at}: first score", ours=learned.first, unit="share"),
            Row(name=f"{at}: last score", ours=learned.last, unit="share", goal=goal),
            Row(name=f"{at}: training", ours=learned.seconds, unit="s"),
        ]
    write_rows("own_tasks", rows)


if __name__ == "__main__":
    main()
