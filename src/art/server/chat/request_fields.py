"""Fields of requests in every dialect: how one is refused, which do not act here and why, messages and tools
in one spelling.

`OTHER_FIELDS` lists the fields of OpenAI's, vLLM's and Anthropic's requests that do not act: a client that
sends what other servers take is served, unless that would change what is learned without the ledger knowing.
`docs/endpoint.md` has the table; a test holds it to this one. Messages are read into content as text, null
fields gone, the rest refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import orjson

from art.errors import RequestError


def refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    """Raise the 400 that names a field."""
    raise RequestError(message, status=400, code=code, param=param)


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherField:
    """A null is accepted for every field, known or not: it was not given."""

    why: str
    accepted: tuple[Any, ...] | None = None
    """The values that ask for nothing; any other is refused. None: any value is accepted, without effect."""

    @property
    def happens(self) -> str:
        """In the words of the documentation."""
        if self.accepted is None:
            return "accepted, without effect"
        idle = ", ".join(f"`{_spelled(value)}`" for value in self.accepted)
        return f"refused, but for {idle}" if idle else "refused"


_BOOKS = "a provider's books: it never changes a reply"
_CACHES = "caches of a provider: prefixes are reused as they can be, and no reply changes"
_MEDIA = "about images and sound, which are refused themselves"
_OTHER_WEIGHTS = "what is drawn would not come from the distribution whose logprobs are recorded"
_OTHER_PROMPT = "the prompt would be another than the messages say"


def _idle(why: str) -> OtherField:
    return OtherField(why=why)


def _only(why: str, *accepted: Any) -> OtherField:
    return OtherField(why=why, accepted=accepted)


OTHER_FIELDS: Mapping[str, OtherField] = MappingProxyType(
    {
        "user": _idle(_BOOKS),
        "safety_identifier": _idle(_BOOKS),
        "service_tier": _idle(_BOOKS),
        "store": _idle("every completion is in the ledger, whatever it says"),
        "prompt_cache_key": _idle(_CACHES),
        "prompt_cache_options": _idle(_CACHES),
        "prompt_cache_retention": _idle(_CACHES),
        "cache_salt": _idle(_CACHES),
        "request_id": _idle("a reply is named after its sample"),
        "session_id": _idle("a conversation is recognised by its messages and its rollout"),
        "priority": _idle("models and tenants that wait take turns"),
        "prediction": _idle("it makes a provider faster and changes no reply"),
        "verbosity": _idle("no chat format has the notion; vLLM takes it so, too"),
        "length_penalty": _idle("of beam search, which is refused; vLLM takes it so, too"),
        "skip_special_tokens": _idle(
            "raw texts have the special tokens within them and not the one that ends them; chat messages are "
            "read by the chat format"
        ),
        "spaces_between_special_tokens": _idle("fast tokenizers put none"),
        "truncation_side": _idle("nothing is truncated"),
        "stream_interval": _idle("a chunk is sent when there are new tokens"),
        "return_token_offsets": _idle("vLLM takes it so, too, where text is generated"),
        "routed_experts_prompt_start": _idle("no routes of experts are told"),
        "mm_processor_kwargs": _idle(_MEDIA),
        "media_io_kwargs": _idle(_MEDIA),
        "mm_payload": _idle(_MEDIA),
        "return_mm_kwargs": _idle(_MEDIA),
        "modalities": _only("replies are text", ["text"]),
        "audio": _only("replies are text"),
        "functions": _only("superseded: send `tools`", []),
        "function_call": _only("superseded: send `tool_choice`", "auto", "none"),
        "web_search_options": _only("tools run where the agent runs"),
        "moderation": _only("there is no moderation here"),
        "include_reasoning": _only(
            "reasoning is told as it was sampled: sent back without it, a reply would not be found again",
            True,
        ),
        "add_generation_prompt": _only("a reply is the assistant's", True),
        "continue_final_message": _only("a reply is a message of its own, and a sample", False),
        "documents": _only("they would have to be in the messages to be found again", []),
        "chat_template": _only("the model's template is a setting of the model, for all its requests"),
        "truncate_prompt_tokens": _only(f"{_OTHER_PROMPT}: shorten them"),
        "prompt_embeds": _only("a prompt is made of token ids: those are what is trained"),
        "kv_transfer_params": _only("caches are not handed between engines", {}),
        "ec_transfer_params": _only("caches are not handed between engines", {}),
        "bad_words": _only(
            "which ids spell a word depends on the text before it, which the trainer does not follow: use "
            "`logit_bias` or `guided_regex`, which are trained exactly",
            [],
        ),
        "allowed_token_ids": _only(
            "the trainer does not compute that distribution: use `guided_choice` or `guided_regex`, which "
            "are trained exactly",
        ),
        "logprob_token_ids": _only("logprobs are those of the most probable tokens: send `top_logprobs`", []),
        "thinking_token_budget": _only(f"{_OTHER_WEIGHTS}: limit the whole reply by `max_tokens`"),
        "use_beam_search": _only("what a beam finds is no sample", False),
        "watermarking": _only(_OTHER_WEIGHTS, False),
        "repetition_detection": _only("a reply ends with its turn, a stop or `max_tokens`"),
        "vllm_xargs": _only("of extensions of vLLM, of which there is none here", {}),
        "return_prompt_text": _only("send `return_token_ids`: the prompt is its ids", False),
        "suffix": _only("completions go on from the prompt", ""),
    }
)


def check_other_field(name: str, value: Any, known: Iterable[str]) -> None:
    """Whether a field that no reader reads is accepted. `known`: those that act, for the message.

    Raises: RequestError naming the field.
    """
    if value is None:
        return
    other = OTHER_FIELDS.get(name)
    if other is None:
        listed = ", ".join(sorted(known))
        refuse(f"{name[:100]!r} is not supported; supported: {listed}", name[:100], "unsupported_parameter")
    if other.accepted is None or value in other.accepted:
        return
    idle = " or ".join(_spelled(one) for one in other.accepted)
    remedy = f"; leave it out, or send {idle}" if idle else "; leave it out"
    refuse(f"{name} = {value!r:.200} is not supported: {other.why}{remedy}", name, "unsupported_parameter")


def _spelled(value: Any) -> str:
    return orjson.dumps(value).decode()


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_CALL_ID = re.compile(r"call_([0-9a-f]{24})_\d+")

SAMPLE_PREFIX = "smp_"
MOST_MESSAGES = 100_000
MOST_TOOLS = 4096
_LEAST = 100
"""Characters that take as long as a message or a call without any."""


def read_messages(value: Any) -> list[dict[str, Any]]:
    """The messages as renderers want them. Raises: RequestError naming the message."""
    if not isinstance(value, list) or not value:
        refuse("messages must be a list of at least one message", "messages")
    if len(value) > MOST_MESSAGES:
        refuse(f"{len(value)} messages are more than {MOST_MESSAGES}", "messages", "context_length_exceeded")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools as they were sent, checked. Raises: RequestError naming the tool."""
    if not isinstance(value, list):
        refuse(f"tools must be a list, not {value!r}", "tools")
    if len(value) > MOST_TOOLS:
        refuse(f"{len(value)} tools are more than {MOST_TOOLS}", "tools", "context_length_exceeded")
    for index, tool in enumerate(value):
        at = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            refuse(f"{at} must be an object with type 'function'", at)
        function = tool.get("function")
        if not isinstance(function, dict) or not _is_name(function.get("name")):
            refuse(f"{at}.function needs a name of letters, digits, '_', '-' and '.'", at)
        if not isinstance(function.get("parameters") or {}, dict):
            refuse(f"{at}.function.parameters must be a JSON schema object", at)
    return value or None


