"""What MCP servers answered, recorded in a file, and played again without them.

A cassette is JSON lines: what the server offers, then each call with its result. Two records of one:

    {"offer": {"tools": [...], "resources": [...], ...}, "server": "weather", "version": 1}
    {"call": "forecast", "arguments": {"place": "oslo"}, "n": 0, "text": "rain", "is_error": false}

`n` counts equal calls of one session, so that a server whose answers change within a session is played as it
was. Keys and headers are on no cassette.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from art.errors import CassetteError, ConfigurationError, McpTimeoutError
from art.process.foreign_files import parse_json
from art_extensions.scenarios.mcp.types import (
    MCPPrompt,
    MCPResource,
    MCPResourceTemplate,
    MCPTool,
    ServerOffer,
    SessionSource,
    ToolResult,
)

Mode = Literal["record", "replay", "extend"]
VERSION = 1
_Key = tuple[str, str, str]
"""call or read, of what, with which arguments."""


class Cassette:
    """A file of recorded answers, for any number of sessions of one process.

    mode: "record" begins anew and asks the server everything; "replay" needs no server, and what is not on
    the cassette is an error; "extend" plays what is there and asks the server, which is only started then,
    for the rest (of tools that only read). Raises CassetteError for a missing or damaged file.
    """

    def __init__(self, path: str | Path, mode: Mode = "replay") -> None:
        if mode not in get_args(Mode):
            raise ConfigurationError(f"Cassette(mode={mode!r}): known are {list(get_args(Mode))}")
        self.path, self.mode = Path(path), mode
        self.label = ""
        self.offer: ServerOffer | None = None
        self._answers: dict[_Key, dict[int, dict[str, Any]]] = {}
        self._complete_size = 0  # bytes of the file up to its last complete line
        if mode != "record" and (mode == "replay" or self.path.exists()):
            self._load()

    @property
    def needs_server(self) -> bool:
        """Returns whether sessions need a server that can be started."""
        return self.mode != "replay"

    def session(self, live: SessionSource | None) -> SessionSource:
        """The source of a new session; `live` is what is asked for what is not played."""
        return _CassetteSession(self, live)

    def find(self, key: _Key, n: int, *, repeat: bool) -> dict[str, Any] | None:
        """The n-th answer to equal questions of a session; `repeat`: the last one stands for further ones."""
        answers = self._answers.get(key, {})
        found = answers.get(n)
        return answers[max(answers)] if found is None and answers and repeat else found

    def missing(self, key: _Key) -> CassetteError:
        """The error for a question that has no answer here."""
        kind, name, arguments = key
        same = sum(1 for other in self._answers if other[:2] == (kind, name))
        return CassetteError(
            f"{kind} {name!r} with {arguments} is not on the cassette {str(self.path)!r} ({same} others of "
            f'{name!r} are); record it again, or add it with mode="extend" and the server'
        )

    def keep_offer(self, label: str, offer: ServerOffer) -> None:
        """Writes the server's offer at the beginning of the file."""
        if self.offer is not None:
            return
        self.label, self.offer = label, offer
        plain = {name: [item.to_dict() for item in items] for name, items in vars(offer).items()}
        self._write({"offer": plain, "server": label, "version": VERSION})

    def keep(self, key: _Key, n: int, answer: dict[str, Any]) -> None:
        """Add an answer, unless an earlier session had the same question."""
        answers = self._answers.setdefault(key, {})
        if n in answers:
            return
        answers[n] = answer
        kind, name, arguments = key
        self._write({kind: name, "arguments": json.loads(arguments), "n": n, **answer})

    def _write(self, record: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            # What lies after the last complete line was torn by a kill; of a new recording: all of it is old.
            file.truncate(self._complete_size)
            file.seek(self._complete_size)
            file.write(line)
        self._complete_size += len(line)

    def _load(self) -> None:
        if not self.path.exists():
            raise CassetteError(f'no cassette {str(self.path)!r}: record one with mode="record" and a server')
        content = self.path.read_bytes()
        self._complete_size = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._complete_size].splitlines(), 1):
            try:
                self._load_record(parse_json(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CassetteError(
                    f"line {number} of the cassette {str(self.path)!r} is damaged: "
                    f"{type(error).__name__}: {error}; record anew"
                ) from error
        if self.offer is None and self.mode == "replay":
            raise CassetteError(f"the cassette {str(self.path)!r} is empty; record it again")

    def _load_record(self, record: dict[str, Any]) -> None:
        if (plain := record.get("offer")) is not None:
            if record["version"] != VERSION:
                raise ValueError(f"version {record['version']!r} instead of {VERSION}")
            self.label = record["server"]
            self.offer = ServerOffer(
                tools=[MCPTool.from_dict(item) for item in plain["tools"]],
                resources=[MCPResource.from_dict(item) for item in plain["resources"]],
                # Older cassettes have none.
                templates=[MCPResourceTemplate.from_dict(item) for item in plain.get("templates", ())],
                prompts=[MCPPrompt.from_dict(item) for item in plain["prompts"]],
            )
            return
        kind = "call" if "call" in record else "read"
        key = _question_key(kind, record.pop(kind), record.pop("arguments"))
        self._answers.setdefault(key, {})[int(record.pop("n"))] = record


class _CassetteSession:
    """One session that is recorded or played."""

    def __init__(self, cassette: Cassette, live: SessionSource | None) -> None:
        self._cassette, self._live = cassette, live
        self._asked: Counter[_Key] = Counter()
        self._started = False
        self.label = live.label if live is not None else cassette.label

    async def start(self) -> None:
        """Start the server if everything is asked of it; one that extends is started when needed."""
        if self._cassette.mode == "record":
            await self._server()

    async def close(self) -> None:
        """End the server's session."""
        if self._live is not None:
            await self._live.close()

    async def tools(self) -> list[MCPTool]:
        """The tools among it."""
        return (await self.inspect()).tools

    async def inspect(self) -> ServerOffer:
        """Returns the server's offer, recorded or current."""
        if self._cassette.mode != "record" and self._cassette.offer is not None:
            return self._cassette.offer
        offer = await (await self._server()).inspect()
        self._cassette.keep_offer(self.label, offer)
        return offer

    async def read_resource(self, uri: str, *, timeout: float) -> str:
        """The text of a resource."""
        key, n = self._count("read", uri, {})
        if (answer := self._played(key, n, repeat=True)) is not None:
            return str(answer["text"])
        text = await (await self._server()).read_resource(uri, timeout=timeout)
        self._cassette.keep(key, n, {"text": text})
        return text

    async def call(self, tool: MCPTool, arguments: Mapping[str, Any], *, timeout: float) -> ToolResult:
        """The tool's answer. A deadline that passed when it was recorded passes again."""
        key, n = self._count("call", tool.name, arguments)
        reads = tool.read_only is True
        if (answer := self._played(key, n, repeat=reads)) is not None:
            if answer.get("timed_out"):
                raise McpTimeoutError(f"tool {tool.name!r} did not answer in time when it was recorded")
            return ToolResult(text=answer["text"], is_error=answer["is_error"])
        if self._cassette.mode == "extend" and not reads:
            raise self._cassette.missing(key)  # the server is not in the state that the recording left it in
        try:
            result = await (await self._server()).call(tool, arguments, timeout=timeout)
        except McpTimeoutError:
            self._cassette.keep(key, n, {"timed_out": True})
            raise
        self._cassette.keep(key, n, {"text": result.text, "is_error": result.is_error})
        return result

    def _count(self, kind: str, name: str, arguments: Mapping[str, Any]) -> tuple[_Key, int]:
        key = _question_key(kind, name, arguments)
        self._asked[key] += 1
        return key, self._asked[key] - 1

    def _played(self, key: _Key, n: int, *, repeat: bool) -> dict[str, Any] | None:
        if self._cassette.mode == "record":
            return None
        answer = self._cassette.find(key, n, repeat=repeat)
        if answer is None and self._live is None:
            raise self._cassette.missing(key)
        return answer

    async def _server(self) -> SessionSource:
        if self._live is None:
            raise CassetteError(f"the cassette {str(self._cassette.path)!r} has no list of tools")
        if not self._started:
            self._started = True
            await self._live.start()
        return self._live


def _question_key(kind: str, name: str, arguments: Mapping[str, Any]) -> _Key:
    return kind, name, json.dumps(arguments, sort_keys=True, ensure_ascii=False)
