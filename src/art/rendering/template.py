"""The fallback for models without a renderer of their own: the chat template, stitched where provable.

A chat template is an unknown program. But where it writes a probe conversation plus new messages as exactly
the probe's ids plus some tail, that tail is what the new messages add, and it may follow the sampled ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renderers.configs import DefaultRendererConfig
from renderers.default import DefaultRenderer, _decode_tool_call_arguments

from art.rendering.foreign import rendered
from art.rendering.tokenizer import FastTokenizer

_PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@dataclass(frozen=True, slots=True)
class _Extension:
    """What `bridge_to_next_turn` gives back, as far as it is used."""

    token_ids: list[int]


class TemplateRenderer(DefaultRenderer):  # type: ignore[misc]
    """`DefaultRenderer` that also continues a conversation, for templates that append."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        told: Mapping[str, Any] | None = None,
        foreign: bool = False,
    ) -> None:
        """template: takes the place of the tokenizer's own. told: further variables of it. foreign: it is a
        stranger's, who may not use up this process.
        """
        self._made_of = tokenizer, template, told
        self.foreign = foreign
        vocabulary = tokenizer.get_vocab()
        hermes = "<tool_call>" in vocabulary and "</tool_call>" in vocabulary
        passed = {**(told or {}), **({} if template is None else {"chat_template": template})}
        super().__init__(tokenizer, DefaultRendererConfig(tool_parser="qwen3" if hermes else None, **passed))
        self._fast = FastTokenizer(tokenizer)

    def confined(self) -> TemplateRenderer:
        """The same, as a stranger's."""
        tokenizer, template, told = self._made_of
        return TemplateRenderer(tokenizer, template=template, told=told, foreign=True)

    def _apply(
        self, messages: Sequence[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """Ids that the template writes. Raises: ValueError when it refuses the messages."""
        return self._fast.encode(self._written(messages, tools, add_generation_prompt))

    def _written(self, messages: Sequence[Any], tools: list[Any] | None, generate: bool) -> str:
        from jinja2.exceptions import TemplateError

        told = dict(self.config.model_extra or {})
        said = _decode_tool_call_arguments(list(messages))
        if self.foreign:
            own = self._tokenizer.get_chat_template(told.pop("chat_template", None), tools)
            said = [{name: one for name, one in message.items() if one is not None} for message in said]
            told = {**self._tokenizer.special_tokens_map, **told, "add_generation_prompt": generate}
            return rendered(own, said, tools, told)
        if tools is not None:
            told["tools"] = tools
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    said,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **told,
                )
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[Any],
        *,
        tools: list[Any] | None = None,
    ) -> _Extension | None:
        """The earlier ids and what the template adds for the new messages; None if it rewrites the probe."""
        if not new_messages or any(message.get("role") == "assistant" for message in new_messages):
            return None
        try:
            before = self._apply(_PROBE, tools=tools)
            after = self._apply([*_PROBE, *new_messages], tools=tools, add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError):
            # A template that refuses the probe proves nothing.
            return None
        stops = set(self.get_stop_token_ids())
        close = next((n for n in range(len(before) - 1, -1, -1) if before[n] in stops), None)
        if close is None or after[: len(before)] != before:
            return None
        ids = previous_prompt_ids + previous_completion_ids
        if not previous_completion_ids or previous_completion_ids[-1] not in stops:
            ids = [*ids, before[close]]
        return _Extension(ids + after[close + 1 :])
