"""A request for completions of raw prompts: texts or ids, continued as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from art.engine.limits import MOST_TOP_LOGPROBS
from art.errors import RequestError
from art.server.dialects.chat_fields import whole_reader
from art.server.dialects.chat_request import ChatRequest, read_chat_request
from art.server.dialects.other_fields import check_other
from art.server.dialects.refusal import refuse

Prompt = str | list[int]

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

_LARGEST_ID = 2**31 - 1

_OWN = ("prompt", "echo", "logprobs", "add_special_tokens")

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
    "best_of",
    "ignore_eos",
    "include_stop_str_in_output",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
)
"""Read as a chat completion's."""


@dataclass(kw_only=True, slots=True)
class CompletionsRequest:
    """What is asked for."""

    sampling: ChatRequest
    """Model, sampling and stream, as a chat completion has them; without messages."""
    prompts: list[Prompt] = field(default_factory=list)
    echo: bool = False
    logprobs: bool = False
    special_tokens: bool = False
    """Texts get those that the tokenizer puts around a text."""
    samples: bool = True
    """False: the prompts are told, and nothing is sampled."""

    @property
    def scored(self) -> int | None:
        """So many of the most probable tokens are told beside each of the prompt's; None: nothing of them."""
        asked = self.sampling.prompt_logprobs
        if self.echo and self.logprobs:
            return max(self.sampling.top_logprobs, asked or 0)
        return asked


def read_completions_request(body: Any, *, max_n: int) -> CompletionsRequest:
    """The request of a decoded JSON body. Raises: RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", status=400, code="invalid_json")
    for name, value in body.items():
        if name not in _OWN and name not in _AS_IN_CHAT:
            check_other(name, value, (*_OWN, *_AS_IN_CHAT))
    shared = {name: body[name] for name in _AS_IN_CHAT if name in body}
    samples = not (body.get("max_tokens") == 0 and _flag(body, "echo"))
    if not samples:
        shared["max_tokens"] = 1
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
        special_tokens=_flag(body, "add_special_tokens"),
        samples=samples,
    )
    if request.logprobs:
        whole_reader("top_logprobs", 0, MOST_TOP_LOGPROBS)(sampling, "logprobs", body["logprobs"])
    _fits_together(request, max_n)
    return request


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
