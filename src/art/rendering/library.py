"""A renderer of the `renderers` library behind our own small face."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import orjson

from art.engine.protocol import Constraint
from art.errors import ConfigurationError, RequestError
from art.rendering.call_grammar import (
    THINKING,
    Thinking,
    call_format,
    call_markers,
    check_plain,
    reply_grammar,
)
from art.rendering.chat_renderer import Message, Parsed, SpecialTokensInText, Tool, ToolFormat
from art.rendering.images import ImageFormat
from art.rendering.reply import END_THINK, TAIL, first_prompt, is_thinking, read_completion, reply_ids
from art.rendering.template import ChatFormats, GenericToolsRenderer
from art.rendering.tokenizer import FastTokenizer
from art.rendering.tool_text import read_listed_calls

_INEXPRESSIBLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Templates refuse messages that they cannot express in many ways."""

_OWN_ENCODERS = frozenset({"GptOssRenderer"})
"""Formats that encode texts by themselves, and never as special tokens."""

_VARIANTS = 64
"""Renderers kept of what requests told a format."""


class LibraryRenderer:
    """Messages to ids and back, by a renderer of `renderers` or one that keeps its protocol."""

    def __init__(
        self,
        renderer: Any,
        tokenizer: FastTokenizer,
        *,
        stop_token_ids: Sequence[int] = (),
        formats: ChatFormats | None = None,
        template: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        special_tokens_in_text: SpecialTokensInText = "text",
        tool_format: ToolFormat = "auto",
        images: ImageFormat | None = None,
    ) -> None:
        """`stop_token_ids`: further ids that end a turn (from the model's generation settings). `formats`
        made the renderer from `template`, `arguments` and `tool_format`, and can make others. `images`: of a
        model that sees.
        """
        self.images = images
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._stops = tuple(dict.fromkeys((*renderer.get_stop_token_ids(), *stop_token_ids)))
        self._stop_set = frozenset(self._stops)
        self._formats, self._template, self._arguments = formats, template, dict(arguments or {})
        self._variants: dict[bytes, LibraryRenderer] = {}
        self._in_text, self._tool_format = special_tokens_in_text, tool_format
        self._confined: LibraryRenderer | None = None
        self._variant = _variant(template, self._arguments, special_tokens_in_text, tool_format)
        self._call_markers = call_markers(self.kind, tokenizer)

    @property
    def kind(self) -> str:
        """The class that knows the format."""
        return type(self._renderer).__name__

    @property
    def variant(self) -> str:
        """The format's settings in canonical spelling; empty without settings."""
        return self._variant

    def with_arguments(
        self,
        arguments: Mapping[str, Any],
        *,
        template: str | None = None,
        special_tokens_in_text: SpecialTokensInText | None = None,
        tool_format: ToolFormat | None = None,
    ) -> LibraryRenderer:
        """The format with these arguments of its template over its own, or with another template.

        Raises: RequestError for arguments that the format does not know.
        """
        merged = {**self._arguments, **arguments}
        wanted = self._template if template is None else template
        in_text = special_tokens_in_text or self._in_text
        tools = tool_format or self._tool_format
        name = _variant(wanted, merged, in_text, tools)
        if name == self._variant:
            return self
        key = name.encode()
        if key not in self._variants:
            if len(self._variants) >= _VARIANTS:
                self._variants.clear()
            self._variants[key] = self._make_variant(wanted, merged, in_text, tools)
        return self._variants[key]

    def knows(self, name: str) -> bool:
        """Returns whether an argument of this name means something to the format's template."""
        return self._formats is not None and name in self._formats.names(self._template)

    @property
    def foreign(self) -> bool:
        """A template of a stranger writes the prompts: a rendering may take seconds."""
        return bool(getattr(self._renderer, "foreign", False))

    def confined(self) -> LibraryRenderer:
        """The format for a stranger, whose template may not use up this process."""
        if self.foreign or not hasattr(self._renderer, "confined"):
            return self
        if self._confined is None:
            self._confined = LibraryRenderer(
                self._renderer.confined(),
                self._tokenizer,
                stop_token_ids=self._stops,
                formats=self._formats,
                template=self._template,
                arguments=self._arguments,
                special_tokens_in_text=self._in_text,
                tool_format=self._tool_format,
                images=self.images,
            )
        return self._confined

    def _make_variant(
        self,
        template: str | None,
        arguments: Mapping[str, Any],
        in_text: SpecialTokensInText,
        tool_format: ToolFormat,
    ) -> LibraryRenderer:
        renderer, own = self._renderer, (self._template, self._arguments, self._tool_format)
        try:
            if (template, arguments, tool_format) != own:
                if self._formats is None:
                    raise ConfigurationError(f"{self.kind} takes no template and no arguments")
                renderer = self._formats.make(template, arguments, tool_format)
        except ConfigurationError as error:
            raise RequestError(
                str(error), status=400, code="invalid_value", param="chat_template_kwargs"
            ) from error
        made = LibraryRenderer(
            renderer,
            self._tokenizer,
            stop_token_ids=self._stops,
            formats=self._formats,
            template=template,
            arguments=arguments,
            special_tokens_in_text=in_text,
            tool_format=tool_format,
            images=self.images,
        )
        return made.confined() if self.foreign else made

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant's turn."""
        return self._stops

    @property
    def longest_token(self) -> int:
        """Characters that one id stands for at most: a text has at least its length by this of tokens."""
        return self._tokenizer.longest_token

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, generate: bool = True
    ) -> list[int]:
        """The whole conversation, up to where the assistant begins to write (`generate`). Raises:
        RequestError.
        """
        try:
            with self._texts(messages, tools) as (said, offered):
                ids = self._renderer.render_ids(
                    list(said), tools=_tool_list(offered), add_generation_prompt=generate
                )
                return self._expanded(self._checked(ids), messages)
        except _INEXPRESSIBLE as error:
            raise RequestError(
                f"the model's chat format cannot express these messages: {error}",
                status=400,
                code="unrenderable_messages",
                param="messages",
            ) from error

    def bridge(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] | None,
    ) -> list[int] | None:
        """`prompt_ids + completion_ids + ids of the new messages`, or None where it cannot be proven safe."""
        prompt, completion = list(prompt_ids), list(completion_ids)
        try:
            with self._texts(new_messages, tools) as (new, offered):
                rendered = self._renderer.bridge_to_next_turn(
                    prompt, completion, list(new), tools=_tool_list(offered)
                )
                if rendered is None:
                    return None
                ids: list[int] = rendered.token_ids
                tail = self._checked(ids[len(prompt) + len(completion) :])
                ids = [*ids[: len(prompt) + len(completion)], *self._expanded(tail, new_messages)]
        except _INEXPRESSIBLE:
            # Rendering the whole conversation will say what is wrong with it.
            return None
        # Libraries may trim what follows a turn's end; the promise here is about every sampled id.
        cut = len(prompt)
        end = cut + len(completion)
        return ids if ids[:cut] == prompt and ids[cut:end] == completion else None

    def reply(self, prompt_ids: Sequence[int], message: Message, tools: Sequence[Tool] | None) -> list[int]:
        """The ids that the model would have to sample behind a prompt to say this assistant message, with
        the id that ends the turn. Raises: RequestError.
        """
        try:
            with self._texts([message], tools) as ([said], offered):
                return self._checked(
                    reply_ids(self._renderer, self._tokenizer, prompt_ids, said, offered, self._stops)
                )
        except _INEXPRESSIBLE as error:
            raise _unrenderable_error(error) from error

    def first_prompt(self, message: Message, tools: Sequence[Tool] | None) -> list[int]:
        """The prompt of a conversation that this assistant message opens. Raises: RequestError."""
        try:
            with self._texts([message], tools) as ([said], offered):
                reply = reply_ids(self._renderer, self._tokenizer, [], said, offered, self._stops)
                return self._checked(first_prompt(self._renderer, said, reply, offered))
        except _INEXPRESSIBLE as error:
            raise _unrenderable_error(error) from error

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: Sequence[int],
        tools: Sequence[Tool] | None,
        *,
        partial: bool = False,
        constrained: bool = False,
    ) -> Parsed:
        """The message that these ids spell: see `ChatRenderer.parse`."""
        parsed = read_completion(
            self._renderer,
            self._tokenizer,
            list(completion_ids),
            self._shown(prompt_ids),
            _tool_list(tools),
            stops=self._stop_set,
            partial=partial,
            call_markers=self._call_markers if constrained else None,
        )
        if tools and isinstance(self._renderer, GenericToolsRenderer):
            return read_listed_calls(parsed, partial=partial, constrained=constrained)
        return parsed

    def grammar(
        self,
        prompt_ids: Sequence[int],
        *,
        text: Constraint | Literal["any"] | None,
        tools: Sequence[Tool],
        parallel: bool,
    ) -> Constraint | None:
        """See `ChatRenderer.grammar`."""
        check_plain(self.kind)
        return reply_grammar(
            call_format(self.kind, self._tokenizer),
            text=text,
            tools=tools,
            parallel=parallel,
            thinking=self._thinking(prompt_ids),
            tokenizer=self._tokenizer,
        )

    def _texts(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None
    ) -> AbstractContextManager[tuple[Sequence[Message], Sequence[Tool] | None]]:
        if self._in_text == "parse" or self.kind in _OWN_ENCODERS:
            return nullcontext((messages, tools))
        return self._tokenizer.special.as_text(messages, tools)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        self._tokenizer.special.require_text(ids)
        return list(ids)

    def _expanded(self, ids: list[int], messages: Sequence[Message]) -> list[int]:
        """Raises: ValueError."""
        return ids if self.images is None else self.images.expanded(ids, messages)

    def _shown(self, ids: Sequence[int]) -> list[int]:
        return list(ids) if self.images is None else self.images.shown(ids)

    def _thinking(self, prompt_ids: Sequence[int]) -> Thinking:
        prompt_ids = self._shown(prompt_ids)
        if is_thinking(self._tokenizer, prompt_ids):
            return "open"
        ended = self._tokenizer.decode(list(prompt_ids[-TAIL:])).rstrip().endswith(END_THINK)
        return "may" if self.kind in THINKING and not ended else "no"

    def tokenizer_settings(self) -> dict[str, Any]:
        """See `ChatRenderer.tokenizer_settings`."""
        own = {} if self._template is None else {"chat_template": self._template}
        return {**self._tokenizer.settings, **own}

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._tokenizer.decode(self._shown(ids))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text that may hold special tokens, as the tokenizer splits it. `special`: with those that
        the tokenizer puts around a text.
        """
        return self._tokenizer.encode_whole(text) if special else self._tokenizer.encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for."""
        return self._tokenizer.token_bytes(token_id)


def _unrenderable_error(error: Exception) -> RequestError:
    return RequestError(
        f"the model's chat format cannot express this assistant message: {error}",
        status=400,
        code="unrenderable_messages",
        param="messages",
    )


def _variant(
    template: str | None,
    arguments: Mapping[str, Any],
    in_text: SpecialTokensInText,
    tool_format: ToolFormat,
) -> str:
    """Raises: RequestError for what is no JSON."""
    more = ["special tokens"] if in_text == "parse" else []
    more += ["tools of the template"] if tool_format == "template" else []
    if template is None and not arguments and not more:
        return ""
    digest = None if template is None else hashlib.sha256(template.encode()).hexdigest()
    try:
        return orjson.dumps([digest, arguments, *more], option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise RequestError(
            f"chat_template_kwargs cannot be written as JSON: {error}",
            status=400,
            code="invalid_value",
            param="chat_template_kwargs",
        ) from error


def _tool_list(tools: Sequence[Tool] | None) -> list[Tool] | None:
    return list(tools) if tools else None
