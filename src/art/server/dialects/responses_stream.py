"""A response as its events: each item opened, told and closed, all numbered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from art.errors import ARTError, OverloadedError
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion
from art.server.dialects.event_stream import named
from art.server.dialects.responses_items import Item
from art.server.dialects.responses_reply import (
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    response_of,
    status_of_call,
    status_of_end,
    text_logprobs,
    text_part,
)
from art.server.dialects.responses_request import ResponsesRequest
from art.server.dialects.told import Begun, CallPiece, Ended, StreamEvent
from art.server.http import error_body


class ResponseEvents:
    """Writes the events; `keep` is given the whole response before its end is told."""

    def __init__(
        self, asked: ResponsesRequest, prepared: Prepared, keep: Callable[[dict[str, Any]], None]
    ) -> None:
        self._asked, self._prepared, self._keep = asked, prepared, keep
        self._number = 0
        self._output: list[Item] = []
        self._texts: dict[str, str] = {}
        """What was told of an open item, by its kind."""
        self._thinking = True
        self._calls: list[CallPiece] = []
        """What is still to be told of them."""
        self._call: dict[str, Any] | None = None
        """The one that is open."""
        self._completion: Completion | None = None
        self._last = b""

    def write(self, event: StreamEvent) -> bytes:
        """The events of what is new."""
        if isinstance(event, Begun):
            self._completion = event.choices[0].completion
            response = self._response("in_progress")
            return self._event("response.created", response=response) + self._event(
                "response.in_progress", response=response
            )
        told = b""
        # A thought that goes on after the answer has begun has no place any more.
        if event.reasoning and self._thinking:
            told += self._tell("reasoning", event.reasoning)
        if event.content:
            told += self._end_of_thought() + self._tell("message", event.content)
        self._calls += event.calls
        if isinstance(event, Ended):
            return told + self._end(event)
        # How a text ended, and its logprobs, are known at the end of the reply.
        return told if "message" in self._texts else told + self._tell_calls()

    def close(self) -> bytes:
        """The whole response."""
        return self._last

    def fail(self, error: ARTError) -> bytes:
        """`response.failed`."""
        code = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
        message = error_body(error, self._prepared.tenant)["error"]["message"]
        failed = {**self._response("failed"), "error": {"code": code, "message": message}}
        return self._event("response.failed", response=failed)

    def _tell(self, kind: str, text: str) -> bytes:
        opened = b""
        if kind not in self._texts:
            opened = self._open(kind)
        self._texts[kind] += text
        if kind == "reasoning":
            return opened + self._part_event("response.reasoning_text.delta", delta=text)
        return opened + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def _open(self, kind: str) -> bytes:
        make, part = (reasoning_item, reasoning_part) if kind == "reasoning" else (message_item, text_part)
        self._texts[kind] = ""
        self._output.append(make(self._sample_id, None, "in_progress"))
        return self._item_event("added") + self._part_event("response.content_part.added", part=part(""))

    def _end_of_thought(self) -> bytes:
        if not self._thinking:
            return b""
        self._thinking = False
        if "reasoning" not in self._texts:
            return b""
        text = self._texts["reasoning"]
        self._output[-1] = reasoning_item(self._sample_id, text, "completed")
        return (
            self._part_event("response.reasoning_text.done", text=text)
            + self._part_event("response.content_part.done", part=reasoning_part(text))
            + self._item_event("done")
        )

    def _end_of_text(self, status: str) -> bytes:
        assert self._completion is not None
        text = self._texts["message"]
        logprobs = text_logprobs(self._prepared, self._completion) if self._asked.logprobs else []
        self._output[-1] = message_item(self._sample_id, text, status, logprobs)
        return (
            self._part_event("response.output_text.done", text=text, logprobs=logprobs)
            + self._part_event("response.content_part.done", part=text_part(text, logprobs))
            + self._item_event("done")
        )

    def _end(self, event: Ended) -> bytes:
        status = status_of_end(event.finish)
        told = self._end_of_thought()
        if "message" not in self._texts and not (self._output or self._calls):
            told += self._open("message")
        if "message" in self._texts:
            told += self._end_of_text(status)
        told += self._tell_calls() + self._end_of_call(status)
        response = self._response(status)
        self._keep(response)
        self._last = self._event(f"response.{status}", response=response)
        return told

    def _tell_calls(self) -> bytes:
        told, pieces = b"", self._calls
        self._calls = []
        for piece in pieces:
            if piece.opens:
                told += self._end_of_thought() + self._end_of_call("completed")
                self._output.append(call_item(self._sample_id, piece.call, "in_progress", arguments=""))
                told += self._item_event("added")
            self._call = piece.call
            if piece.arguments:
                told += self._call_event("delta", delta=piece.arguments)
        return told

    def _end_of_call(self, status: str) -> bytes:
        """Of the one that is open, if any; `status`: of the response, if it ends with it."""
        call, self._call = self._call, None
        if call is None:
            return b""
        function = call["function"]
        told = self._call_event("done", name=function["name"], arguments=function["arguments"])
        self._output[-1] = call_item(self._sample_id, call, status_of_call(call, status))
        return told + self._item_event("done")

    @property
    def _sample_id(self) -> str:
        assert self._completion is not None
        return self._completion.sample_id

    def _response(self, status: str) -> dict[str, Any]:
        assert self._completion is not None
        output = [] if status == "in_progress" else self._output
        return response_of(self._asked, self._prepared, self._completion, status=status, output=output)

    def _item_event(self, what: str) -> bytes:
        index = len(self._output) - 1
        return self._event(f"response.output_item.{what}", output_index=index, item=self._output[index])

    def _call_event(self, what: str, **fields: Any) -> bytes:
        index = len(self._output) - 1
        place = {"item_id": self._output[index]["id"], "output_index": index}
        return self._event(f"response.function_call_arguments.{what}", **place, **fields)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        index = len(self._output) - 1
        place = {"item_id": self._output[index]["id"], "output_index": index, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return named(kind, {"type": kind, "sequence_number": number, **fields})
