"""Requests of /v1/completions and /inference/v1/generate, and their raw prompts: ids, or texts that become
ids as they are.

A prompt that begins with all ids of an earlier completion of its rollout has that sample as its parent.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from art.errors import RequestError
from art.rendering.chat_renderer import Parsed
from art.server.catalog import Target
from art.server.chat.chat_request import CHAT, ChatRequest, read_chat_request
from art.server.chat.prompt_and_reply import Completion, PreparedRequest, check_texts_fit
from art.server.chat.request_fields import (
    OTHER_FIELDS,
    LeftOutParts,
    RequestField,
    RequestSchema,
    check_object,
    declared_fields,
)
from art.server.dialects.completion_service import request_id
from art.server.ledger.schema import int_array
from art.server.ledger.stitching import TURN_IDS, Conversation, Stitched, speaker_of
from art.server.tenancy import Tenant
from art.wire.engine import Alternatives
from art.wire.quoting import quote_value
from art.wire.records import first_flaw
from art.wire.request_values import FLAG, LARGEST_ID, TEXT, ByHand, Idle, Values, Whole, refuse
from art.wire.sampling import MOST_TOP_LOGPROBS, PARAMETERS

Prompt = str | list[int]

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

_AS_IN_CHAT = (
    "model",
    "n",
    "stream",
    "stream_options",
    "max_tokens",
    *(name for name, one in PARAMETERS.items() if "completions" in one.routes),
    "response_format",
    "structured_outputs",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "metadata",
    "best_of",
    "ignore_eos",
    "include_stop_str_in_output",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
)
"""Read as a chat completion's."""


def _logprobs(request: CompletionsRequest, name: str, value: int) -> None:
    request.logprobs, request.sampling.top_logprobs = True, value


@dataclass(kw_only=True, slots=True)
class CompletionsRequest:
    """A request of `/v1/completions`."""

    sampling: ChatRequest
    """Model, sampling and stream, as a chat completion has them; without messages."""
    prompts: list[Prompt] = field(default_factory=list)
    echo: Annotated[bool, RequestField(FLAG)] = False
    add_special_tokens: Annotated[bool, RequestField(FLAG)] = False
    """Texts get those that the tokenizer puts around a text."""
    logprobs: Annotated[bool, RequestField(Whole(0, MOST_TOP_LOGPROBS), _logprobs)] = False
    samples: bool = True
    """False: the prompts are told, and nothing is sampled."""
    alternatives: Alternatives | None = None

    @property
    def scored(self) -> int | None:
        """The number of most probable tokens to return beside each of the prompt's; None: none."""
        asked = self.sampling.prompt_logprobs
        if self.echo and self.logprobs:
            return max(self.sampling.top_logprobs, asked or 0)
        return asked


_OWN = declared_fields(CompletionsRequest)
COMPLETIONS = RequestSchema(
    {
        **{name: CHAT.fields[name] for name in _AS_IN_CHAT},
        "max_tokens": RequestField(Values(Annotated[int, Field(ge=0)], "a whole number")),
        "prompt": RequestField(ByHand({"anyOf": [TEXT.schema, {"type": "array"}]})),
        **_OWN,
    },
    required=("model", "prompt"),
    elsewhere=(*CHAT.fields, "input"),
)


def read_completions_request(
    body: Any, *, max_n: int, left_out: LeftOutParts | None = None
) -> CompletionsRequest:
    """The request of a decoded JSON body. left_out: notes unknown fields, which are refused without it.

    Raises: RequestError naming the field.
    """
    check_object(body)
    COMPLETIONS.check_number(body)
    for name, value in body.items():
        if name not in COMPLETIONS.fields:
            COMPLETIONS.check_other_field(name, value, left_out)
    if "prompt" not in body:
        refuse("'prompt' is missing", "prompt", "missing_parameter")
    request = _read_fields(body, max_n, left_out)
    request.prompts = read_prompts(body["prompt"])
    _fits_together(request, max_n)
    return request


def _read_fields(
    body: dict[str, Any], max_n: int, left_out: LeftOutParts | None = None
) -> CompletionsRequest:
    """Returns the request of a body but for its prompts."""
    shared = {name: body[name] for name in _AS_IN_CHAT if name in body}
    samples = not (body.get("max_tokens") == 0 and COMPLETIONS.read_field("echo", body.get("echo")))
    if not samples:
        shared["max_tokens"] = 1
    sampling = read_chat_request({**shared, "messages": _NO_MESSAGES}, max_n=max_n, left_out=left_out)
    sampling.messages = []
    if sampling.max_tokens is None:
        sampling.max_tokens = _DEFAULT_MAX_TOKENS
    request = CompletionsRequest(sampling=sampling, samples=samples)
    for name, own in _OWN.items():
        if body.get(name) is not None:
            own.read(request, name, body[name])
    return request


