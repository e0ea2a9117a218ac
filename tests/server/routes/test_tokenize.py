"""/tokenize, /detokenize, /tokenizer_info and /version, as tools for vLLM ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from chat_folder import CHATML, write_chat_folder
from jinja2 import Template
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.server.catalog import Serving

HI = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def test_a_text_becomes_ids_and_ids_the_text(world: World, renderer: LibraryRenderer) -> None:
    client = world.clients["alice"]
    asked = {"model": "player", "prompt": "hello <|im_end|>", "return_token_strs": True}
    reply = (await client.post("/tokenize", json=asked)).json()
    assert reply["tokens"] == renderer.encode("hello <|im_end|>") and reply["count"] == len(reply["tokens"])
    assert reply["max_model_len"] == 4096 and "".join(reply["token_strs"]) == "hello <|im_end|>"
    back = await client.post("/detokenize", json={"model": "player", "tokens": reply["tokens"]})
    assert back.json() == {"prompt": "hello <|im_end|>"}


async def test_a_conversation_becomes_the_ids_of_its_prompt(world: World) -> None:
    client = world.clients["alice"]
    asked = {"model": "player", "messages": HI, "tools": [TOOL]}
    reply = (await client.post("/tokenize", json=asked)).json()
    assert reply["token_strs"] is None
    done = (await client.post("/v1/chat/completions", json=asked)).json()
    sample = (await client.get(f"/v1/samples/{done['choices'][0]['sample_id']}")).json()
    assert reply["tokens"] == sample["prompt_ids"]
    bare = (await client.post("/tokenize", json={**asked, "add_generation_prompt": False})).json()["tokens"]
    assert len(bare) < reply["count"] and reply["tokens"][: len(bare)] == bare


async def test_only_what_one_is_served_is_tokenized(world: World) -> None:
    client = world.clients["alice"]
    for path, more in (("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [1]})):
        for name, status in (("games/nobody", 404), ("bob~games/player", 404), ("", 400), ("idle", 404)):
            assert (await client.post(path, json={"model": name, **more})).status_code == status, name
        # To a tenant one base model is served; to the operator two.
        assert (await client.post(path, json=more)).status_code == 200
        async with world.client(OPERATOR) as operator:
            assert (await operator.post(path, json=more)).json()["error"]["param"] == "model"
        async with world.client("wrong") as stranger:
            assert (await stranger.post(path, json=more)).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"messages": HI, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": HI, "temperature": 1}, "temperature"),
        ("/tokenize", {"prompt": "hello " * 200_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_named(
    world: World, path: str, more: dict[str, object], param: str
) -> None:
    reply = await world.clients["alice"].post(path, json={"model": "player", **more})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_the_tokenizer_tells_its_special_tokens_and_no_folder(world: World) -> None:
    client, bare = world.clients["alice"], {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    told = (await client.get("/tokenizer_info?model=player")).json()
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096}
    assert told == {**bare, **own}
    assert (await client.get("/tokenizer_info")).json() == told  # of the one base model
    async with world.client(OPERATOR) as operator:
        assert (await operator.get("/tokenizer_info")).json()["error"]["param"] == "model"
    for name, status in (("idle", 404), ("bob~games/player", 404), ("", 400)):
        assert (await client.get("/tokenizer_info", params={"model": name})).status_code == status, name
    async with world.client("wrong") as stranger:
        assert (await stranger.get("/tokenizer_info")).status_code == 401


@pytest.mark.slow
async def test_the_told_template_writes_the_prompt_and_is_the_models_own(
    world: World, tmp_path: Path
) -> None:
    folder = write_chat_folder(tmp_path / "chatml", marker=None, chat_template=CHATML, model_type="none")
    renderer, client = create_chat_renderer(folder), world.clients["alice"]
    shorter = CHATML.replace("assistant", "a")
    for template, form in (
        (CHATML, renderer),
        (shorter, renderer.with_arguments({}, template=shorter)),
    ):
        world.catalog.serve_as("alice~games", "player", Serving(renderer=form))
        reply = await client.get("/tokenizer_info?model=player")
        assert reply.json()["chat_template"] == template and str(tmp_path) not in reply.text
        told = Template(reply.json()["chat_template"])
        prompt = told.render(messages=HI, add_generation_prompt=True)
        asked = await client.post("/tokenize", json={"model": "player", "messages": HI})
        again = await client.post("/tokenize", json={"model": "player", "prompt": prompt})
        assert asked.json()["tokens"] == again.json()["tokens"]
    others = (await world.clients["bob"].get("/tokenizer_info?model=player")).json()
    assert "chat_template" not in others


async def test_the_version_is_told_to_those_with_a_key(world: World) -> None:
    told = (await world.clients["alice"].get("/version")).json()
    assert told == {"version": (await world.clients["alice"].get("/health")).json()["version"]}
    async with world.client("wrong") as stranger:
        assert (await stranger.get("/version")).status_code == 401


async def test_what_no_context_holds_is_refused_before_it_is_read(world: World) -> None:
    client = world.clients["alice"]
    many = await client.post("/detokenize", json={"model": "player", "tokens": [1] * ((1 << 17) + 1)})
    assert many.status_code == 400 and many.json()["error"]["code"] == "context_length_exceeded"
    arguments = {f"argument_{number}": 1 for number in range(129)}
    for path in ("/tokenize", "/v1/chat/completions"):
        body = {"model": "player", "messages": HI, "chat_template_kwargs": arguments}
        reply = await client.post(path, json=body)
        assert reply.status_code == 400 and "has 129 entries; at most 128" in reply.text, path
