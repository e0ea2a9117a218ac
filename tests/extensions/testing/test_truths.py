"""What the truths of the tasks say of attempts, held against the tasks' own referees."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from art.environments import tasks
from art_extensions.testing import KnownQualities, fingerprint, mail, tic_tac_toe
from art_extensions.testing.truthful_judge import quality_of


def played(task: Any, scenario: Any, choose: Any) -> tuple[list[dict[str, Any]], float]:
    """The messages of one attempt whose assistant messages `choose` makes, and the task's reward."""
    world = task.environment(scenario, seed=scenario.index)
    messages = list(world.opening)
    while not world.done:
        messages.append(choose(messages))
        messages += world.reply(messages[-1])
    return messages, world.reward


def test_every_game_gets_the_quality_of_its_reward() -> None:
    game, dice = tasks.find("tic-tac-toe"), random.Random(0)
    rewards = set()

    def move(messages: list[dict[str, Any]]) -> dict[str, Any]:
        board = messages[-1]["content"].split("\n")[-3:]
        free = [
            r + str(i + 1)
            for r, row in zip("ABC", board, strict=True)
            for i in range(3)
            if row.split()[i + 1] == "."
        ]
        return {"role": "assistant", "content": dice.choice(free) if dice.random() < 0.95 else "A1 or B2"}

    for index in range(300):
        messages, reward = played(game, game.scenario(0, index), move)
        rewards.add(reward)
        assert tic_tac_toe(messages) == quality_of(reward), game.show(messages)
    assert rewards == {-1.0, 0.0, 0.5, 1.0}


def test_every_answered_mail_gets_the_quality_of_its_reward_but_lucky_guesses_do_not() -> None:
    post, dice = tasks.find("mail"), random.Random(0)
    rewards, lucky = set(), 0
    for index in range(400):
        scenario: Any = post.scenario(0, index)
        wanted, other = scenario.wanted, dice.choice(scenario.inbox)
        name = dice.choice([wanted.name, wanted.name.upper(), other.name])
        calls = [("search", "keyword", wanted.project), ("read", "id", dice.choice([wanted, other]).id)]
        calls = [*calls[: dice.randrange(3)], dice.choice([("answer", "text", name), ("post", "x", "y")])]
        script = iter(calls)

        def step(messages: list[dict[str, Any]], script: Any = script) -> dict[str, Any]:
            tool, parameter, value = next(script)
            function = {"name": tool, "arguments": json.dumps({parameter: value})}
            return {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            }

        messages, reward = played(post, scenario, step)
        was_read = calls[1:] and calls[1][2] == wanted.id and len(calls) == 3
        lucky += reward == 1 and not was_read
        assert mail(messages) == quality_of(reward if was_read or reward < 1 else 0.0), post.show(messages)
        rewards.add(reward)
    assert rewards == {-1.0, 0.0, 1.0} and lucky > 10


def test_words_without_a_call_are_a_broken_answer() -> None:
    asked = {"role": "user", "content": "Who is the owner of amber?"}
    assert mail([asked, {"role": "assistant", "content": "alice"}]) == 0.0
    with pytest.raises(ValueError, match="mail task"):
        mail([{"role": "user", "content": "What?"}])


def test_a_fingerprint_ignores_ids_and_spelling_of_arguments_alone() -> None:
    def call(identity: str, arguments: Any) -> list[dict[str, Any]]:
        function = {"name": "read", "arguments": arguments}
        return [
            {"role": "assistant", "content": None, "tool_calls": [{"id": identity, "function": function}]}
        ]

    one = fingerprint(call("a", '{"id": "b7", "n": 1}'))
    assert one == fingerprint(call("z", '{"n":1,"id":"b7"}'))
    assert one != fingerprint(call("a", '{"id": "b8", "n": 1}'))
    assert one != fingerprint(call("a", "{broken"))


def test_what_was_noted_is_known_and_contradictions_are_refused() -> None:
    truth, messages = KnownQualities(), [{"role": "user", "content": "hi"}]
    truth.note(messages, 0.5)
    truth.note([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], 0.5)
    assert truth(messages) == 0.5
    with pytest.raises(ValueError, match=r"0\.5"):
        truth.note(messages, 0.6)
    with pytest.raises(KeyError):
        truth([])
