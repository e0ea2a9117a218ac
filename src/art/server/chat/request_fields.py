"""The fields of requests in every dialect: what each may hold and does, and which do not act here and why.

A dialect declares a field once, as a `RequestField`; its `RequestSchema` reads bodies, and is their schema in
the OpenAPI document. `OTHER_FIELDS` lists the fields of OpenAI's, vLLM's and Anthropic's requests that do not
act: a client that sends what other servers take is served, unless that would change what is learned without
the ledger knowing. `docs/reference/endpoint.md` has the table; a test holds it to this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

from art.wire.request_values import WHOLE_VALUE, Idle, Schema, Values, refuse
from art.wire.sampling import Parameter

_BOOKS = "a provider's books: it never changes a reply"
_CACHES = "caches of a provider: prefixes are reused as they can be, and no reply changes"
_MEDIA = "about images and sound, which are refused themselves"
_OTHER_WEIGHTS = "what is drawn would not come from the distribution whose logprobs are recorded"
_OTHER_PROMPT = "the prompt would be another than the messages say"


def _idle(why: str) -> Idle:
    return Idle(why, anything=True)


def _only(why: str, *accepted: Any) -> Idle:
    return Idle(why, *accepted, remedy=True)


OTHER_FIELDS: Mapping[str, Idle] = MappingProxyType(
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


Act = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field of a dialect's requests: what it may hold, and what a value does to the request that is read.

    Declared beside the attribute of its name: `n: Annotated[int, RequestField(Whole(1, 8))] = 1`.
    """

    values: Values
    act: Act | None = None
    """None: the value becomes the attribute of the field's name."""

    def read(self, request: Any, name: str, value: Any, *, quoted: int = WHOLE_VALUE) -> None:
        """Check a value and put it into the request. Raises: RequestError naming the field."""
        checked = self.values.read(name, value, quoted=quoted)
        if self.act is not None:
            self.act(request, name, checked)
        elif checked is not None:
            setattr(request, name, checked)


class RequestSchema:
    """The fields of a dialect's bodies, each declared once, and the `idle` ones, which do not act.

    `quoted`: characters of a wrong value that a refusal repeats.
    """

    def __init__(
        self,
        fields: Mapping[str, RequestField],
        *,
        required: tuple[str, ...] = (),
        idle: Mapping[str, Idle] = OTHER_FIELDS,
        quoted: int = WHOLE_VALUE,
    ) -> None:
        self.fields = fields
        self.required = required
        self._idle = idle
        self._quoted = quoted

    @property
    def schema(self) -> Schema:
        """JSON schema of a body: all but the required may be null."""
        kinds = {**self._idle, **{name: field.values for name, field in self.fields.items()}}
        return {
            "type": "object",
            "properties": {
                name: kind.schema if name in self.required else {"anyOf": [kind.schema, {"type": "null"}]}
                for name, kind in kinds.items()
            },
            "required": list(self.required),
            "additionalProperties": False,
        }

    def read(self, request: Any, body: dict[str, Any]) -> None:
        """Reads the body's fields into the request. Raises: RequestError naming the first wrong field."""
        for name, value in body.items():
            field = self.fields.get(name)
            if field is None:
                self.check_other_field(name, value)
            elif value is not None or name in self.required:
                field.read(request, name, value, quoted=self._quoted)
        for name in self.required:
            if name not in body:
                refuse(f"{name!r} is missing", name, "missing_parameter")

    def read_field(self, name: str, value: Any) -> Any:
        """The checked value of one field; None: it was not given. Raises: RequestError naming the field."""
        return None if value is None else self.fields[name].values.read(name, value, quoted=self._quoted)

    def check_other_field(self, name: str, value: Any) -> None:
        """Returns whether a field that does not act is accepted; a null always is: it was not given.

        Raises: RequestError naming the field.
        """
        if value is None:
            return
        other = self._idle.get(name)
        if other is None:
            listed = ", ".join(sorted(self.fields))
            problem = f"{name[:100]!r} is not supported; supported: {listed}"
            refuse(problem, name[:100], "unsupported_parameter")
        other.read(name, value)


def declared_fields(request: type) -> dict[str, RequestField]:
    """Returns the declarations of the attributes of a class of requests, sampling parameters included."""
    declared = {}
    for name, hint in get_type_hints(request, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, RequestField):
                declared[name] = mark
            elif isinstance(mark, Parameter):
                declared[name] = RequestField(mark.values)
    return declared
