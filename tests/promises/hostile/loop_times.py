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
SCHEMAS: dict[str, RequestSchema] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/inference/v1/generate": GENERATE,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}


def listed(item: bytes, size: int = SIZE) -> bytes:
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
    "numbers": lambda: listed(b"1000000"),
    "texts": lambda: listed(b'"a"'),
    "lists": lambda: listed(b"[]"),
    "objects": lambda: listed(b'{"a":1}'),
    "ids of a model": lambda: listed(b"7", 4 * MIB),
    "a text": lambda: b'"' + b"x" * SIZE + b'"',
    "a text of escapes": lambda: b'"' + b"\\u00e9" * (SIZE // 6) + b'"',
    "an object": lambda: orjson.dumps(dict.fromkeys(map(str, range(200_000)), [1] * 64)),
    "as deep as may be": lambda: b"[" * 240 + b"]" * 240,
    "deep ones": lambda: listed(b"[" * 200 + b"]" * 200),
    "messages": lambda: listed(_MESSAGE),
    "as many messages as may be": lambda: listed(_MESSAGE, 99_999 * (len(_MESSAGE) + 1)),
    "a long message": lambda: b'[{"role":"user","content":"' + _WORDS * (SIZE // 16) + b'"}]',
    "a message of 100 kB": lambda: b'[{"role":"user","content":"' + _WORDS * 6_000 + b'"}]',
    "images": lambda: b'[{"role":"user","content":' + listed(_IMAGE) + b"}]",
    "20,000 tools": lambda: orjson.dumps([_tool(number) for number in range(20_000)]),
    "1,000 tools": lambda: orjson.dumps([_tool(number) for number in range(1_000)]),
    "a long tool": lambda: _LARGE_TOOL % (b"what it does " * (SIZE // 13)),
    "a schema": lambda: orjson.dumps(
        {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object", "properties": _PROPERTIES}},
        }
    ),
}


@cache
def value_of(kind: str) -> bytes:
    """The JSON of a value."""
    made: bytes = VALUES[kind]()
    return made


@dataclass(frozen=True)
class Case:
    """One body. field: that has the value; "": the body is the value."""

    path: str
    field: str
    kind: str

    def body(self) -> bytes:
        if not self.field:
            return value_of(self.kind)
        rest = {name: value for name, value in DIALECTS[self.path].items() if name != self.field}
        return b"%b,%b:%b}" % (orjson.dumps(rest)[:-1], orjson.dumps(self.field), value_of(self.kind))


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

    async def status_of(self, case: Case) -> tuple[int, list[tuple[float, str]]]:
        """Returns the status of a reply, and the callbacks that took more than `MOST_S` meanwhile."""
        content = await asyncio.to_thread(case.body)
        before = len(self.found.told)
        status = await asyncio.to_thread(self._post, case.path, content)
        return status, [one for one in self.found.told[before:] if one[0] > MOST_S]

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


async def measure(cases: list[Case], seconds: float) -> int:
    """Returns the exit status: 1 where a callback took too long, or a request failed."""
    end, failed, tried = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory(prefix="loop-times-") as folder:
        async with measured_server(Path(folder)) as server:
            for case in cases:
                if time.monotonic() > end:
                    break
                status, long = await server.status_of(case)
                tried += 1
                if long or status >= 500:
                    failed += 1
                    print(f"{case.path} {case.field}: {case.kind}: {status} {long}", flush=True)
    print(f"{tried} of {len(cases)} bodies, {failed} with a callback above {MOST_S * 1000:.0f} ms or a 5xx")
    return 1 if failed else 0


def main() -> int:
    """Returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = options.parse_args()
    print(f"seed {asked.seed}", flush=True)
    return asyncio.run(measure(sample(asked.seed), asked.seconds))


if __name__ == "__main__":
    sys.exit(main())
