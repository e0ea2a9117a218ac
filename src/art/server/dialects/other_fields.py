"""Fields of OpenAI's, vLLM's and Anthropic's requests that do not act here, each with the reason.

One table for every dialect: a client that sends what other servers take is served, unless that would change
what is learned without the ledger knowing. `docs/endpoint.md` has the table; a test holds it to this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from art.server.dialects.refusal import refuse


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


def check_other(name: str, value: Any, known: Iterable[str]) -> None:
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
