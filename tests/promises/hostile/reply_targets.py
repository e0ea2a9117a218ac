"""Targets: what others answer (judges, teachers, MCP servers, environments, models), and what is compiled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import httpx
from hostile_inputs import corpus_of
from places import Place

from art.engine.constraints import Grammars

PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}]
VOCABULARY = 512
ADDRESS = "http://127.0.0.1:9"
USER = {"role": "user", "content": "hello"}


def judge_reply(content: bytes, place: Place) -> object:
    from art.rewards.llm.request import json_in
    from art.rewards.ruler_scorer import read_ruler_answer
    from art_extensions.rubric.rubric import read_verdicts

    found = json_in(content.decode("utf-8", "replace"))
    wanted = ("1", "2")
    answers = []
    for read in (read_ruler_answer, read_verdicts):
        with suppress(ValueError):  # the other question's form
            answers.append(read(found, wanted))
    if not answers:
        raise ValueError("no score")
    return answers


class _Pieces(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body in pieces of 1,000 bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), 1000):
            yield self._body[start : start + 1000]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in iter(self):
            yield piece


def _server_of(content: bytes) -> httpx.MockTransport:
    """A server: a first line has the status and how the body is packed, then comes the body."""
    first, _, body = content.partition(b"\n")
    status, _, packing = first.decode("utf-8", "replace").partition(" ")

    def answer(request: httpx.Request) -> httpx.Response:
        code = int(status) if status in ("200", "404", "500") else 200
        return httpx.Response(code, headers={"content-encoding": packing.encode()}, stream=_Pieces(body))

    return httpx.MockTransport(answer)


def _client_of(content: bytes) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=ADDRESS, transport=_server_of(content))


def schema_reply(content: bytes, place: Place) -> object:
    from art_extensions.environments.openenv import read_schema

    with httpx.Client(transport=_server_of(content)) as client:
        return read_schema(client, "openenv:it", ADDRESS, 5.0)


def provider_reply(content: bytes, place: Place) -> object:
    from art_extensions.publish.deployment_providers import ask_provider

    with httpx.Client(transport=_server_of(content)) as client:
        return ask_provider(client, "GET", f"{ADDRESS}/fine-tunes", None)


def environment_reply(content: bytes, place: Place) -> object:
    from art_extensions.environments.environment_server import EnvironmentServer, ServerSession

    async def ask() -> object:
        async with _client_of(content) as client:
            server = EnvironmentServer("it", deadline_s=5.0, connections=1)
            return await ServerSession("it", client, server, asyncio.Semaphore(1), 5.0).ask("/verify", {})

    return asyncio.run(ask())


def teacher_reply(content: bytes, place: Place) -> object:
    from art.server.jobs.http_teacher import HttpTeacher
    from art.server.settings import TeacherSettings
    from art.wire.algorithm import TeacherSpec

    spec = TeacherSpec(kind="server", url="http://127.0.0.1:9/v1", model="teacher")
    teacher, row = HttpTeacher(spec, TeacherSettings(attempts=1)), [5, 6, 7]

    async def ask() -> object:
        async with _client_of(content) as client:
            return teacher._read(row, await teacher._ask(client, row))

    return asyncio.run(ask())


def server_reply(content: bytes, place: Place) -> object:
    """An error that whatever stands before a server (a proxy, another program) answers."""
    from art.client.http.connection import _body
    from art_extensions.compat.call_decorators import _error_detail

    reply = httpx.Response(502, content=content)
    return _body(reply), asyncio.run(_error_detail(reply))


def captured_reply(content: bytes, place: Place) -> object:
    """What an agent's own client got from whatever endpoint: it is recorded, or left alone."""
    from art.recording.captured_reply import read_reply

    return [
        read_reply(dialect, content, streamed=streamed)  # type: ignore[arg-type]  # each of them
        for dialect in ("chat_completions", "completions", "responses", "messages")
        for streamed in (False, True)
    ]


def model_reply(content: bytes, place: Place) -> object:
    """The text of a completion: thoughts, calls, special tokens."""
    from art.rendering.tool_text import read_listed_calls

    chat = place.renderer
    ids = chat.encode(content.decode("utf-8", "replace"))
    prompt = chat.render([USER], TOOLS)
    read = [
        chat.parse(ids, prompt, TOOLS, partial=partial, constrained=constrained)
        for partial in (False, True)
        for constrained in (False, True)
    ]
    return [read_listed_calls(one, partial=False, constrained=False) for one in read]


