"""Sends the largest values that a body may hold in each field of each dialect, and measures the callbacks of
the server's loop: `make loop-times`, `make loop-times SECONDS=60`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import borrowed  # noqa: F401  it says where the others are
import orjson
from chat_folder import write_chat_folder
from dialect_bodies import DIALECTS
from live import listening
from tenants_world import run_world

from art.rendering.registry import create_chat_renderer
from art.server.chat.chat_request import CHAT
from art.server.chat.request_fields import RequestSchema
from art.server.dialects.completions_request import COMPLETIONS, GENERATE
from art.server.settings import LimitSettings
from art_extensions.agent_apis.anthropic_request import MESSAGES
from art_extensions.agent_apis.responses_request import RESPONSES
from loop_time import MOST_S, LoopTime, watched_callbacks

MIB = 1 << 20
SIZE = 30 * MIB
"""Of a value: a little less than a body may have."""
PART = 5
"""What a callback does with its body grows with it: a fifth of the body is sent first, and held against a
fifth of the time, which is the least that `watched_callbacks` names.
"""
SCHEMAS: dict[str, RequestSchema] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/inference/v1/generate": GENERATE,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}


def listed(item: bytes, size: int) -> bytes:
    """A list of so many equal items that it has this size."""
    return b"[" + (item + b",") * (size // (len(item) + 1)) + item + b"]"


def _tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    function = {"name": f"tool_{number}", "parameters": schema}
    return {"type": "function", "name": f"t{number}", "input_schema": schema, "function": function}


_MESSAGE = b'{"role":"user","content":"hello"}'
_IMAGE = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % (b"A" * 200_000)
_WORDS = b"more, and more. "
_LARGE_TOOL = b'[{"type":"function","name":"f","input_schema":{},"function":{"name":"f","description":"%b"}}]'
_PROPERTIES = {f"k{n}": {"type": "string", "enum": ["yes", "no"]} for n in range(20_000)}
VALUES: dict[str, Any] = {
    "numbers": lambda size: listed(b"1000000", size),
    "texts": lambda size: listed(b'"a"', size),
    "lists": lambda size: listed(b"[]", size),
    "objects": lambda size: listed(b'{"a":1}', size),
    "ids of a model": lambda size: listed(b"7", size * 4 // 30),
    "a text": lambda size: b'"' + b"x" * size + b'"',
    "a text of escapes": lambda size: b'"' + b"\\u00e9" * (size // 6) + b'"',
    "an object": lambda size: orjson.dumps(dict.fromkeys(map(str, range(size // 157)), [1] * 64)),
    "as deep as may be": lambda size: b"[" * 240 + b"]" * 240,
    "deep ones": lambda size: listed(b"[" * 200 + b"]" * 200, size),
    "messages": lambda size: listed(_MESSAGE, size),
    "as many messages as may be": lambda size: listed(_MESSAGE, min(size, 99_999 * (len(_MESSAGE) + 1))),
    "a long message": lambda size: b'[{"role":"user","content":"' + _WORDS * (size // 16) + b'"}]',
    "a message of 100 kB": lambda size: b'[{"role":"user","content":"' + _WORDS * 6_000 + b'"}]',
    "images": lambda size: b'[{"role":"user","content":' + listed(_IMAGE, size) + b"}]",
    "20,000 tools": lambda size: orjson.dumps([_tool(number) for number in range(20_000)]),
    "1,000 tools": lambda size: orjson.dumps([_tool(number) for number in range(1_000)]),
    "a long tool": lambda size: _LARGE_TOOL % (b"what it does " * (size // 13)),
    "a schema": lambda size: orjson.dumps(
        {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object", "properties": _PROPERTIES}},
        }
    ),
}


@cache
def value_of(kind: str, size: int) -> bytes:
    """The JSON of a value. size: bytes, of those that can be as large as one likes."""
    made: bytes = VALUES[kind](size)
    return made


@dataclass(frozen=True)
class Case:
    """One body. field: that has the value; "": the body is the value."""

    path: str
    field: str
    kind: str

    def body(self, size: int = SIZE) -> bytes:
        value = value_of(self.kind, size)
        if not self.field:
            return value
        rest = {name: value for name, value in DIALECTS[self.path].items() if name != self.field}
        return b"%b,%b:%b}" % (orjson.dumps(rest)[:-1], orjson.dumps(self.field), value)


def all_cases() -> Iterator[Case]:
    """Each value in each field of each dialect, in one that does not exist, and as a body."""
    for path, schema in SCHEMAS.items():
        for field, kind in itertools.product(("", *schema.fields, "unheard_of"), VALUES):
            yield Case(path, field, kind)


def sample(seed: int) -> list[Case]:
    """All cases in such an order that any number of the first ones has each kind of value, and then each
    dialect with each kind, equally often.
    """
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in all_cases():
        groups.setdefault((case.path, case.kind), []).append(case)
    chance, turns = random.Random(seed), list(itertools.product(SCHEMAS, VALUES))
    chance.shuffle(turns)
    earlier = {turn: sum(other[1] == turn[1] for other in turns[:place]) for place, turn in enumerate(turns)}
    turns.sort(key=earlier.__getitem__)
    for group in groups.values():
        chance.shuffle(group)
    rounds = itertools.zip_longest(*(groups[turn] for turn in turns))
    return [case for taken in rounds for case in taken if case is not None]


class LoopTimesServer:
    """A server in this loop, whose callbacks are measured. Its clients are in threads."""

    def __init__(self, url: str, key: str, found: LoopTime) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._key, self.found = int(port), key, found

    async def status_of(self, case: Case, *, part: int = 1) -> tuple[int, list[tuple[float, str]]]:
        """Returns the status of a reply, and the callbacks that took more than `MOST_S` meanwhile. part: of a
        body of a part of the size, those that took more than this part of the time.
        """
        content = await asyncio.to_thread(case.body, SIZE // part)
        before = len(self.found.told)
        status = await asyncio.to_thread(self._post, case.path, content)
        return status, [one for one in self.found.told[before:] if one[0] > MOST_S / part]

    def _post(self, path: str, content: bytes) -> int:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=300)
        try:
            connection.request("POST", path, content, headers)
            reply = connection.getresponse()
            reply.read()
            return reply.status
        finally:
            connection.close()


@asynccontextmanager
async def measured_server(folder: Path) -> AsyncIterator[LoopTimesServer]:
    """Serves until the block ends."""
    renderer = create_chat_renderer(write_chat_folder(folder / "tiny"), name="tiny")
    async with run_world(folder / "data", renderer) as world, listening(world.app, LimitSettings()) as url:
        key = world.clients["alice"].headers["authorization"].split()[-1]
        with watched_callbacks() as found:
            yield LoopTimesServer(url, key, found)


async def measure(cases: list[Case], seconds: float, *, part: int = PART) -> int:
    """Returns the exit status: 1 where a callback took too long, or a request failed. part: what a body of
    this part of the size does in this part of the time needs no larger one; 1: all are sent whole.
    """
    end, failed, tried, whole = time.monotonic() + seconds, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="loop-times-") as folder:
        async with measured_server(Path(folder)) as server:
            for case in cases:
                if time.monotonic() > end:
                    break
                tried += 1
                status, long = await server.status_of(case, part=part)
                if long and part > 1:
                    whole += 1
                    status, long = await server.status_of(case)
                if long or status >= 500:
                    failed += 1
                    print(f"{case.path} {case.field}: {case.kind}: {status} {long}", flush=True)
    sent = f"{tried} of {len(cases)} bodies, {whole if part > 1 else tried} of them whole"
    print(f"{sent}, {failed} with a callback above {MOST_S * 1000:.0f} ms or a 5xx")
    return 1 if failed else 0


def main() -> int:
    """Returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--part", type=int, choices=(1, PART), default=PART, help="1: all bodies whole")
    asked = options.parse_args()
    print(f"seed {asked.seed}", flush=True)
    return asyncio.run(measure(sample(asked.seed), asked.seconds, part=asked.part))


if __name__ == "__main__":
    sys.exit(main())
