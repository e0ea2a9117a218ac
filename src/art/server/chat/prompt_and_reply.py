"""A request with its prompt (`PreparedRequest`), what an engine emitted for it (`Completion`), and the
message, the choices and the logprobs of its reply.

Prompts that cannot fit are refused before they are made into ids: that takes seconds for some megabytes. The
constraint says in the model's own chat format what text and calls must look like. `name_images` makes the
pictures of a request as the model sees them. `prompt_scores` are the
logprobs of a prompt's own ids, for those who compare or evaluate and do not sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art.engine.protocol import Constraint, FinishReason, ImagePrompt, Ranked, TopLogprobs
from art.errors import RequestError
from art.rendering.chat_renderer import ChatRenderer, Parsed, Tool
from art.rendering.images import IMAGE
from art.server.catalog import Target
from art.server.chat.chat_request import ChatRequest
from art.server.chat.messages import FILE, call_id, message_texts
from art.server.ledger.stitching import Stitched
from art.server.tenancy import Tenant, external_name, internal_name
from art.wire.engine import Alternatives
from art.wire.request_values import refuse
from art.wire.rollouts import MALFORMED_FIELD, SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art.wire.samples import image_name


@dataclass(kw_only=True, slots=True)
class Completion:
    """The engine's output for one choice, so far."""

    sample_id: str
    token_ids: list[int]
    logprobs: list[float]
    tops: list[TopLogprobs] = field(default_factory=list)
    """The most probable ids beside each, where they were asked for."""
    candidates: list[bytes] = field(default_factory=list)
    """Records of `art.wire.samples`, of one delta after the other."""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    named_call: bool = False
    """The request demanded a call of one tool by its name."""
    malformed_calls: int = 0
    """Set when the whole reply is read."""