def call_arguments(content: bytes, place: Place) -> object:
    """The arguments of a model's call, where programs of ours read them."""
    from art.environments.tasks.mail import parse_call
    from art_extensions.atif.steps import _call
    from art_extensions.environments.bfcl import _is_object
    from art_extensions.environments.openenv import OpenEnvEnvironment
    from art_extensions.environments.openenv_tools import ActionTools, InvalidActionError
    from art_extensions.scenarios.mcp.rollout import _arguments
    from art_extensions.token_views.rendered_again import _with_read_arguments

    text = content.decode("utf-8", "replace")
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": text}}
    parse_call(call)
    _call(call)
    _is_object({"search": text})
    with suppress(InvalidActionError):  # the model is told
        ActionTools([], listed=True).action_of("search", text)
    one_field = SimpleNamespace(_action="move", _fields={"move": {"type": "object"}})
    with suppress(InvalidActionError):
        OpenEnvEnvironment._action_of(one_field, text)  # type: ignore[arg-type]  # what it reads of itself
    _with_read_arguments({"role": "assistant", "tool_calls": [call]})
    return _arguments(text)


def generated_scenarios(content: bytes, place: Place) -> object:
    from art_extensions.scenarios.mcp.types import GeneratedScenarioCollection

    return GeneratedScenarioCollection.from_json(content.decode("utf-8", "replace"))


def mcp_server(content: bytes, place: Place) -> object:
    """A program that answers each line with the next one of the input."""
    from art_extensions.scenarios.mcp.rollout import OfferedTools
    from art_extensions.scenarios.mcp.sdk import load_sdk
    from art_extensions.scenarios.mcp.server_address import StdioServer
    from art_extensions.scenarios.mcp.session import connect

    path = place.file("answers", content)
    # Whoever asks again after an answer that says nothing waits for the end of this program: a good session
    # gets the seconds that a busy machine may need.
    patience = 4 if content in corpus_of("mcp_server").values() else 0.4
    program = f'n=0; while read -t {patience} -r line; do n=$((n+1)); sed -n "${{n}}p" "$0"; done'
    server = StdioServer(command="bash", args=("-c", program, str(path)))
    load_sdk()

    async def ask() -> object:
        async with connect(server, timeout=60.0) as session:
            return OfferedTools(await session.tools()).schemas

    return asyncio.run(ask())


def mcp_http_reply(content: bytes, place: Place) -> object:
    """A first line with the reply's type and how it is packed, then the body, in pieces of 1,000 bytes."""
    from art_extensions.scenarios.mcp.reply_limits import limit_reply

    first, _, body = content.partition(b"\n")
    kind, _, packing = first.decode("utf-8", "replace").partition(" ")

    async def read() -> list[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 1000):
                yield body[start : start + 1000]

        return [
            one async for one in limit_reply(pieces(), {"content-type": kind, "content-encoding": packing})
        ]

    return asyncio.run(read())


def harbor_rewards(content: bytes, place: Place) -> object:
    from art_extensions.harbor.trial import _rewards_of_json

    return _rewards_of_json(content.decode("utf-8", "replace"), "reward.json")


def image(content: bytes, place: Place) -> object:
    from art.rendering.images import ImageFormat

    form = ImageFormat(placeholder=1, side=32, tokens=4, before=(), after=())
    return form.fitted(content)


def chat_template(content: bytes, place: Place) -> object:
    from art.rendering.confined_template import render_confined

    return render_confined(content.decode("utf-8", "replace"), [USER], TOOLS, {"add_generation_prompt": True})


@cache
def grammars() -> Grammars:
    from art.engine.nano_models import resolve

    return Grammars(str(resolve("art/nano-tools")))


def constraint(content: bytes, place: Place) -> object:
    """A first line with the kind, then the constraint."""
    from art.engine.protocol import Constraint

    kind, _, text = content.decode("utf-8", "replace").partition("\n")
    kind = kind if kind in ("json_schema", "regex", "choice", "lark") else "json_schema"
    made = Constraint(kind=kind, text=text)  # type: ignore[arg-type]  # one of them
    return grammars().open(made, [2]).allowed(VOCABULARY)


def call_schema(content: bytes, place: Place) -> object:
    """The parameters of a tool, of which the grammar of its calls is made."""
    chat = place.renderer
    try:
        parameters = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parameters, dict):  # no dialect hands on anything else
        return None
    tools = [{"type": "function", "function": {"name": "search", "parameters": parameters}}]
    ids = chat.render([USER], tools)
    return chat.grammar(ids, text=None, tools=tools, parallel=True)


def schema_match(content: bytes, place: Place) -> object:
    """A model's answer, checked by a rule against a schema."""
    from art_extensions.sandbox.matches import JsonSchemaMatch

    rule = JsonSchemaMatch(PARAMETERS)
    return asyncio.run(rule.verify(content.decode("utf-8", "replace"), json.dumps(PARAMETERS)))
