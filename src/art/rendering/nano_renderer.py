"""The renderer of the nano models: it fulfils the `Renderer` protocol of the library `renderers`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from renderers import (
    BaseRendererConfig,
    ParsedResponse,
    RenderedTokens,
    Tokenizer,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)
from renderers.parsing import parse_qwen3
from renderers.reasoning import prompt_ends_in_reasoning

from art.rendering.nano import Piece, conversation, generation_prompt, pieces

if TYPE_CHECKING:
    from collections.abc import Sequence


class NanoRendererConfig(BaseRendererConfig):  # type: ignore[misc]  # the library has no stubs
    """Nothing is ever stripped from the history, so bridges cross user turns."""

    _template_fields = frozenset({"enable_thinking"})

    name: Literal["nano"] = "nano"
    thinking_retention: Literal["tool_cycle", "all"] | None = "all"
    enable_thinking: Literal[False] = False
    """Known, because programs for other models say it: no thinking block is ever opened."""


class NanoRenderer:
    """Messages <-> ids for the nano models; `art.rendering.nano` describes the format."""

    config_class = NanoRendererConfig

    def __init__(self, tokenizer: Tokenizer, config: NanoRendererConfig | None = None) -> None:
        self.config = config or NanoRendererConfig()
        self._tokenizer = tokenizer
        self._im_end = self._marker("<|im_end|>")
        self._end_of_text = self._marker("<|endoftext|>")
        self._tool_call = self._marker("<tool_call>")
        self._tool_call_end = self._marker("</tool_call>")
        self._think_end = self._marker("</think>")
        self._stops = frozenset((self._im_end, self._end_of_text))
        # Behind the last turn nearly all prompts are alike, and each reply asks for it.
        self._thought_begun = lru_cache(maxsize=256)(self._ends_in_reasoning)

    @property
    def is_prefix_stable(self) -> bool:
        """True: a completed conversation's ids are a prefix of those of every extension."""
        return True

    def render(
        self,
        messages: list[Any],
        *,
        tools: list[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Ids of a conversation, each with its message and whether the model samples it.

        Raises ValueError for an empty conversation, an unknown role and content that is not text.
        """
        if not messages:
            raise ValueError("a conversation needs at least one message")
        return self._assemble([], list(pieces(messages, tools, add_generation_prompt)), messages)

    def render_ids(
        self,
        messages: list[Any],
        *,
        tools: list[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Ids of a conversation."""
        ids: list[int] = self.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt
        ).token_ids
        return ids

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """Content, reasoning and tool calls (well-formed or not) of a completion."""
        return parse_qwen3(
            self._tokenizer,
            token_ids,
            stop_ids=self._stops,
            tool_call_id=self._tool_call,
            tool_call_end_id=self._tool_call_end,
            reasoning_end_id=self._think_end,
            prefilled_thinking=self._thought_begun(self._behind_last_turn(prompt_ids or [])),
        )

    def _ends_in_reasoning(self, ids: tuple[int, ...]) -> bool:
        return bool(prompt_ends_in_reasoning(self._tokenizer, list(ids), stop_ids=self._stops))

    def _behind_last_turn(self, ids: list[int]) -> tuple[int, ...]:
        start = len(ids)
        while start and ids[start - 1] not in self._stops:
            start -= 1
        return tuple(ids[start:])

    def get_stop_token_ids(self) -> list[int]:
        """Ids that end a reply."""
        return [self._im_end, self._end_of_text]

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: list[Any] | None = None,
    ) -> RenderedTokens | None:
        """The next prompt: the ids so far, unchanged, and the new user, system or tool messages.

        A reply that was cut off gets its closing marker. None for what is no extension: no earlier prompt,
        no new message, or an assistant message among the new ones.
        """
        if not previous_prompt_ids or not new_messages or reject_assistant_in_extension(new_messages):
            return None
        earlier = trim_to_turn_close(
            previous_prompt_ids, previous_completion_ids, set(self._stops), synthesize_close=self._im_end
        )
        if earlier is None:
            return None
        stretches = [("\n", -1, False), *conversation(new_messages), *generation_prompt()]
        return self._assemble(earlier, stretches, new_messages)

    def _assemble(
        self, earlier: list[int], stretches: list[Piece], messages: Sequence[Any]
    ) -> RenderedTokens:
        ids, indices, sampled = list(earlier), [-1] * len(earlier), [False] * len(earlier)
        for text, index, is_sampled in stretches:
            new = self._tokenizer.encode(text, add_special_tokens=False)
            ids += new
            indices += [index] * len(new)
            sampled += [is_sampled] * len(new)
        return RenderedTokens(
            token_ids=ids,
            message_indices=indices,
            sampled_mask=sampled,
            message_roles=[message["role"] for message in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )

    def _marker(self, marker: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(marker)
        if not isinstance(token_id, int) or token_id == self._tokenizer.unk_token_id:
            raise ValueError(f"the tokenizer has no token {marker!r}: it is not one of a nano model")
        return token_id


def create_nano_renderer(tokenizer: Tokenizer) -> NanoRenderer:
    """The renderer for a tokenizer whose tokenizer_config.json says `"art_renderer": "nano"`."""
    return NanoRenderer(tokenizer)
