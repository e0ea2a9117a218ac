from __future__ import annotations

import pytest

from art.environments.tasks import yes_no_maybe as task


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("maybe", 1.0),
        ("no", 0.75),
        ("yes", 0.5),
        (" Maybe.\n", 1.0),
        ("perhaps", 0.0),
        ("", 0.0),
        ("yes no", 0.0),
    ],
)
def test_rewards(text: str, reward: float) -> None:
    world = task.environment(task.scenario(0, 0))
    assert world.reply({"role": "assistant", "content": text}) == []
    assert (world.done, world.reward) == (True, reward)
    assert sum(world.metrics.values()) == 1.0
    assert world.metrics["invalid"] == float(reward == 0.0)


def test_the_question_is_put_in_many_ways_each_naming_two_or_three_of_the_words() -> None:
    phrasings = task.phrasings()
    assert len(phrasings) == len(set(phrasings)) == 120
    assert all(
        2 <= sum(word in prompt.split("with ")[1] for word in task.REWARDS) <= 3 for prompt in phrasings
    )


def test_scenarios_are_a_function_of_seed_and_index() -> None:
    assert task.scenario(3, 7) == task.scenario(3, 7)
    assert len({task.scenario(3, index).prompt for index in range(50)}) > 20
