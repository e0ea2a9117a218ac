"""The fields of requests in every dialect: what each may hold and does, and which do not act here and why.

A dialect declares a field once, as a `RequestField`; its `RequestSchema` reads bodies, and is their schema in
the OpenAPI document. `OTHER_FIELDS` lists the fields of OpenAI's, vLLM's and Anthropic's requests that do not
act: a client that sends what other servers take is served, unless that would change what is learned without
the ledger knowing. `docs/reference/endpoint.md` has the table; a test holds it to this one.

The dialects that agents speak are open: nobody here can edit those programs, and each release brings fields.
What such a request has and nothing here acts on, its `LeftOutParts` notes once and counts. A name that acts
in another dialect, or looks like one that acts, is refused everywhere: leaving it out would change the reply.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

from art.errors import RequestError, did_you_mean
from art.wire.request_values import WHOLE_VALUE, Idle, Schema, Values, refuse
from art.wire.sampling import Parameter

_BOOKS = "it is for a provider's billing and does not change a reply"
_CACHES = "prefixes are cached automatically, and replies do not change"
_MEDIA = "it configures images and sound, which are not supported"
_OTHER_WEIGHTS = "the sampled distribution would differ from the one whose logprobs are recorded"
_OTHER_PROMPT = "the prompt would differ from the messages"
_MOST_NOTED = 200
"""Kinds of left out parts that have a name of their own: requests of strangers name them."""
_NOT_NAMED = "(others)"
_LONGEST_NAME = 100
MOST_UNKNOWN = 100
"""Fields of a body, or of an object in it, that nothing here knows: each is looked at."""
_ALIKE = 0.8
"""The least likeness, from 0 to 1, at which an unknown name is taken for a misspelt field."""
_log = logging.getLogger(__name__)


def _idle(why: str) -> Idle:
    return Idle(why, anything=True)


def _only(why: str, *accepted: Any) -> Idle:
    return Idle(why, *accepted, remedy=True)


OTHER_FIELDS: Mapping[str, Idle] = MappingProxyType(
    {
        "user": _idle(_BOOKS),
        "safety_identifier": _idle(_BOOKS),
        "service_tier": _idle(_BOOKS),
        "store": _idle("every completion is stored in the ledger"),
        "prompt_cache_key": _idle(_CACHES),
        "prompt_cache_options": _idle(_CACHES),
        "prompt_cache_retention": _idle(_CACHES),
        "cache_salt": _idle(_CACHES),
        "request_id": _idle("a reply is named after its sample"),
        "session_id": _idle("a conversation is recognised by its messages and its rollout"),
        "priority": _idle("waiting models and tenants take turns"),
        "prediction": _idle("it makes a provider faster and changes no reply"),
        "verbosity": _idle("no chat format has this setting; vLLM ignores it too"),
        "length_penalty": _idle("it belongs to beam search, which is not supported; vLLM ignores it too"),
        "skip_special_tokens": _idle(
            "raw completions contain their special tokens except the final one; the chat format parses chat "
            "messages"
        ),
        "spaces_between_special_tokens": _idle("fast tokenizers insert none"),
        "truncation_side": _idle("nothing is truncated"),
        "stream_interval": _idle("a chunk is sent when there are new tokens"),
        "return_token_offsets": _idle("vLLM ignores it too when it generates text"),
        "routed_experts_prompt_start": _idle("the server does not return expert routes"),
        "mm_processor_kwargs": _idle(_MEDIA),
        "media_io_kwargs": _idle(_MEDIA),
        "mm_payload": _idle(_MEDIA),
        "return_mm_kwargs": _idle(_MEDIA),
        "modalities": _only("replies are text", ["text"]),
        "audio": _only("replies are text"),
        "functions": _only("deprecated: send `tools`", []),
        "function_call": _only("deprecated: send `tool_choice`", "auto", "none"),
        "web_search_options": _only("tools run in your agent"),
        "moderation": _only("the server does not moderate"),
        "include_reasoning": _only(
            "replies contain their reasoning: without it, the server could not match the reply in a later "
            "request",
            True,
        ),
        "add_generation_prompt": _only("a reply is always an assistant message", True),
        "continue_final_message": _only("each reply is a new message and a new sample", False),
        "documents": _only("put them into the messages", []),
        "chat_template": _only("set the chat template on the model, for all its requests"),
        "truncate_prompt_tokens": _only(f"{_OTHER_PROMPT}: shorten them"),
        "prompt_embeds": _only("only token ids can be trained"),
        "kv_transfer_params": _only("engines do not exchange caches", {}),
        "ec_transfer_params": _only("engines do not exchange caches", {}),
        "bad_words": _only(
            "the tokens of a word depend on the text before it, which the trainer does not track: use "
            "`logit_bias` or `guided_regex`, which are trained exactly",
            [],
        ),
        "allowed_token_ids": _only(
            "the trainer does not compute that distribution: use `guided_choice` or `guided_regex`, which "
            "are trained exactly",
        ),
        "logprob_token_ids": _only(
            "logprobs are returned for the most probable tokens: send `top_logprobs`", []
        ),
        "thinking_token_budget": _only(f"{_OTHER_WEIGHTS}: limit the reply with `max_tokens`"),
        "use_beam_search": _only("a beam is not a sample of the distribution", False),
        "watermarking": _only(_OTHER_WEIGHTS, False),
        **dict.fromkeys(("typical_p", "tfs_z", "num_beams"), _only(_OTHER_WEIGHTS, 1)),
        **dict.fromkeys(
            (
                "top_a",
                "mirostat",
                "dry_multiplier",
                "xtc_probability",
                "penalty_alpha",
                "no_repeat_ngram_size",
            ),
            _only(_OTHER_WEIGHTS, 0),
        ),
        "top_n_sigma": _only(_OTHER_WEIGHTS, -1),
        "do_sample": _only("for greedy replies send `temperature` = 0", True),
        "safe_prompt": _only(f"{_OTHER_PROMPT}: send a system message", False),
        **dict.fromkeys(
            ("extra_body", "options", "parameters", "sampling_params", "generation_config"),
            _only("put its fields into the body itself", {}),
        ),
        "repetition_detection": _only("use `stop` or `max_tokens`"),
        "vllm_xargs": _only("the server has no vLLM extensions", {}),
        "return_prompt_text": _only("send `return_token_ids`: the prompt is its ids", False),
        "suffix": _only("completions continue the prompt", ""),
    }
)


class LeftOutParts:
    """The parts of a route's requests that nothing here acts on: each kind is logged once, all are counted.

    `strict`: refuse it instead.
    """

    def __init__(
        self, route: str, counts: Counter[tuple[str, str]] | None = None, *, strict: bool = False
    ) -> None:
        """counts: of all routes, by route and kind."""
        self._route, self._strict = route, strict
        self._counts = Counter() if counts is None else counts
        self._lock = threading.Lock()

    def skip(self, kind: str, at: str, why: str) -> None:
        """Notes that a part of a request does not act. `kind`: its name without places and values.

        Raises: RequestError where requests are strict.
        """
        if self._strict:
            refuse(f"{at} is not supported: {why}", at, "unsupported_parameter")
        key = self._route, kind[:_LONGEST_NAME]
        with self._lock:
            if key not in self._counts and len(self._counts) >= _MOST_NOTED:
                key = self._route, _NOT_NAMED
            self._counts[key] += 1
            first = self._counts[key] == 1
        if first:
            _log.warning("%s: %r does not act: %s (said once)", *key, why)

    def skip_others(
        self,
        value: Mapping[str, Any],
        known: Collection[str],
        kind: str,
        at: str,
        why: str,
        *,
        idle: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    ) -> None:
        """Notes the fields of an object beside the known ones, but for those that ask for nothing: None, or a
        value of `idle`.

        Raises: RequestError for more than `MOST_UNKNOWN`, or where requests are strict.
        """
        skipped = 0
        for name, asked in value.items():
            if name in known or asked is None or asked in idle.get(name, ()):
                continue
            skipped += 1
            if skipped > MOST_UNKNOWN:
                refuse(f"{at} has more than {MOST_UNKNOWN} fields that do not act", at)
            self.skip(f"{kind}.{name}", f"{at}.{name[:_LONGEST_NAME]}", why)


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

    `quoted`: characters of a wrong value that a refusal repeats. `elsewhere`: fields that act in other
    dialects, where this one leaves out what it does not know; None: it refuses that.
    """

    def __init__(
        self,
        fields: Mapping[str, RequestField],
        *,
        required: tuple[str, ...] = (),
        idle: Mapping[str, Idle] = OTHER_FIELDS,
        quoted: int = WHOLE_VALUE,
        elsewhere: Collection[str] | None = None,
    ) -> None:
        self.fields = fields
        self.required = required
        self._idle = idle
        self._quoted = quoted
        self._elsewhere = elsewhere

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
            "additionalProperties": self._elsewhere is not None,
        }

    def read(self, request: Any, body: dict[str, Any], left_out: LeftOutParts | None = None) -> None:
        """Reads the body's fields into the request. Raises: RequestError naming the first wrong field."""
        self.check_number(body)
        for name, value in body.items():
            field = self.fields.get(name)
            if field is None:
                self.check_other_field(name, value, left_out)
            elif value is not None or name in self.required:
                field.read(request, name, value, quoted=self._quoted)
        for name in self.required:
            if name not in body:
                refuse(f"{name!r} is missing", name, "missing_parameter")

    def read_field(self, name: str, value: Any) -> Any:
        """The checked value of one field; None: it was not given. Raises: RequestError naming the field."""
        return None if value is None else self.fields[name].values.read(name, value, quoted=self._quoted)

    def check_number(self, body: dict[str, Any]) -> None:
        """Raises: RequestError for a body of more fields than can be meant."""
        most = len(self.fields) + len(self._idle) + MOST_UNKNOWN
        if len(body) > most:
            refuse(f"the body has {len(body)} fields; {most} are the most", "body", "invalid_request")

    def check_other_field(self, name: str, value: Any, left_out: LeftOutParts | None = None) -> None:
        """Checks a field that does not act; a null is one that was not given.

        Raises: RequestError naming the field.
        """
        if value is None:
            return
        other = self._idle.get(name)
        if other is not None:
            other.read(name, value)
            return
        shown, hint = name[:_LONGEST_NAME], ""
        if left_out is not None and self._elsewhere is not None:
            hint = did_you_mean(shown, self.fields, likeness=_ALIKE)
            if not hint and name not in self._elsewhere:
                left_out.skip(shown, shown, "no field of this name is known here")
                return
        listed = ", ".join(sorted(self.fields))
        problem = f"{shown!r} is not supported{hint and f' ({hint})'}; supported: {listed}"
        refuse(problem, shown, "unsupported_parameter")


def check_object(body: Any) -> None:
    """Raises: RequestError (400) for a decoded body that is no JSON object."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", status=400, code="invalid_json")


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
