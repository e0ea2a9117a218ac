"""Run with pytest: each task can teach something. `art harbor check tasks` says the same."""

from __future__ import annotations

import asyncio

from art.environments.adapters.registry import find_environment


def test_the_solution_earns_more_than_nothing_does() -> None:
    environment = find_environment("harbor:tasks")
    for scenario in [*environment.scenarios("train"), *environment.scenarios("val")]:
        assert asyncio.run(environment.score(scenario, "oracle")) == 1.0
        assert asyncio.run(environment.score(scenario, "nop")) == 0.0
