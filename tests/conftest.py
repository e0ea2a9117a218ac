"""What tests of more than one room need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads the environment once in a process: other tests' must not stay, nor this one's."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()