_ALTERNATIVES = "prompt_alternatives"
SAMPLING_PARAMS = RequestSchema(
    {
        name: COMPLETIONS.fields[name]
        for name in (
            "n",
            "max_tokens",
            "logprobs",
            "prompt_logprobs",
            *(name for name, one in PARAMETERS.items() if "completions" in one.routes),
            "ignore_eos",
            "include_stop_str_in_output",
            "structured_outputs",
        )
    }
    | {_ALTERNATIVES: RequestField(ByHand(Alternatives.model_json_schema()))},
    idle={**OTHER_FIELDS, "detokenize": Idle("the reply is ids", anything=True)},
)
_BESIDE = ("model", "stream", "stream_options", "return_token_ids")
_NO_IMAGES = "a prompt of ids has no images: send them in messages to /v1/chat/completions"
GENERATE = RequestSchema(
    {
        "token_ids": RequestField(ByHand({"type": "array", "items": {"type": "integer"}, "minItems": 1})),
        "sampling_params": RequestField(ByHand(SAMPLING_PARAMS.schema)),
        **{name: COMPLETIONS.fields[name] for name in _BESIDE},
    },
    required=("model", "token_ids"),
    idle={
        **OTHER_FIELDS,
        "output_mode": Idle("for text send the ids to /v1/completions", "tokens", remedy=True),
        "features": Idle(_NO_IMAGES, remedy=True),
        "content_parts": Idle(_NO_IMAGES, [], remedy=True),
    },
)
"""vLLM's token route. What its sampling parameters say is read as a raw completion's."""


def read_generate_request(body: Any, *, max_n: int) -> CompletionsRequest:
    """The request of a decoded JSON body of /inference/v1/generate. Raises: RequestError naming the field."""
    check_object(body)
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        refuse(f"sampling_params must be an object, not {quote_value(sampling)}", "sampling_params")
    for schema, given in ((GENERATE, body), (SAMPLING_PARAMS, sampling)):
        for name, value in given.items():
            if name not in schema.fields:
                schema.check_other_field(name, value)
    ids = body.get("token_ids")
    if not isinstance(ids, list) or not ids:
        refuse(f"token_ids must be a list of token ids, not {quote_value(ids)}", "token_ids")
    fields = {name: body[name] for name in _BESIDE if name in body}
    fields |= {name: value for name, value in sampling.items() if name in SAMPLING_PARAMS.fields}
    prompt, alternatives = _ids(ids, "token_ids"), _alternatives(sampling.get(_ALTERNATIVES))
    if alternatives is not None:
        fields.setdefault("prompt_logprobs", 0)
    request = _read_fields(fields, max_n)
    request.prompts, request.alternatives = [prompt], alternatives
    _fits_together(request, max_n)
    if sampling.get("max_tokens") is None:
        request.sampling.max_tokens = None  # as many as there is room for
    return request


def _alternatives(given: Any) -> Alternatives | None:
    if isinstance(given, dict):
        for name in given:  # pydantic would tell of each of half a million
            if name not in Alternatives.model_fields:
                refuse(f"{_ALTERNATIVES} has no field {quote_value(name)}", _ALTERNATIVES)
    try:
        return None if given is None else Alternatives.model_validate(given)
    except ValidationError as error:
        refuse(f"{_ALTERNATIVES}: {first_flaw(error)}", _ALTERNATIVES)


_NO_MESSAGES = [{"role": "user", "content": ""}]


def _fits_together(request: CompletionsRequest, max_n: int) -> None:
    n = request.sampling.n
    if len(request.prompts) * n > max_n:
        refuse(f"{len(request.prompts)} prompts x n = {n} are more than {max_n} completions", "prompt")
    if not request.sampling.stream:
        return
    if not request.samples:
        refuse("max_tokens = 0 samples nothing that a stream could tell: leave out stream", "max_tokens")
    if request.scored is not None:
        refuse(
            "a stream does not tell the prompt's logprobs: leave out stream, echo or logprobs",
            "logprobs",
            "unsupported_parameter",
        )


