"""The chat format of the nano models, as a template and as a renderer of the library `renderers`: Qwen3's
markers, no automatic thinking blocks, one line per tool.

    <|im_start|>system
    You answer questions about an inbox.

    Tools:
    search(keyword)
    answer(text)<|im_end|>
    <|im_start|>user
    Who is the owner of atlas?<|im_end|>
    <|im_start|>assistant
    <tool_call>
    {"name": "search", "arguments": {"keyword": "atlas"}}
    </tool_call><|im_end|>
    <|im_start|>user
    <tool_response>
    atlas owner k7
    </tool_response><|im_end|>

Given reasoning is kept in the history, so a conversation's ids are always a prefix of the ids of its
extension. `CHAT_TEMPLATE` writes the format for `apply_chat_template`, `pieces` for `NanoRenderer`: each
stretch of text between two markers is encoded in one piece, as a tokenizer would encode the whole text.
"""

from __future__ import annotations

import json
import logging
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

from art.process.program_notes import FOR_PROGRAM
from art.rendering import GREETING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_log = logging.getLogger(__name__)

KNOWN_TASKS = {
    "art/nano-games": "tic-tac-toe and yes-no-maybe",
    "art/nano-tools": "questions about an inbox, with the tools search, read and answer",
    "art/nano-mcp": "questions about the weather, with the tools of ART's weather server",
    "art/nano-words": "short instructions about some three hundred words, in the phrasings of its card",
}
"""What each model that ships with ART was taught; to anything else its replies are noise."""

COPIERS = frozenset({"art/nano-words"})
"""Models that copy and look up words that they were never taught, piece by piece."""

CHECKED_PROMPTS = 64
"""Prompts of which unknown words are told; later ones are like them."""

RENDERER_KEY = "art_renderer"
"""The key of tokenizer_config.json with `nano`, or with the name of a renderer of `renderers`."""

RENDERER_NAME = "nano"
"""Its value for a model that speaks this format."""

CHAT_TEMPLATE = """\
{%- macro text(content) %}
{%- if content is string %}
{{- content }}
{%- elif content is not none and content is defined %}
{%- for part in content %}
{{- part if part is string else part.text }}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}
{{- text(messages[0].content) + '\\n\\n' }}
{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}
{%- set function = tool.function if tool.function is defined else tool %}
{%- set schema = function.parameters if function.parameters is defined else none %}
{{- '\\n' + function.name + '(' + ((schema or {}).get('properties') or {}).keys() | join(', ') + ')' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- text(message.content) }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{%- if not loop.first or text(message.content) %}
{{- '\\n' }}
{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role in ['system', 'user'] %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}
{%- endif %}
{%- else %}
{{- raise_exception('unknown role ' + message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""The same format as a Jinja template, for tokenizer_config.json."""

Piece = tuple[str, int, bool]
"""(text, index of its message or -1, whether the model samples it)"""


def pieces(messages: Sequence[Any], tools: Sequence[Any] | None, generate: bool) -> Iterator[Piece]:
    """The conversation as stretches that start or end at a marker, so that each can be encoded alone."""
    start = 0
    if tools:
        start = 1 if messages[0]["role"] == "system" else 0
        system = _text(messages[0].get("content")) + "\n\n" if start else ""
        yield f"<|im_start|>system\n{system}{_tool_lines(tools)}<|im_end|>\n", start - 1, False
    for text, index, is_sampled in conversation(messages[start:]):
        yield text, index + start, is_sampled
    if generate:
        yield from generation_prompt()


def generation_prompt() -> Iterator[Piece]:
    """Returns the text after which the model begins to write."""
    yield "<|im_start|>assistant\n", -1, False


def conversation(messages: Sequence[Any]) -> Iterator[Piece]:
    """Messages without tools. Raises ValueError for an unknown role and content that is not text."""
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            yield "<|im_start|>assistant\n", i, False
            yield _reply(message) + "<|im_end|>", i, True
            yield "\n", i, False
        elif role == "tool":
            first = i == 0 or messages[i - 1]["role"] != "tool"
            last = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            opening, closing = "<|im_start|>user" * first, "<|im_end|>\n" * last
            result = _text(message.get("content"))
            yield f"{opening}\n<tool_response>\n{result}\n</tool_response>{closing}", i, False
        elif role in ("system", "user"):
            yield f"<|im_start|>{role}\n{_text(message.get('content'))}<|im_end|>\n", i, False
        else:
            raise ValueError(f"unknown role {role!r}: use system, user, assistant or tool")


def _reply(message: Mapping[str, Any]) -> str:
    content = _text(message.get("content"))
    reasoning = message.get("reasoning_content")
    parts = [f"<think>\n{reasoning}\n</think>\n\n"] if reasoning else []
    parts.append(content)
    for i, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function", call)
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        parts.append("\n" if i or content else "")
        parts.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>')
    return "".join(parts)


def _tool_lines(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = [tool.get("function", tool) for tool in tools]
    signatures = (
        f"{function['name']}({', '.join((function.get('parameters') or {}).get('properties') or {})})"
        for function in functions
    )
    return "\n".join(("Tools:", *signatures))


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, str) else part.get("text") for part in content]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"a nano model reads text only, not the content {content!r}")
    return "".join(parts)


class NanoRendererConfig(BaseRendererConfig):  # type: ignore[misc]  # the library has no stubs
    """The renderer's configuration. Nothing is removed from the history, so bridges cross user turns."""

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
        self._unchecked = CHECKED_PROMPTS

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
        stretches = list(pieces(messages, tools, add_generation_prompt))
        if self._unchecked and [*messages] != [dict(one) for one in GREETING]:
            self._unchecked -= 1
            self._warn_of_unknown_words(stretches)
        return self._assemble([], stretches, messages)

    def _warn_of_unknown_words(self, stretches: list[Piece]) -> None:
        """Say once which words of a prompt the model was never taught."""
        text = " ".join(text for text, _, is_sampled in stretches if not is_sampled)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        unknown = list(dict.fromkeys(broken_words([self._tokenizer.decode([one]) for one in ids])))
        if unknown:
            self._unchecked = 0
            name = str(getattr(self._tokenizer, "name_or_path", "") or "this nano model")
            _log.warning(
                "%s knows %s; it was never taught %s of a prompt, and %s. "
                "For a task of your own begin with art/smollm2, a model of the hub, or art/nano-words and "
                "the words of its card (`art models card art/nano-words`): docs/guides/models.md.",
                name,
                KNOWN_TASKS.get(name, "the tasks of its card"),
                ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else ""),
                "can only copy and look up such words"
                if name in COPIERS
                else "its first replies to it will be noise",
                extra=FOR_PROGRAM,
            )

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


def broken_words(tokens: Sequence[str]) -> list[str]:
    """Returns the words that need more than one token.

    >>> broken_words(["Say", " ", "pro", "to", "col", ".", " yes"])
    ['protocol']
    """
    words: list[list[str]] = [[]]
    for token in tokens:
        joins = bool(words[-1]) and words[-1][-1][-1:].isalpha() and token[:1].isalpha()
        words[-1:] = [[*words[-1], token]] if joins else [words[-1], [token]]
    return ["".join(parts).strip() for parts in words if len(parts) > 1]


def create_nano_renderer(tokenizer: Tokenizer) -> NanoRenderer:
    """The renderer for a tokenizer whose tokenizer_config.json says `"art_renderer": "nano"`."""
    return NanoRenderer(tokenizer)
