"""A request for completions of raw prompts: texts or ids, continued as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from art.engine.limits import MOST_TOP_LOGPROBS
from art.errors import RequestError
from art.server.dialects.chat_fields import whole
from art.server.dialects.chat_request import ChatRequest, read_chat_request
from art.server.dialects.refusal import refuse

Prompt = str | list[int]

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

_LARGEST_ID = 2**31 - 1

_OWN = (
    "prompt",
    "best_of",
    "echo",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
)

_AS_IN_CHAT = (
    "model",
    "n",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "response_format",
    "structured_outputs",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "metadata",
)
"""Read as a chat completion's."""

_CHAT_NEUTRAL = (
    "user",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    # A prompt is what it says: nothing is put before it.
    "add_special_tokens": (False,),
    "return_tokens_as_token_ids": (False,),
}


@dataclass(kw_only=True, slots=True)
class CompletionsRequest:
    """What is asked for."""

    sampling: ChatRequest
    """Model, sampling and stream, as a chat completion has them; without messages."""
    prompts: list[Prompt] = field(default_factory=list)
    echo: bool = False
    logprobs: bool = False
    prompt_logprobs: bool = False
    return_token_ids: bool = False

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own logprobs are told."""
        return self.prompt_logprobs or (self.echo and self.logprobs)


def read_completions_request(body: Any, *, max_n: int) -> CompletionsRequest:
    """The request of a decoded JSON body. Raises: RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", status=400, code="invalid_json")
    for name, value in body.items():
        if name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                refuse(f"{name} = {value!r} is not supported", name, "unsupported_parameter")
        elif name not in _OWN and name not in _AS_IN_CHAT and name not in _CHAT_NEUTRAL:
            known = ", ".join(sorted((*_OWN, *_AS_IN_CHAT)))
            refuse(f"{name!r} is not supported; supported: {known}", name, "unsupported_parameter")
    shared = {name: body[name] for name in (*_AS_IN_CHAT, *_CHAT_NEUTRAL) if name in body}
    if "prompt" not in body:
        refuse("'prompt' is missing", "prompt", "missing_parameter")
    sampling = read_chat_request({**shared, "messages": _NO_MESSAGES}, max_n=max_n)
    sampling.messages = []
    if sampling.max_tokens is None:
        sampling.max_tokens = _DEFAULT_MAX_TOKENS
    request = CompletionsRequest(
        sampling=sampling,
        prompts=_prompts(body["prompt"]),
        echo=_flag(body, "echo"),
        logprobs=body.get("logprobs") is not None,
        prompt_logprobs=_zero(body, "prompt_logprobs"),
        return_token_ids=_flag(body, "return_token_ids"),
    )
    if request.logprobs:
        whole("top_logprobs", 0, MOST_TOP_LOGPROBS)(sampling, "logprobs", body["logprobs"])
    _fits_together(request, body, max_n)
    return request


_NO_MESSAGES = [{"role": "user", "content": ""}]


def _fits_together(request: CompletionsRequest, body: dict[str, Any], max_n: int) -> None:
    n = request.sampling.n
    best_of = body.get("best_of")
    if best_of is not None and (isinstance(best_of, bool) or best_of != n):
        refuse(
            f"best_of = {best_of!r} differs from n = {n}: every sample is returned, so that it can be "
            "trained; ask for n and choose",
            "best_of",
            "unsupported_parameter",
        )
    if len(request.prompts) * n > max_n:
        refuse(f"{len(request.prompts)} prompts x n = {n} are more than {max_n} completions", "prompt")
    if request.echo and request.sampling.top_logprobs:
        refuse(
            f"logprobs = {body['logprobs']!r} with echo is not supported: of a prompt only the logprobs of "
            "its own ids are known; send logprobs = 0",
            "logprobs",
            "unsupported_parameter",
        )
    if request.sampling.stream and request.scores_prompt:
        name = "prompt_logprobs" if request.prompt_logprobs else "logprobs"
        refuse(
            f"a stream does not tell the prompt's logprobs: leave out stream, echo or {name}",
            name,
            "unsupported_parameter",
        )


def _prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        refuse(_SHAPES.format(value), "prompt")
    if all(isinstance(one, str) for one in value):
        return list(value)
    if all(isinstance(one, int) for one in value):
        return [_ids(value, "prompt")]
    if all(isinstance(one, list) and one for one in value):
        return [_ids(one, f"prompt[{number}]") for number, one in enumerate(value)]
    refuse(_SHAPES.format(value), "prompt")


_SHAPES = "prompt must be a text, a list of texts, a list of token ids or a list of such lists, not {!r:.200}"


def _ids(value: list[Any], at: str) -> list[int]:
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= _LARGEST_ID:
            refuse(f"{at} has {one!r}, which is no token id", at)
    return list(value)


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    refuse(f"{name} must be true or false, not {value!r}", name)


def _zero(body: dict[str, Any], name: str) -> bool:
    """0 asks for the logprob of each token itself; more would be other tokens'."""
    value = body.get(name)
    if value is None:
        return False
    if isinstance(value, bool) or value != 0:
        refuse(
            f"{name} = {value!r} is not supported: only the logprob of the token itself is known; send 0",
            name,
            "unsupported_parameter",
        )
    return True
