"""POST /inference/v1/generate: ids in, ids out, in the words of vLLM's token route.

What speaks it renders and parses by itself (the library `renderers`, verifiers' client for training). It is a
raw completion in other words: sampled, recorded and continued as one of `/v1/completions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from art.engine.protocol import Ranked, TopLogprobs
from art.errors import ARTError
from art.server.chat.prompt_and_reply import (
    Completion,
    partial_choice,
    prompt_logprobs_of,
    token_spelling,
    usage_of,
)
from art.server.dialects.completion_service import (
    ChoiceFinished,
    CommittedChoice,
    ReplyDelta,
    StreamedChoice,
    StreamEvent,
    StreamStarted,
)
from art.server.dialects.completions import Completions
from art.server.dialects.completions_request import (
    CompletionsRequest,
    PreparedRawPrompt,
    read_generate_request,
)
from art.server.dialects.dialect import DONE, data_event
from art.server.http import Scope, error_body


class TokenCompletions(Completions):
    """Answers prompts of ids by ids, whole or streamed."""

    def read(self, scope: Scope, body: Any) -> CompletionsRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_generate_request(body, max_n=self.limits.max_n)

    def chunks(self, request: CompletionsRequest, prompts: Sequence[PreparedRawPrompt]) -> TokenChunks:
        """Returns what writes a stream."""
        return TokenChunks(request, prompts[0])

    def write_reply(
        self,
        request: CompletionsRequest,
        prompts: Sequence[PreparedRawPrompt],
        done: Sequence[list[CommittedChoice]],
        scores: Sequence[Ranked | None],
    ) -> bytes:
        """Returns the whole reply."""
        (prepared,), (choices,), (scored,) = prompts, done, scores
        prompt_ids, most = prepared.stitched.prompt_ids, request.sampling.prompt_logprobs
        reply: dict[str, Any] = {
            "request_id": prepared.request_id,
            "model": prepared.request.model,
            "created": int(prepared.created_at),
            "output_mode": "tokens",
            "choices": [_choice(at, request, prepared, one) for at, one in enumerate(choices)],
            "usage": usage_of(len(prompt_ids), [one.completion for one in choices]),
        }
        if request.sampling.return_token_ids:
            reply["prompt_token_ids"] = list(prompt_ids)
        if scored is not None and most is not None:
            reply["prompt_logprobs"] = prompt_logprobs_of(
                prepared.target.renderer, prompt_ids, scored, most=most
            )
            if request.alternatives is not None:
                reply["prompt_alternatives"] = {"logprobs": scored.named, "draws": scored.drawn}
        return orjson.dumps(reply)


class TokenChunks:
    """Writes the chunks of a stream: the new ids of a choice, and how it ended."""

    def __init__(self, request: CompletionsRequest, prepared: PreparedRawPrompt) -> None:
        self._request = request
        self._prepared = prepared
        self._choices: list[StreamedChoice] = []

    def write(self, event: StreamEvent) -> bytes:
        """A chunk for what is new of a choice. The prompt's ids, if they were asked for, come first."""
        if isinstance(event, StreamStarted):
            self._choices = event.choices
            if not self._request.sampling.return_token_ids:
                return b""
            return self._chunk([], prompt_token_ids=list(self._prepared.stitched.prompt_ids))
        choice, finish, new = event.choice, None, None
        if isinstance(event, ChoiceFinished):
            finish = event.finish
        elif isinstance(event, ReplyDelta) and event.delta.token_ids:
            new = event.delta
        if new is None and finish is None:
            return b""
        ids = [] if new is None else list(new.token_ids)
        content: dict[str, Any] = {"token_ids": ids}
        if finish is not None:
            content["stop_reason"] = _stop_reason(self._prepared, choice.completion)
        logprobs = None
        if new is not None and self._request.logprobs:
            logprobs = _logprobs(ids, new.logprobs, new.top_logprobs)
        piece = partial_choice(
            choice.index,
            content,
            completion=choice.completion,
            step=self._prepared.target.step,
            finish=finish,
            logprobs=logprobs,
        )
        return self._chunk([piece])

    def close(self) -> bytes:
        """The usage, where it was asked for."""
        if not self._request.sampling.include_usage:
            return DONE
        completions = [choice.completion for choice in self._choices]
        usage = usage_of(len(self._prepared.stitched.prompt_ids), completions)
        return self._chunk([], usage=usage) + DONE

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return data_event(orjson.dumps(error_body(error, self._prepared.tenant))) + DONE

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {"request_id": self._prepared.request_id, "output_mode": "tokens"}
        return data_event(orjson.dumps({**head, "choices": choices, **more}))


def _choice(
    index: int, request: CompletionsRequest, prepared: PreparedRawPrompt, one: CommittedChoice
) -> dict[str, Any]:
    completion = one.completion
    ids = list(completion.token_ids)
    return partial_choice(
        index,
        {"token_ids": ids, "stop_reason": _stop_reason(prepared, completion)},
        completion=completion,
        step=prepared.target.step,
        finish=one.finish,
        logprobs=_logprobs(ids, completion.logprobs, completion.tops) if request.logprobs else None,
    )


def _stop_reason(prepared: PreparedRawPrompt, completion: Completion) -> str | int | None:
    """Returns the text, or the request's own id, that ended a completion; None: its turn's end, or length."""
    ended_by_id = completion.finish_reason == "stop" and completion.stop_string is None
    if not ended_by_id or not completion.token_ids:
        return completion.stop_string
    last = completion.token_ids[-1]
    ends_turn = last in prepared.target.renderer.stop_token_ids
    return None if ends_turn and not prepared.request.ignore_eos else last


def _logprobs(
    ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs | None]
) -> dict[str, Any]:
    """Returns the logprobs by ids: `token_id` as vLLM names it, `token` as earlier ones did."""
    ranked = [*tops, *[None] * (len(ids) - len(tops))]
    return {
        "content": [
            {**_entry(token_id, logprob), "top_logprobs": [_entry(*one) for one in top or ()]}
            for token_id, logprob, top in zip(ids, logprobs, ranked, strict=True)
        ]
    }


def _entry(token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": token_spelling(token_id, b"", True), "token_id": token_id, "logprob": logprob}