def read_prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        refuse(f"{_SHAPES}, not {quote_value(value)}", "prompt")
    if all(isinstance(one, str) for one in value):
        return list(value)
    if all(isinstance(one, int) for one in value):
        return [_ids(value, "prompt")]
    if all(isinstance(one, list) and one for one in value):
        return [_ids(one, f"prompt[{number}]") for number, one in enumerate(value)]
    refuse(f"{_SHAPES}, not {quote_value(value)}", "prompt")


_SHAPES = "prompt must be a text, a list of texts, a list of token ids or a list of such lists"


def _ids(value: list[Any], at: str) -> list[int]:
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= LARGEST_ID:
            refuse(f"{at} has {quote_value(one)}, which is no token id", at)
    return list(value)


_TURNS = 16
"""Newest completions of a rollout that a prompt is compared with."""

Rollout = tuple[Tenant, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRawPrompt(PreparedRequest):
    """A raw prompt. What follows it is text, whatever it looks like."""

    def parse(self, token_ids: Sequence[int], *, partial: bool = False) -> Parsed:
        """The text, without the id that ended it."""
        renderer = self.target.renderer
        ended = bool(token_ids) and token_ids[-1] in renderer.stop_token_ids
        return Parsed(content=renderer.decode(token_ids[:-1] if ended else token_ids))


class RawPromptService:
    """Prepares raw prompts, and remembers the ids that the rollouts' newest completions ended with."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._answered: OrderedDict[Rollout, list[tuple[str, array[int]]]] = OrderedDict()

    def prepare(
        self,
        request: ChatRequest,
        target: Target,
        prompt: Prompt,
        rollout_id: str | None,
        tenant: Tenant = None,
        special: bool = False,
    ) -> PreparedRawPrompt:
        """`special`: with the special tokens that the tokenizer puts around a text.

        Raises: RequestError for a prompt without ids, or with more than there is room for.
        """
        if isinstance(prompt, str):
            check_texts_fit([prompt], target, param="prompt")
            ids = target.renderer.encode(prompt, special=special)
            text = target.renderer.decode(ids) if special else prompt
        else:
            text, ids = "", prompt
        if not ids:
            refuse("the prompt has no tokens: there is nothing to continue", "prompt")
        room = target.max_context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; the maximum context length of {target.name} is "
                f"{target.max_context} tokens of prompt and completion. Shorten the prompt.",
                status=400,
                code="context_length_exceeded",
                param="prompt",
            )
        if not isinstance(prompt, str):
            text = target.renderer.decode(ids)  # of as many as there is room for, not of millions
        prompt_ids = int_array(ids)
        speaker = speaker_of(target.base_model, tenant, target.renderer)
        parent, shared = (None, 0) if rollout_id is None else self._parent((tenant, rollout_id), prompt_ids)
        stitched = Stitched(
            prompt_ids=ids,
            conversation=Conversation.of_ids(speaker, prompt_ids.tobytes()),
            parent_id=parent,
            shared=shared,
        )
        return PreparedRawPrompt(
            # Those who look at what was said see the prompt as one message.
            request=replace(request, messages=[{"role": "user", "content": text}]),
            target=target,
            stitched=stitched,
            tenant=tenant,
            rollout_id=rollout_id,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            created_at=time.time(),
            request_id=request_id(rollout_id),
            constraint=request.constraint,
        )

    def remember(self, prepared: PreparedRequest, completion: Completion) -> None:
        """Keep a committed completion, so that prompts that go on from it are found to be its children."""
        if prepared.rollout_id is None:
            return
        rollout = (prepared.tenant, prepared.rollout_id)
        turns = self._answered.setdefault(rollout, [])
        self._answered.move_to_end(rollout)
        turns.append(
            (completion.sample_id, int_array([*prepared.stitched.prompt_ids, *completion.token_ids]))
        )
        self._tokens += len(turns[-1][1]) + TURN_IDS
        if len(turns) > _TURNS:
            self._tokens -= len(turns.pop(0)[1]) + TURN_IDS
        while self._tokens > self._max_tokens and self._answered:
            _, forgotten = self._answered.popitem(last=False)
            self._tokens -= sum(len(ids) + TURN_IDS for _, ids in forgotten)

    def _parent(self, rollout: Rollout, ids: array[int]) -> tuple[str | None, int]:
        """The sample that most of the prompt's first ids are, and how many."""
        best: tuple[str | None, int] = (None, 0)
        for sample_id, earlier in self._answered.get(rollout, ()):
            if best[1] < len(earlier) <= len(ids) and ids[: len(earlier)] == earlier:
                best = (sample_id, len(earlier))
        return best
