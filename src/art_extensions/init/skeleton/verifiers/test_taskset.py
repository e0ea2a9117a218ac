"""Run with pytest: the taskset as ART finds it."""

from __future__ import annotations

from art.environments.adapters.registry import find_environment


def test_each_task_is_in_one_split() -> None:
    environment = find_environment("verifiers:say_words", harness="null")
    train, val = ({one.id for one in environment.scenarios(split)} for split in ("train", "val"))
    assert len(train | val) == 30 and not train & val
