"""Names, use, loading on demand."""

from __future__ import annotations

import asyncio

import pytest
from scripted_engine import ScriptedEngine

from art.errors import ConfigurationError, DeadlineError, NotFoundError, ServerError
from art.rendering.library import LibraryRenderer
from art.server.catalog import Catalog, Serving


@pytest.fixture
def catalog(engine: ScriptedEngine, renderer: LibraryRenderer) -> Catalog:
    made = Catalog()
    made.add_base("art/tiny", engine, renderer, max_context=64, aliases=["art/t"])
    return made


async def test_the_bare_name_moves_with_each_publish(catalog: Catalog) -> None:
    for step in (0, 1, 2):
        catalog.publish("p", "m", "art/tiny", step, f"p/m@{step}")
        assert (await catalog.resolve("m")).adapter == f"p/m@{step}"
    assert (await catalog.resolve("m@1")).adapter == "p/m@1"
    assert (await catalog.resolve("p/m@0")).step == 0
    assert (await catalog.resolve("art/t")).name == "art/tiny"


async def test_a_name_in_two_projects_needs_its_project(catalog: Catalog) -> None:
    catalog.publish("p", "m", "art/tiny", 0, "p/m@0")
    assert catalog.names.shown("p", "m") == "m"
    catalog.publish("q", "m", "art/tiny", 0, "q/m@0")
    assert catalog.names.shown("p", "m") == "p/m"
    assert (await catalog.resolve("q/m")).adapter == "q/m@0"
    with pytest.raises(NotFoundError, match="p/m, q/m"):
        await catalog.resolve("m")


async def test_retired_steps_are_loaded_again_once_for_all_who_ask(catalog: Catalog) -> None:
    loads = []

    async def load(project: str, name: str, step: int) -> str:
        loads.append(step)
        await asyncio.sleep(0.01)
        if step > 1:
            raise NotFoundError("gone", status=404)
        return f"{project}/{name}@{step}"

    catalog.load_missing = load
    catalog.publish("p", "m", "art/tiny", 0, "p/m@0")
    catalog.publish("p", "m", "art/tiny", 1, "p/m@1")
    assert catalog.retire("p", "m", 0) == "p/m@0"
    targets = await asyncio.gather(*(catalog.resolve("m@0") for _ in range(5)))
    assert [t.adapter for t in targets] == ["p/m@0"] * 5
    assert loads == [0]
    with pytest.raises(NotFoundError, match="gone"):
        await catalog.resolve("m@7")
    with pytest.raises(ConfigurationError, match="newest"):
        catalog.retire("p", "m", 1)


@pytest.mark.parametrize("asked", ["m", "p/m", "m@0"])
async def test_who_asks_for_an_expected_model_waits_for_it(catalog: Catalog, asked: str) -> None:
    catalog.expected.add("p", "m")
    waits, fails = (asyncio.create_task(catalog.resolve(name)) for name in (asked, "another"))
    await asyncio.sleep(0)
    catalog.publish("p", "m", "art/tiny", 0, "p/m@0")
    catalog.expected.end("p", "m")
    assert (await waits).adapter == "p/m@0"
    with pytest.raises(NotFoundError, match="'another' is not served here"):
        await fails


async def test_an_expected_base_is_waited_for_by_all_its_names(
    engine: ScriptedEngine, renderer: LibraryRenderer
) -> None:
    catalog = Catalog()
    catalog.expected.add_base("art/tiny", "art/t")
    waits = [asyncio.create_task(catalog.resolve(name)) for name in ("art/tiny", "art/t")]
    await asyncio.sleep(0)
    catalog.add_base("art/tiny", engine, renderer, max_context=64, aliases=["art/t"])
    catalog.expected.end_base("art/tiny", "art/t")
    assert [one.name for one in await asyncio.gather(*waits)] == ["art/tiny"] * 2


async def test_an_expected_model_that_cannot_be_served_is_not_found(catalog: Catalog) -> None:
    catalog.expected.add("p", "m")
    waits = asyncio.create_task(catalog.resolve("m"))
    await asyncio.sleep(0)
    catalog.expected.end("p", "m")
    with pytest.raises(NotFoundError, match="'m' is not served here"):
        await waits


async def test_another_tenant_does_not_learn_what_is_expected(catalog: Catalog) -> None:
    catalog.expected.add("alice~p", "m")
    catalog.expected.add_base("art/next")
    for asked in ("m", "p/m", "art/next"):
        with pytest.raises(NotFoundError):
            await catalog.resolve(asked, "bob")


async def test_a_model_that_takes_too_long_is_asked_for_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.server.catalog.EXPECTED_SECONDS", 0.01)
    catalog.expected.add("p", "m")
    with pytest.raises(ServerError, match=r"still being loaded after 0\.01 s: ask again") as found:
        await catalog.resolve("m")
    assert found.value.status == 503


async def test_a_client_that_goes_away_does_not_end_a_load(catalog: Catalog) -> None:
    release = asyncio.Event()

    async def load(project: str, name: str, step: int) -> str:
        await release.wait()
        return "p/m@0"

    catalog.load_missing = load
    catalog.publish("p", "m", "art/tiny", 1, "p/m@1")
    gone, waits = (asyncio.create_task(catalog.resolve("m@0")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    release.set()
    assert (await waits).adapter == "p/m@0"


async def test_an_adapter_is_drained_when_its_last_request_ended(catalog: Catalog) -> None:
    catalog.publish("p", "m", "art/tiny", 0, "p/m@0")
    target = await catalog.resolve("m")
    await catalog.wait_until_unused("p/m@0", timeout=0.01)
    with catalog.using(target):
        with catalog.using(target):
            with pytest.raises(DeadlineError, match="2 requests"):
                await catalog.wait_until_unused("p/m@0", timeout=0.01)
        waiting = asyncio.create_task(catalog.wait_until_unused("p/m@0", timeout=60))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_a_new_engine_keeps_only_what_it_has_loaded(catalog: Catalog, engine: ScriptedEngine) -> None:
    for step in (0, 1):
        catalog.publish("p", "m", "art/tiny", step, f"p/m@{step}")
    other = ScriptedEngine(engine.answer)
    catalog.replace_engine("art/tiny", other, adapters=["p/m@1"])
    assert (await catalog.resolve("m")).engine is other
    assert catalog.loaded_steps("p", "m") == {1: "p/m@1"}
    with pytest.raises(NotFoundError):
        await catalog.resolve("m@0")


async def test_refusals(catalog: Catalog) -> None:
    with pytest.raises(ConfigurationError, match="'other'"):
        catalog.publish("p", "m", "other", 0, None)
    catalog.publish("p", "m", "art/tiny", 0, None)
    assert catalog.remove("p", "m") == []
    with pytest.raises(NotFoundError):
        await catalog.resolve("m")


async def test_a_model_may_be_served_otherwise_than_its_base(
    catalog: Catalog, renderer: LibraryRenderer
) -> None:
    quiet = renderer.with_arguments({"enable_thinking": False})
    catalog.publish("p", "m", "art/tiny", 0, "p/m@0")
    catalog.publish("q", "m", "art/tiny", 0, "q/m@0")
    catalog.serve_as("p", "m", Serving(renderer=quiet, max_context=32))
    mine, other, base = [await catalog.resolve(name) for name in ("p/m@0", "q/m", "art/t")]
    assert (mine.renderer, mine.max_context) == (quiet, 32)
    assert (other.renderer, other.max_context) == (base.renderer, base.max_context) == (renderer, 64)
    catalog.serve_as("p", "m", Serving(max_context=4096))
    assert (await catalog.resolve("p/m")).max_context == 64  # never more than the base
