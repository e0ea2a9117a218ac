"""A server whose sampling parameters are two more, by two lines in the file that declares them; prints `fits`
when each of its parts takes them.

`made_up` is one that the trainer does not compute, `bent` one that it does. Their names stand nowhere else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

DECLARED = {
    "    constraint: Constraint | None = None\n": (
        "    bent: Annotated[float, Parameter(values=Number(0, 8, above=True))] = 1.0\n"
    ),
    "    stop: Annotated[tuple[str, ...]": (
        "    made_up: Annotated[int, Parameter(values=Whole(-3, 9), routes=_OPENAI)] = 0\n"
    ),
}
"""Before which line of the declaration each new one stands."""


def declare() -> None:
    """Load the declaration with the new lines, before anything has imported it."""
    assert not [name for name in sys.modules if name.startswith("art.")]
    spec = find_spec("art.wire.sampling")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    for line, new in DECLARED.items():
        assert source.count(line) == 1, line
        source = source.replace(line, new + line)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)


async def check() -> None:
    """Ask the server in each dialect."""
    from chat_folder import write_chat_folder
    from live import run_gateway
    from scripted_engine import Script, ScriptedEngine

    from art.rendering.registry import create_chat_renderer

    with tempfile.TemporaryDirectory() as folder:
        renderer = create_chat_renderer(write_chat_folder(Path(folder)), name="tiny")
        engine = ScriptedEngine(lambda request: Script(ids=renderer.encode("hello<|im_end|>")))
        async with run_gateway(Path(folder) / "ledger.sqlite", engine, renderer) as live:
            await check_refusals(live.url)
            await check_document(live.url)
            for path, names in ROUTES.items():
                sample = await ask(live.url, path, {name: GIVEN[name] for name in names})
                check_engine(engine.requests[-1], names)
                (record,) = await live.ledger.samples([sample])
                check_record(record, names)


GIVEN: dict[str, Any] = {"made_up": 5, "bent": 2.5}
BODY: dict[str, Any] = {"model": "player", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
ROUTES: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("made_up", "bent"),
    "/v1/completions": ("made_up", "bent"),
    "/v1/responses": ("made_up", "bent"),
    "/v1/messages": ("bent",),
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"model": "player", "prompt": "hello", "max_tokens": 9},
    "/v1/responses": {"model": "player", "input": "hello", "max_output_tokens": 9},
    "/v1/messages": BODY,
}


async def post(url: str, path: str, fields: dict[str, Any]) -> Any:
    import httpx
    from live import KEY

    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        if path == "/openapi.json":
            return (await client.get(path)).json()
        return (await client.post(path, json={**BODIES[path], **fields})).json()


async def ask(url: str, path: str, fields: dict[str, Any]) -> str:
    reply = await post(url, path, fields)
    choice = reply["choices"][0] if "choices" in reply else reply
    return str(choice["sample_id"])


async def check_refusals(url: str) -> None:
    """What is out of bounds is refused in the words of any other parameter."""
    for field, value, problem in (
        ("made_up", 10, "made_up must be a whole number from -3 to 9, not 10"),
        ("made_up", True, "made_up must be a whole number from -3 to 9, not True"),
        ("bent", 0, "bent must be a number above 0 to 8, not 0"),
    ):
        error = (await post(url, "/v1/chat/completions", {field: value}))["error"]
        assert error["message"] == problem and error["param"] == field, error
    anthropic = await post(url, "/v1/messages", {"made_up": 5})
    assert "'made_up' is not supported" in anthropic["error"]["message"]


async def check_document(url: str) -> None:
    document = await post(url, "/openapi.json", {})
    schemas = {
        "made_up": {"type": "integer", "minimum": -3, "maximum": 9},
        "bent": {"type": "number", "exclusiveMinimum": 0, "maximum": 8},
    }
    for path, names in ROUTES.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        fields = content["schema"]["properties"]
        for name, schema in schemas.items():
            told = {"anyOf": [schema, {"type": "null"}]} if name in names else None
            assert fields.get(name) == told, (path, name)


def check_engine(request: Any, names: tuple[str, ...]) -> None:
    """The engine is asked for it: in this process, behind a worker's connection, and in vLLM's words."""
    import orjson
    from pydantic import ValidationError

    from art.engine.frames import generate_message, read_request
    from art.wire.engine import GenerateMessage
    from art_extensions.vllm.client import completion_body, score_body

    message = orjson.loads(orjson.dumps(generate_message("7", request)))
    read = read_request(GenerateMessage.model_validate(message))
    body = completion_body(request, "player", 9)
    for name, default in (("made_up", 0), ("bent", 1.0)):
        value = GIVEN[name] if name in names else default
        assert getattr(request.sampling, name) == getattr(read.sampling, name) == body[name] == value
        assert (name in message["sampling"]) == (name in names)
        assert score_body([1, 2], "player")[name] == default
    try:
        GenerateMessage.model_validate({**message, "sampling": {"max_tokens": 1, "made_up": 10}})
    except ValidationError as error:
        assert error.errors()[0]["loc"] == ("sampling", "made_up")
    else:
        raise AssertionError("the worker took a value out of bounds")


def check_record(record: Any, names: tuple[str, ...]) -> None:
    """The ledger has it, and the trainer is told, or told that it cannot compute it."""
    from dataclasses import replace

    from art.batch.batch_types import Untrainable
    from art.server.jobs.train_rows import sampling_distribution
    from art.wire.algorithm import Algorithm
    from art.wire.training import TrainRequest

    for name in GIVEN:
        assert record.sampling.get(name) == (GIVEN[name] if name in names else None)
    drawn = sampling_distribution(record, Algorithm())
    if "made_up" in names:
        assert drawn == Untrainable(reason="unknown", drawn="made_up = 5")
        trained = {name: value for name, value in record.sampling.items() if name != "made_up"}
        drawn = sampling_distribution(replace(record, sampling=trained), Algorithm())
    assert getattr(drawn, "bent", None) == (GIVEN["bent"] if "bent" in names else 1.0)
    asked = {"model": "games/player", "step": 3, "optimizer": {"learning_rate": 1e-3}, "normalizer": 1.0}
    request = TrainRequest.model_validate({**asked, "sampling": [drawn]})
    assert TrainRequest.model_validate_json(request.model_dump_json()).sampling == [drawn]


if __name__ == "__main__":
    declare()
    asyncio.run(check())
    print("fits")
