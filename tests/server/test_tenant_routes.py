"""Every route, asked for what is another's: it does not exist."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.wire.models import RegisterRequest

PLAYER = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


_MODEL_ROUTES = [
    ("GET", "/art/models/{project}/{name}", None),
    ("DELETE", "/art/models/{project}/{name}", None),
    ("POST", "/art/models/{project}/{name}/delete_checkpoints", {"keep_steps": []}),
    ("POST", "/art/models/{project}/{name}/unload_steps", {"keep_steps": []}),
    ("GET", "/art/models/{project}/{name}/checkpoints/3/files", None),
    ("GET", "/art/models/{project}/{name}/checkpoints/3/files/adapter_model.safetensors", None),
    ("POST", "/art/models/mine/new/fork", {"from_name": "{name}", "from_project": "{project}"}),
    (
        "POST",
        "/art/models/{project}/{name}/train",
        {"job_id": "n", "groups": [], "optimizer": {"learning_rate": 1.0}},
    ),
    ("POST", "/art/models/{project}/{name}/unload_steps", {"keep_steps": []}),
    ("POST", "/art/models/{project}/{name}/gradients", {"job_id": "n"}),
    (
        "POST",
        "/art/models/{project}/{name}/step",
        {"job_id": "n", "expected_step": 3, "batches": 0, "optimizer": {"learning_rate": None}, "rate": 0.0},
    ),
    ("POST", "/art/models/{project}/{name}/serve", {"step": 3}),
    ("POST", "/art/models/{project}/{name}/release", None),
    ("GET", "/v1/models/{project}/{name}", None),
    ("POST", "/v1/chat/completions", {**PLAYER, "model": "{project}/{name}"}),
    ("POST", "/v1/chat/completions", {**PLAYER, "model": "{project}/{name}@3"}),
    ("POST", "/v1/chat/completions", {**PLAYER, "model": "{name}", "stream": True}),
    ("POST", "/tokenize", {"model": "{project}/{name}", "prompt": "hello"}),
    ("GET", "/tokenizer_info?model={project}/{name}", None),
    ("POST", "/detokenize", {"model": "{project}/{name}", "tokens": [1]}),
    ("GET", "/art/jobs/{job}", None),
    ("GET", "/art/jobs/{job}/events", None),
    ("GET", "/v1/samples/{sample}", None),
    ("GET", "/v1/responses/{response}", None),
    ("DELETE", "/v1/responses/{response}", None),
    ("GET", "/v1/responses/{response}/input_items", None),
    ("POST", "/art/rollouts", {"project": "{project}", "name": "{name}"}),
    ("GET", "/art/rollouts/theirs", None),
    ("POST", "/art/rollouts/theirs/close", None),
    ("DELETE", "/art/rollouts/theirs", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "body"), _MODEL_ROUTES)
@pytest.mark.parametrize("project", ["hidden", "bob~hidden", "operatorhidden"])
async def test_what_is_anothers_does_not_exist(
    world: World, method: str, path: str, body: dict[str, Any] | None, project: str
) -> None:
    for name in ("bob~hidden", "operatorhidden"):
        world.catalog.publish(name, "secretmodel", "tiny", 3, f"{name}/secretmodel@3")
        request = RegisterRequest(project=name, name="secretmodel", base_model="tiny")
        world.control.models.register(request, "tiny")
    foreign = (await world.clients["bob"].post("/v1/chat/completions", json=PLAYER)).json()["choices"][0][
        "sample_id"
    ]
    theirs = {"project": "games", "name": "player", "rollout_id": "theirs"}
    assert (await world.clients["bob"].post("/art/rollouts", json=theirs)).status_code == 200
    told = (await world.clients["bob"].post("/v1/responses", json={"model": "player", "input": "hi"})).json()
    fill = {"project": project, "name": "secretmodel", "job": "bob~j", "sample": foreign}
    fill["response"] = told["id"]
    text = json.dumps(body) if body else None
    for word, value in fill.items():
        path = path.replace(f"{{{word}}}", value)
        text = text.replace(f"{{{word}}}", value) if text else None
    for asked in (text, text.replace('"n"', '"j"') if text else None):
        reply = await world.clients["alice"].request(method, path, content=asked)
        unfit = "~" in project and ("fork" in path or path == "/art/rollouts")
        assert reply.status_code in ((400, 404) if unfit else (404,)), reply.text
        assert "operatorhidden" not in reply.text.replace(project, "")
        assert "bob" not in reply.text.replace(project, "").replace("bob~j", "")
    for key in ("", "wrong", OPERATOR + "x"):
        async with world.client(key) as stranger:
            reply = await stranger.request(method, path, content=text)
        assert reply.status_code == 401


async def test_the_routes_above_are_all_of_them(world: World) -> None:
    """A new route must be added to the list, or be one of those that name nothing of anybody."""
    found = {route.path for route in world.app._routes.routes}  # type: ignore[attr-defined]
    nameless = {
        "/openapi.json",
        "/metrics",
        "/version",
        "/v1/models",
        "/art/models",
        "/art/base_models",
        "/art/jobs",
        "/art/ui-link",
        "/v1/rollouts/{rollout_id:path}",
    }
    operators = {"/art/models/{project}/{name}/adopt", "/art/cluster/drain"}
    same_as_train = {f"/art/models/{{project}}/{{name}}/{verb}" for verb in ("train_sft", "train_extension")}
    listed = {path for _, path, _ in _MODEL_ROUTES}
    shapes = {
        "/tokenizer_info": "/tokenizer_info?model={project}/{name}",
        "/v1/models/{model:path}": "/v1/models/{project}/{name}",
        "/v1/samples/{sample_id}": "/v1/samples/{sample}",
        "/v1/responses/{response_id}": "/v1/responses/{response}",
        "/v1/responses/{response_id}/input_items": "/v1/responses/{response}/input_items",
        "/art/rollouts/{rollout_id}": "/art/rollouts/theirs",
        "/art/rollouts/{rollout_id}/close": "/art/rollouts/theirs/close",
        "/art/jobs/{job_id}": "/art/jobs/{job}",
        "/art/jobs/{job_id}/events": "/art/jobs/{job}/events",
        "/art/models/{project}/{name}/fork": "/art/models/mine/new/fork",
        "/art/models/{project}/{name}/checkpoints/{step:int}/files": (
            "/art/models/{project}/{name}/checkpoints/3/files"
        ),
        "/art/models/{project}/{name}/checkpoints/{step:int}/files/{file}": (
            "/art/models/{project}/{name}/checkpoints/3/files/adapter_model.safetensors"
        ),
    }
    assert {shapes.get(path, path) for path in found} - nameless - operators - same_as_train <= listed
    reply = await world.clients["alice"].post("/art/models/games/player/adopt", json={"steps": [1]})
    assert reply.status_code == 403
