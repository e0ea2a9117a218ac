"""A tenant begins a model where another one of its own stands; the project it names is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tenants_world import World, run_world, secret_of

from art.rendering.library import LibraryRenderer
from art.server.tenancy import internal_name

STEP = 3


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def fork(world: World, who: str, to: str, from_project: str | None) -> httpx.Response:
    """Begin `to` (project/name) with `player` of a project."""
    asked = {"from_name": "player", "from_project": from_project}
    return await world.clients[who].post(f"/art/models/{to}/fork", json=asked)


def weights(world: World, project: str, name: str) -> str | None:
    """What the model's checkpoint holds, by its project's name inside; None: it has no checkpoint."""
    checkpoints = world.control.models.checkpoints_of(project, name)
    if checkpoints.newest() is None:
        return None
    return (checkpoints.path(STEP) / "adapter_model.safetensors").read_text()


@pytest.mark.parametrize("tenant", ["alice", "bob"])
async def test_a_projects_name_means_ones_own(world: World, tenant: str) -> None:
    """All have `games/player`; `elsewhere` is new, and nobody else's comes to be."""
    reply = await fork(world, tenant, "elsewhere/copy", "games")
    assert reply.status_code == 200, reply.text
    assert reply.json()["step"] == STEP and reply.json()["checkpoint_path"] is None
    assert weights(world, internal_name(tenant, "elsewhere"), "copy") == secret_of(tenant)
    assert weights(world, "elsewhere", "copy") is None

    assert (await fork(world, tenant, "games/copy", None)).status_code == 200
    assert weights(world, internal_name(tenant, "games"), "copy") == secret_of(tenant)


async def test_what_one_forked_can_be_forked_again(world: World) -> None:
    assert (await fork(world, "alice", "elsewhere/player", "games")).status_code == 200
    assert (await fork(world, "alice", "third/player", "elsewhere")).status_code == 200
    assert weights(world, "alice~third", "player") == secret_of("alice")
    # The others have no such project, whoever asks for it.
    for who, project in (("bob", "bob~mine"), ("operator", "mine")):
        assert (await fork(world, who, "mine/copy", "elsewhere")).status_code == 404
        assert weights(world, project, "copy") is None


@pytest.mark.parametrize("spelled", ["bob~games", "alice~games", "~games", "bob/games", "../games"])
async def test_no_spelling_reaches_another_tenants_or_the_operators(world: World, spelled: str) -> None:
    reply = await fork(world, "alice", "elsewhere/copy", spelled)
    assert reply.status_code in (400, 404), reply.text
    assert weights(world, "alice~elsewhere", "copy") is None


async def test_the_operator_names_a_tenants_project_in_full(world: World) -> None:
    assert (await fork(world, "operator", "elsewhere/copy", "alice~games")).status_code == 200
    assert weights(world, "elsewhere", "copy") == secret_of("alice")
    assert (await fork(world, "operator", "elsewhere/own", "games")).status_code == 200
    assert weights(world, "elsewhere", "own") == secret_of("operator")
