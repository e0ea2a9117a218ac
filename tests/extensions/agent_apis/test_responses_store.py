"""What is kept of responses: bounded, each tenant's own, found along its chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tenants_world import run_world

from art.errors import NotFoundError
from art.rendering.library import LibraryRenderer
from art_extensions.agent_apis.responses_items import ResponseStore


def response(number: int, previous: int | None = None, *, text: str = "x") -> dict[str, Any]:
    name = f"{number:024x}"
    return {
        "id": f"resp_{name}",
        "previous_response_id": None if previous is None else f"resp_{previous:024x}",
        "output": [{"id": f"msg_{name}", "type": "message", "role": "assistant", "content": text}],
    }


def test_a_conversation_is_put_together_along_its_chain() -> None:
    store = ResponseStore(max_bytes=10**6)
    store.keep(None, response(1, text="a"), [{"content": "1"}])
    store.keep(None, response(2, 1, text="b"), [{"content": "2"}])
    told = [item["content"] for item in store.conversation(None, f"resp_{2:024x}")]
    assert told == ["1", "a", "2", "b"]
    assert store.item(None, f"msg_{1:024x}")["content"] == "a"


def test_the_oldest_go_first_and_their_continuations_say_so() -> None:
    store = ResponseStore(max_bytes=2000)
    store.keep(None, response(1), [])
    store.keep(None, response(2, 1), [])
    for number in range(3, 20):
        store.keep(None, response(number, text="x" * 50), [])
        store.response(None, f"resp_{2:024x}")
    assert store.response(None, f"resp_{19:024x}")
    with pytest.raises(NotFoundError, match=r"00001' \(which 'resp_0+2' continues\) is stored here"):
        store.conversation(None, f"resp_{2:024x}")
    with pytest.raises(NotFoundError, match="stored_responses"):
        store.response(None, f"resp_{3:024x}")


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(max_bytes=500)
    store.keep(None, response(1), [{"content": "x" * 1000}])
    with pytest.raises(NotFoundError):
        store.response(None, f"resp_{1:024x}")


async def test_another_tenants_responses_do_not_exist(tmp_path: Path, renderer: LibraryRenderer) -> None:
    async with run_world(tmp_path, renderer) as world:
        alice, bob = world.clients["alice"], world.clients["bob"]
        asked = {"model": "tiny", "input": "hi"}
        told = (await alice.post("/v1/responses", json=asked)).json()
        assert (await alice.get(f"/v1/responses/{told['id']}")).status_code == 200
        follow = {**asked, "previous_response_id": told["id"]}
        reference = {**asked, "input": [{"type": "item_reference", "id": told["output"][0]["id"]}]}
        for reply in (
            await bob.get(f"/v1/responses/{told['id']}"),
            await bob.get(f"/v1/responses/{told['id']}/input_items"),
            await bob.delete(f"/v1/responses/{told['id']}"),
            await bob.post("/v1/responses", json=follow),
            await bob.post("/v1/responses", json=reference),
        ):
            assert reply.status_code == 404, reply.text
        assert (await alice.post("/v1/responses", json=follow)).status_code == 200