def message_of(
    completion: Completion, parsed: Parsed, minimum: Parsed | None = None, *, keep_stop: bool = False
) -> dict[str, Any]:
    """The assistant's message. What follows a stop string is not part of it, and itself only by `keep_stop`.

    minimum: what was said within `min_tokens`, where no stop string ends it.
    """
    content, reasoning = parsed.content, parsed.reasoning or ""
    if completion.stop_string is not None:
        stop = completion.stop_string
        content = _cut(content, stop, minimum.content if minimum else "", keep_stop)
        reasoning = _cut(reasoning, stop, (minimum.reasoning or "") if minimum else "", keep_stop)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if parsed.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = calls_of(completion, parsed)
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def calls_of(completion: Completion, parsed: Parsed) -> list[dict[str, Any]]:
    """The calls of a message, each with its id."""
    return [
        {
            "id": call_id(completion.sample_id, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(parsed.tool_calls)
    ]


def _cut(text: str, stop: str, minimum: str, keep_stop: bool) -> str:
    """The text before the first stop string that does not end in what is kept, or up to its end."""
    at = text.find(stop, max(0, len(minimum.rstrip("\ufffd")) - len(stop) + 1))
    return text if at < 0 else text[: at + len(stop) * keep_stop]


def finish_reason(completion: Completion, message: dict[str, Any]) -> str:
    """`tool_calls` where calls were read from a reply that ended by itself, unless they had to be."""
    if completion.named_call:
        return completion.finish_reason or "stop"
    if "tool_calls" in message and completion.finish_reason == "stop":
        return "tool_calls"
    return completion.finish_reason or "stop"


def choice_of(
    index: int,
    completion: Completion,
    message: dict[str, Any],
    step: int | None,
    logprobs: dict[str, Any] | None,
) -> dict[str, Any]:
    """One choice of a whole reply."""
    finish = finish_reason(completion, message)
    said = {"message": message}
    return partial_choice(index, said, completion=completion, step=step, finish=finish, logprobs=logprobs)


def partial_choice(
    index: int,
    content: dict[str, Any],
    *,
    completion: Completion,
    step: int | None,
    finish: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One choice that may go on; the part that ends it tells its tokens.

    content: {"delta": ...}, {"text": ...} or {"message": ...}.
    """
    choice: dict[str, Any] = {
        "index": index,
        **content,
        "logprobs": logprobs,
        "finish_reason": finish,
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: step,
    }
    if finish is not None:
        choice[TOKENS_FIELD] = len(completion.token_ids)
        if completion.malformed_calls:
            choice[MALFORMED_FIELD] = completion.malformed_calls
    return choice


def logprobs_of(
    renderer: ChatRenderer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[TopLogprobs] = (),
    *,
    as_ids: bool = False,
) -> dict[str, Any]:
    """One entry for each sampled id, the one that ended the turn included. `tops`: for each or for none.
    `as_ids`: tokens are called by their ids.
    """
    content = []
    for token_id, logprob, top in zip(token_ids, logprobs, tops or ((),) * len(token_ids), strict=True):
        beside = [_entry(renderer, other, value, as_ids) for other, value in top]
        content.append({**_entry(renderer, token_id, logprob, as_ids), "top_logprobs": beside})
    return {"content": content, "refusal": None}


def _entry(renderer: ChatRenderer, token_id: int, logprob: float, as_ids: bool) -> dict[str, Any]:
    spelled = renderer.token_bytes(token_id)
    return {"token": token_spelling(token_id, spelled, as_ids), "logprob": logprob, "bytes": list(spelled)}


def token_spelling(token_id: int, spelled: bytes, as_ids: bool) -> str:
    """Returns a token's name in logprobs: its text or, as in vLLM, its id."""
    return f"token_id:{token_id}" if as_ids else spelled.decode("utf-8", "replace")


def usage_of(prompt_tokens: int, completions: Sequence[Completion]) -> dict[str, Any]:
    """Counts of ids: the prompt's once, the completions' together."""
    sampled = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


_BLAMED = {
    "invalid_logit_bias": "logit_bias",
    "invalid_token_id": "prompt",
    "invalid_min_tokens": "min_tokens",
}
"""The field of what only an engine can refuse, by its code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRequest:
    """A request whose prompt is known."""

    request: ChatRequest
    target: Target
    stitched: Stitched
    tenant: Tenant
    rollout_id: str | None
    max_tokens: int
    created_at: float
    request_id: str
    """What the choices of a rollout's request have in common."""
    constraint: Constraint | None = None
    """The constraint in the words of the model's chat format."""
    images: tuple[bytes, ...] = ()
    """The pictures of the prompt as the model sees them, in their order."""

    @property
    def affinity(self) -> str | None:
        """The rollout; a tenant's is apart from another's of the same name."""
        return None if self.rollout_id is None else f"{self.tenant or ''}~{self.rollout_id}"

    @property
    def image_prompt(self) -> ImagePrompt | None:
        """The prompt for an engine that places images itself; None without images."""
        images = self.target.renderer.images
        if images is None or not self.images:
            return None
        return images.folded(self.stitched.prompt_ids, self.images)

    @property
    def shown_prompt_ids(self) -> list[int]:
        """The prompt in the model's own vocabulary, placeholders in the places of images."""
        images, ids = self.target.renderer.images, list(self.stitched.prompt_ids)
        return ids if images is None else images.shown(ids)

    @property
    def owner(self) -> str:
        """The owner in the queue: the model of a project, or the base model for each tenant."""
        target = self.target
        if target.project is None:
            return internal_name(self.tenant, target.name)
        return f"{target.project}/{target.name}"

    @property
    def fingerprint(self) -> str:
        """The exact weights that answer: the model and its step."""
        target = self.target
        if target.project is None:
            return target.name
        return f"{external_name(self.tenant, target.project)}/{target.name}@{target.step}"

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The ids that end a turn, unless they are ignored, and those of the request."""
        if self.request.ignore_eos:
            return self.request.stop_token_ids
        return tuple(dict.fromkeys((*self.target.renderer.stop_token_ids, *self.request.stop_token_ids)))

    @property
    def is_constrained_to_calls(self) -> bool:
        """The reply is calls and nothing else, and no stop string can end it within one."""
        request = self.request
        return request.tool_choice.mode == "required" and self.constraint is not None and not request.stop

    def with_field(self, error: RequestError) -> RequestError:
        """Converts an engine's error to one that names the request's field."""
        field = _BLAMED.get(error.code or "")
        if error.code == "invalid_constraint":
            field = self.request.constrained_by or "tools"
        if field is None:
            return error
        return RequestError(str(error), status=error.status, code=error.code, param=field)

    def parse(self, token_ids: Sequence[int], *, partial: bool = False) -> Parsed:
        """The message that ids of a completion spell; `partial`: they go on."""
        tools = self.request.tools if self.request.read_calls else None
        return self.target.renderer.parse(
            token_ids,
            self.stitched.prompt_ids,
            tools,
            partial=partial,
            constrained=self.is_constrained_to_calls,
        )

    def message(self, completion: Completion) -> dict[str, Any]:
        """The assistant's message that a whole completion spells."""
        minimum, least = None, self.request.min_tokens
        if least and completion.stop_string is not None:
            minimum = self.parse(completion.token_ids[:least], partial=True)
        keep_stop = self.request.include_stop_str_in_output
        parsed = self.parse(completion.token_ids)
        if completion.finish_reason != "length":  # a call that was cut off is none of the model's mistakes
            completion.malformed_calls = parsed.malformed_calls
        return message_of(completion, parsed, minimum, keep_stop=keep_stop)


def constraint_of(
    request: ChatRequest, renderer: ChatRenderer, prompt_ids: Sequence[int]
) -> Constraint | None:
    """Returns the constraint of the reply; None: no constraint.

    Raises: RequestError naming the field that the model's chat format has no grammar for.
    """
    choice, text = request.tool_choice, request.constraint
    tools: list[Tool] = [
        tool
        for tool in request.tools or ()
        if choice.mode != "none" and (choice.names is None or tool["function"]["name"] in choice.names)
    ]
    if choice.mode == "required":
        return _grammar(renderer, prompt_ids, None, tools, request.parallel_tool_calls, "tool_choice")
    if not tools:
        if text is None:
            return None
        return renderer.grammar(prompt_ids, text=text, tools=(), parallel=True) or text
    if text is not None:
        if text.kind == "lark":
            # Whoever writes a grammar writes all of it.
            return text
        return _grammar(
            renderer, prompt_ids, text, tools, request.parallel_tool_calls, request.constrained_by
        )
    if choice.names is not None:
        return _grammar(renderer, prompt_ids, "any", tools, request.parallel_tool_calls, "tool_choice")
    if not request.parallel_tool_calls:
        return _grammar(renderer, prompt_ids, "any", tools, False, "parallel_tool_calls")
    return None


def _grammar(
    renderer: ChatRenderer,
    prompt_ids: Sequence[int],
    text: Constraint | Literal["any"] | None,
    tools: Sequence[Tool],
    parallel: bool,
    field: str,
) -> Constraint:
    grammar = renderer.grammar(prompt_ids, text=text, tools=tools, parallel=parallel)
    if grammar is None:
        refuse(
            f"{field} needs a grammar of the calls in this model's chat format, and there is none for "
            f"{renderer.kind}: leave tools out, or leave the choice to the model (tool_choice 'auto', "
            "parallel_tool_calls true, response_format text)",
            field,
            "unsupported_parameter",
        )
    return grammar


def check_messages_fit(request: ChatRequest, target: Target) -> None:
    """Refuses messages and tools that cannot fit the context, even with one token each.

    Raises: RequestError (context_length_exceeded).
    """
    texts = (text for message in request.messages for text in message_texts(message))
    check_texts_fit(texts, target, param="messages")
    check_texts_fit((tool["function"]["name"] for tool in request.tools or ()), target, param="tools")


def check_texts_fit(texts: Iterable[str], target: Target, *, param: str) -> None:
    """Refuses texts that cannot fit the context, even with one token each.

    Raises: RequestError (context_length_exceeded).
    """
    fewest = characters = 0
    for text in texts:
        fewest += 1
        characters += len(text)
    if fewest + characters <= target.max_context:
        return
    fewest = max(fewest, characters // target.renderer.longest_token)
    if fewest > target.max_context:
        raise RequestError(
            f"the prompt has at least {fewest} tokens; the maximum context length of {target.name} is "
            f"{target.max_context} tokens of prompt and completion. Shorten it.",
            status=400,
            code="context_length_exceeded",
            param=param,
        )


_NOTHING = Ranked(logprobs=[], tops=[])


async def prompt_scores(
    prompts: Sequence[PreparedRequest], most: int | None, alternatives: Alternatives | None = None
) -> Sequence[Ranked | None]:
    """Returns, for each prompt's ids except the first, the logprob at temperature 1 and the `most` probable
    ids in its place. None: not requested. The prompts are of one target. `alternatives`: of one prompt.
    """
    if most is None:
        return [None] * len(prompts)
    target = prompts[0].target
    rows = [prepared.stitched.prompt_ids for prepared in prompts]
    asked = [row for row in rows if len(row) > 1]
    ranked = iter(await target.engine.rank(target.adapter, asked, most, alternatives) if asked else ())
    return [next(ranked) if len(row) > 1 else _NOTHING for row in rows]


def prompt_logprobs_of(
    renderer: ChatRenderer, prompt_ids: Sequence[int], scored: Ranked, *, most: int
) -> list[dict[str, Any] | None]:
    """Returns prompt logprobs in vLLM's form: none for the first id; for each other its logprob, rank (if
    known) and text, by its id, and the same for the `most` probable ones.
    """
    entries: list[dict[str, Any] | None] = [None]
    tops = [top[:most] for top in scored.tops] or [()] * len(scored.logprobs)
    for token_id, logprob, top in zip(prompt_ids[1:], scored.logprobs, tops, strict=True):
        entries.append(_token_logprobs(renderer, token_id, logprob, top))
    return entries


def _token_logprobs(
    renderer: ChatRenderer, token_id: int, logprob: float, top: TopLogprobs
) -> dict[str, Any]:
    best = {other: {"logprob": value, "rank": rank} for rank, (other, value) in enumerate(top, 1)}
    known: dict[int, dict[str, Any]] = {token_id: best.get(token_id, {"logprob": logprob}), **best}
    return {
        str(one): {**said, "decoded_token": renderer.token_bytes(one).decode("utf-8", "replace")}
        for one, said in known.items()
    }


FORBIDDEN = -100.0
"""The bias of an id that is never sampled."""


async def name_images(request: ChatRequest, renderer: ChatRenderer) -> tuple[bytes, ...]:
    """Returns the pictures of the request in their order, as PNG; its messages hold their names afterwards.

    A model that sees never samples its placeholder: in a later prompt it would stand for an image that is not
    there. Raises RequestError for a model that sees none, and for what is no picture.
    """
    if renderer.images is None:
        if any(not isinstance(message["content"], str) for message in request.messages):
            refuse(
                "messages hold an image, and this model takes text only: images need a vision-language model "
                "of a known family behind the engine 'vllm'",
                "messages",
                "unsupported_content",
            )
        return ()
    placeholder = renderer.images.placeholder
    others = tuple(one for one in request.logit_bias if one[0] != placeholder)
    request.logit_bias = (*others, (placeholder, FORBIDDEN))
    parts = [
        part
        for message in request.messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == IMAGE
    ]
    if parts and request.prompt_logprobs is not None:
        refuse("prompt_logprobs is not supported for a prompt with images", "prompt_logprobs")
    files = []
    for part in parts:
        files.append(await asyncio.to_thread(renderer.images.fitted, part.pop(FILE)))
        part[IMAGE] = image_name(files[-1])
    return tuple(files)