def sample_hint(messages: list[Any]) -> str | None:
    """The sample that the newest assistant message says it is: by `sample_id`, or by the ids of its calls."""
    for message in reversed(messages):
        if message.get("role") != "assistant":
            continue
        named = message.get("sample_id")
        if isinstance(named, str):
            return named
        calls = message.get("tool_calls")
        match = _CALL_ID.fullmatch(str(calls[0].get("id"))) if calls else None
        return SAMPLE_PREFIX + match[1] if match else None
    return None


def message_size(message: dict[str, Any]) -> int:
    """Characters of one that was read; also an empty one takes its time."""
    size = _LEAST + len(message["content"]) + len(message.get("reasoning_content", ""))
    return size + sum(_LEAST + len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))


def call_id(sample_id: str, index: int) -> str:
    """The id of a call: unique, and a way back to its sample."""
    return f"call_{sample_id.removeprefix(SAMPLE_PREFIX)}_{index}"


def _message(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        refuse(f"{at} must be an object, not {message!r}", at)
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        refuse(f"{at}.role is {message.get('role')!r}; known: {', '.join(_ROLES)}", f"{at}.role")
    read: dict[str, Any] = {"role": role, "content": _content(message.get("content"), role, at)}
    if role == "assistant":
        _assistant(message, read, at)
    elif role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            refuse(
                f"{at}.tool_call_id is missing: which call does the result belong to?", f"{at}.tool_call_id"
            )
        read["tool_call_id"] = message["tool_call_id"]
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            refuse(f"{at}.name must be a string, not {name!r}", f"{at}.name")
        read["name"] = name
    return read


def _assistant(message: dict[str, Any], read: dict[str, Any], at: str) -> None:
    for gone in ("function_call", "audio"):
        if message.get(gone) is not None:
            refuse(f"{at}.{gone} is not supported", f"{at}.{gone}", "unsupported_parameter")
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        read["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        refuse(f"{at}.tool_calls must be a list, not {calls!r}", f"{at}.tool_calls")
    read["tool_calls"] = [_call(call, f"{at}.tool_calls[{n}]") for n, call in enumerate(calls)]


def _call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        refuse(f"{at} must be an object with a function that has a name", at)
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        # Some frameworks keep arguments parsed.
        try:
            arguments = orjson.dumps(arguments).decode()
        except orjson.JSONEncodeError as error:
            refuse(f"{at}.function.arguments cannot be written as JSON: {error}", at)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _content(content: Any, role: str, at: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        refuse(f"{at}.content is missing", f"{at}.content")
    if not isinstance(content, list):
        refuse(f"{at}.content must be a string or a list of parts, not {content!r}", f"{at}.content")
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else part
            refuse(
                f"{at}.content has a part of type {kind!r}; this model takes text only",
                f"{at}.content",
                "unsupported_content",
            )
        texts.append(text)
    return "".join(texts)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
