"""What a stream tells, in no dialect: the events that every dialect writes its own from.

Text is told as soon as it can no longer change: not half a character, not what may become a stop string, and
of a tool call only where the reply is held to calls. The sample is committed before the event that ends its
choice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from art.engine.protocol import Delta
from art.errors import ARTError, WorkerError
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion, calls_of, finish_reason
from art.server.dialects.chat_sampling import Sampler, new_completion

_log = logging.getLogger(__name__)

Emission = tuple[int, Delta | None]
"""(choice, what is new); None: the choice has ended."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The engine has begun: from here on the reply is 200."""

    choices: list[StreamedChoice]


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of a call. Calls come one after the other: a new one ends the one before."""

    index: int
    call: dict[str, Any]
    """Its id, and its function with all arguments so far."""
    arguments: str
    """Those that are new."""
    opens: bool
    """Nothing was told of it yet."""


@dataclass(frozen=True, slots=True)
class Told:
    """New ids of a choice, and the text that they let be told: often none."""

    choice: StreamedChoice
    delta: Delta
    content: str
    reasoning: str
    calls: list[CallPiece] = field(default_factory=list)
    """Behind the text; only where a reply is held to calls is a call told before the end."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice that is committed: the rest of its text and calls; all of it is `choice.message`."""

    choice: StreamedChoice
    content: str
    reasoning: str
    finish: str
    """`stop`, `length` or `tool_calls`."""
    calls: list[CallPiece] = field(default_factory=list)


StreamEvent = Begun | Told | Ended


class StreamedChoice:
    """One choice of a stream: what was sampled, and what of it was told."""

    def __init__(self, prepared: Prepared, index: int, place: int) -> None:
        self.index = index
        """Among all choices of the reply."""
        self.place = place
        """Among those of its prompt."""
        self.prepared = prepared
        self.completion: Completion = new_completion()
        self.message: dict[str, Any] = {}
        """What the client has; known at the end."""
        self._content = ""
        self._reasoning = ""
        self._arguments: list[str] = []
        """What was told of each call."""
        self._read_at = 0

    def tell(self, delta: Delta) -> Told:
        """What can be told after a delta."""
        content = reasoning = ""
        calls: list[CallPiece] = []
        total = len(self.completion.token_ids)
        # Reading starts from the first id, so a long reply is read more rarely.
        if delta.finish_reason is None and total - self._read_at > total // 64:
            self._read_at = total
            parsed = self.prepared.parse(self.completion.token_ids, partial=True)
            stops = self.prepared.request.stop
            text, thought = parsed.content, parsed.reasoning or ""
            if not parsed.tool_calls:
                text, thought = _settled(text, stops), _settled(thought, stops)
            content, reasoning = self._advance(text, thought)
            calls = self._call_pieces(calls_of(self.completion, parsed))
        return Told(self, delta, content, reasoning, calls)

    def end(self) -> Ended:
        """The rest of the text and the reason of the end; sets `message`."""
        message = self.prepared.message(self.completion)
        content, reasoning = self._advance(message["content"] or "", message.get("reasoning_content") or "")
        calls = self._call_pieces(message.get("tool_calls", []))
        # What was told cannot be taken back: the message is what the client can put together.
        self.message = {**message, "content": self._content}
        for call, arguments in zip(message.get("tool_calls", []), self._arguments, strict=True):
            call["function"]["arguments"] = arguments
        return Ended(self, content, reasoning, finish_reason(self.completion, message), calls)

    def _call_pieces(self, calls: list[dict[str, Any]]) -> list[CallPiece]:
        pieces = []
        for index, call in enumerate(calls):
            opens = index == len(self._arguments)
            if opens:
                self._arguments.append("")
            arguments, told = call["function"]["arguments"], self._arguments[index]
            new = arguments[len(told) :] if arguments.startswith(told) else ""
            self._arguments[index] += new
            if new or opens:
                pieces.append(CallPiece(index, call, new, opens))
        return pieces

    def _advance(self, content: str, reasoning: str) -> tuple[str, str]:
        new_content = new_reasoning = ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            new_reasoning = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        if len(content) > len(self._content) and content.startswith(self._content):
            new_content = content[len(self._content) :]
            self._content = content
        return new_content, new_reasoning


async def told(sampler: Sampler, *prompts: Prepared) -> AsyncIterator[StreamEvent]:
    """`Begun`, then `Told` and `Ended` of each choice; close it with `aclosing`.

    Raises: ARTError. Before `Begun` the request has failed as a whole.
    """
    places = [(prepared, place) for prepared in prompts for place in range(prepared.request.n)]
    choices = [StreamedChoice(prepared, index, place) for index, (prepared, place) in enumerate(places)]
    queue: asyncio.Queue[Emission | ARTError] = asyncio.Queue()
    tasks = [asyncio.create_task(_feed(sampler, choice, queue)) for choice in choices]
    open_choices = len(choices)
    begun = False
    try:
        while open_choices:
            item = await queue.get()
            if isinstance(item, ARTError):
                raise item
            if not begun:
                begun = True
                yield Begun(choices)
            index, delta = item
            choice = choices[index]
            if delta is not None:
                yield choice.tell(delta)
                continue
            ended = choice.end()
            await sampler.keep(choice.prepared, [(choice.completion, choice.message)])
            open_choices -= 1
            yield ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(sampler: Sampler, choice: StreamedChoice, queue: asyncio.Queue[Emission | ARTError]) -> None:
    last: Emission | ARTError = WorkerError(f"sampling {choice.completion.sample_id} ended unexpectedly")
    try:
        async for delta in sampler.deltas(choice.prepared, choice.place, choice.completion):
            queue.put_nowait((choice.index, delta))
        last = (choice.index, None)
    except ARTError as error:
        last = error
    except Exception:
        # A defect in an engine: the client is told that it failed, the log says how.
        _log.exception("sampling %s failed", choice.completion.sample_id)
        raise
    finally:
        queue.put_nowait(last)


def _settled(text: str, stops: tuple[str, ...]) -> str:
    """The text without an unfinished character, and without an end that may become a stop string."""
    text = text.rstrip("\ufffd")
    held = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:length]):
                held = length
                break
    return text[: len(text) - held]
