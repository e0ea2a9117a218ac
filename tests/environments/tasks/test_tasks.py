from __future__ import annotations

import subprocess
import sys

import pytest

from art.environments import tasks
from art.environments.tasks import turn_seed
from art.errors import ConfigurationError


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_task_has_the_whole_face(name: str) -> None:
    task = tasks.find(name)
    assert task.NAME == name
    world = task.environment(task.scenario(0, 0), 0)
    assert world.opening and not world.done
    assert task.DEFAULTS.groups * task.DEFAULTS.group_size * task.DEFAULTS.steps > 0
    assert isinstance(task.show(world.opening), str)
    while not world.done:
        world.reply({"role": "assistant", "content": "no idea"})
    assert task.SCORE in world.metrics


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'chess'.*tic-tac-toe, yes-no-maybe, mail"):
        tasks.find("chess")


def test_turn_seeds_are_pure_and_differ() -> None:
    seeds = {turn_seed(seed, turn) for seed in range(50) for turn in range(5)}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert turn_seed(0, 0) == turn_seed(0, 0)


@pytest.mark.slow
def test_tasks_load_nothing_heavy() -> None:
    program = (
        "import sys, art.environments.tasks as t; [t.find(name) for name in t.NAMES]; "
        "print([m for m in ('torch', 'transformers', 'openai', 'renderers') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("name", tasks.NAMES)
def test_the_learning_rate_rises_then_falls_to_its_final_share(name: str) -> None:
    defaults = tasks.find(name).DEFAULTS
    rates = [defaults.rate_at(step) for step in range(defaults.steps)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[0] < rates[peak] <= defaults.learning_rate
    assert rates[-1] == pytest.approx(defaults.learning_rate * defaults.final_share, rel=0.3)
    assert defaults.rate_at(5, steps=10, learning_rate=1.0) == pytest.approx(1 - 0.8 / 2)
