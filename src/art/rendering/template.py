"""Chat templates: the renderer of models that have no other, and the arguments and templates of callers.

A chat template is an unknown program. But where it writes a probe conversation plus new messages as exactly
the probe's ids plus some tail, that tail is what the new messages add, and it may follow the sampled ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from renderers.base import ParsedResponse
from renderers.configs import DefaultRendererConfig
from renderers.default import DefaultRenderer, _decode_tool_call_arguments
from renderers.reasoning import prompt_ends_in_reasoning, scan_reasoning

from art.errors import ConfigurationError
from art.process.imports import import_lock
from art.rendering.chat_renderer import ToolFormat
from art.rendering.confined_template import render_confined
from art.rendering.tokenizer import FastTokenizer
from art.rendering.tool_text import CALL, END_CALL, as_plain, with_tools_text

_PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@dataclass(frozen=True, slots=True)
class _Extension:
    """The used part of the result of `bridge_to_next_turn`."""

    token_ids: list[int]


class TemplateRenderer(DefaultRenderer):  # type: ignore[misc]
    """`DefaultRenderer` that also continues a conversation, for templates that append."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        foreign: bool = False,
    ) -> None:
        """template: takes the place of the tokenizer's own. arguments: further variables of it. foreign: it
        is a stranger's, who may not use up this process.
        """
        self._made_of = tokenizer, template, arguments
        self.foreign = foreign
        vocabulary = tokenizer.get_vocab()
        hermes = "<tool_call>" in vocabulary and "</tool_call>" in vocabulary
        passed = {**(arguments or {}), **({} if template is None else {"chat_template": template})}
        super().__init__(tokenizer, DefaultRendererConfig(tool_parser="qwen3" if hermes else None, **passed))
        self._fast = FastTokenizer(tokenizer)

    def confined(self) -> TemplateRenderer:
        """The same, as a stranger's."""
        tokenizer, template, arguments = self._made_of
        return type(self)(tokenizer, template=template, arguments=arguments, foreign=True)

    def _apply(
        self, messages: Sequence[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """Ids that the template writes. Raises: ValueError when it refuses the messages."""
        return self._fast.encode(self._rendered_text(messages, tools, add_generation_prompt))

    def _rendered_text(self, messages: Sequence[Any], tools: list[Any] | None, generate: bool) -> str:
        with import_lock:
            from jinja2.exceptions import TemplateError

        arguments = dict(self.config.model_extra or {})
        turns = _decode_tool_call_arguments(list(messages))
        if self.foreign:
            own = self._tokenizer.get_chat_template(arguments.pop("chat_template", None), tools)
            turns = [{name: one for name, one in message.items() if one is not None} for message in turns]
            arguments = {**self._tokenizer.special_tokens_map, **arguments, "add_generation_prompt": generate}
            return render_confined(own, turns, tools, arguments)
        if tools is not None:
            arguments["tools"] = tools
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **arguments,
                )
            )
        except (TemplateError, NameError) as error:  # jinja2 compiles 1e999 to a name, `inf`
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


class ToollessRenderer(TemplateRenderer):
    """A template that knows no tools, where nothing else shall tell of them."""

    def _rendered_text(self, messages: Sequence[Any], tools: list[Any] | None, generate: bool) -> str:
        if tools:
            raise ValueError(
                "its chat template knows no tools. Leave the tools out, or register the model without "
                "tool_format='template': then they are rendered in the generic format"
            )
        return super()._rendered_text(messages, None, generate)


class GenericToolsRenderer(TemplateRenderer):
    """A template that knows no tools, with tools, calls and results as text: `art.rendering.tool_text`."""

    def _rendered_text(self, messages: Sequence[Any], tools: list[Any] | None, generate: bool) -> str:
        plain = as_plain(messages)
        if tools:
            plain = with_tools_text(plain, tools, system=self._has_system)
        return super()._rendered_text(plain, None, generate)

    @cached_property
    def _has_system(self) -> bool:
        """The template has a place for a system message."""
        probe = [{"role": "system", "content": "syszprobe"}, {"role": "user", "content": "a"}]
        try:
            return "syszprobe" in super()._rendered_text(probe, None, True)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """The words of a reply, its calls among them as text: `read_listed_calls` finds them."""
        stops = set(self.get_stop_token_ids())
        end = next((n for n, token in enumerate(token_ids) if token in stops), len(token_ids))
        ids = token_ids[:end]
        begun = prompt_ends_in_reasoning(self._tokenizer, prompt_ids, stop_ids=stops)
        thought = scan_reasoning(self._tokenizer, ids, prefilled=begun)
        if thought.is_open:
            return ParsedResponse(content="", reasoning_content=thought.text, reasoning_complete=False)
        text = self._fast.decode(ids)
        if thought.text is not None:
            text = text.partition("</think>")[2]
        for token in self._fast.all_special_tokens:
            if token not in (CALL, END_CALL):
                text = text.replace(token, "")
        return ParsedResponse(content=text, reasoning_content=thought.text or None)


_GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
)
"""Variables of a template that are not for callers."""
LONGEST_TEMPLATE = 1 << 16
"""Characters, which take a second to be read. Those of published models have some 30,000 at most."""
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag that transformers adds to Jinja; it writes nothing."""


class ChatFormats:
    """Makes renderers that differ in what they are told, all over one tokenizer."""

    def __init__(self, renderer: Any, fast: Any, tokenizer: Any) -> None:
        """`renderer` is told nothing; `fast` and `tokenizer` are the same one in its two forms."""
        self._renderer, self._fast, self._tokenizer = renderer, fast, tokenizer
        self._generic: set[str | None] = {None}
        """Templates of which was said that they know no tools; the model's own is said elsewhere."""

    def names(self, template: str | None) -> frozenset[str]:
        """Returns the settings that the format, or `template`, accepts. Raises ConfigurationError if it is
        not a template.
        """
        if template is None and not isinstance(self._renderer, TemplateRenderer):
            known: frozenset[str] = type(self._renderer.config).template_field_names()
            return known
        return template_names(self._tokenizer.get_chat_template() if template is None else template)

    def make(
        self, template: str | None, arguments: Mapping[str, Any], tool_format: ToolFormat = "auto"
    ) -> Any:
        """A renderer of the format, or of `template`.

        Raises ConfigurationError for names that it does not know and values that it does not take.
        """
        if template is not None or isinstance(self._renderer, TemplateRenderer):
            _check_arguments(arguments, self.names(template))
            made = make_template_renderer(
                self._tokenizer, template=template, arguments=arguments, tool_format=tool_format
            )
            if isinstance(made, GenericToolsRenderer) and template not in self._generic:
                self._generic.add(template)
                log_generic_tools(f"a chat template for {self._fast.name_or_path}")
            return made
        _check_arguments(arguments, self.names(template))
        config = type(self._renderer.config)
        try:
            return self._create_format(config(**{**keeping_thoughts(config), **arguments}))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the model's chat format refuses {dict(arguments)!r}: {error}"
            ) from error

    def _create_format(self, config: Any) -> Any:
        with import_lock:
            from art.rendering.nano import NanoRenderer

        if isinstance(self._renderer, NanoRenderer):
            return NanoRenderer(self._fast, config)
        with import_lock:
            from renderers.base import create_renderer

        return create_renderer(self._fast, config)


def keeping_thoughts(config: Any) -> dict[str, Any]:
    """Returns the settings of a format under which sampled thoughts stay in the history."""
    further = {"auto_drop_analysis": False} if "auto_drop_analysis" in config.model_fields else {}
    return {"thinking_retention": "all", **further}


_log = logging.getLogger(__name__)


def make_template_renderer(
    tokenizer: Any,
    *,
    template: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    tool_format: ToolFormat = "auto",
) -> TemplateRenderer:
    """The renderer of a chat template: `template`, or the tokenizer's own. Raises ConfigurationError if it is
    not a template.
    """
    kind: type[TemplateRenderer] = TemplateRenderer
    if not _knows_tools(tokenizer, template):
        kind = GenericToolsRenderer if tool_format == "auto" else ToollessRenderer
    return kind(tokenizer, template=template, arguments=arguments)


def log_generic_tools(what: str) -> None:
    """Says in the log that tools are told in the generic format."""
    _log.info(
        "%s knows no tools: they are rendered in ART's generic format (docs/guides/tool-format.md); "
        "_internal_config={'tool_format': 'template'} turns it off",
        what,
    )


def _knows_tools(tokenizer: Any, template: str | None) -> bool:
    # A tokenizer may have several templates, one of them for tools.
    text = tokenizer.get_chat_template(tools=[{}]) if template is None else template
    return "tools" in _all_names(text)


def template_names(template: str) -> frozenset[str]:
    """Returns the settings that a Jinja template accepts. Raises ConfigurationError if it is not a template.

    >>> sorted(template_names("{{ bos_token }}{% if enable_thinking %}{{ messages[0].content }}{% endif %}"))
    ['enable_thinking']
    """
    return frozenset(name for name in _all_names(template) - _GIVEN if not name.endswith("_token"))


@lru_cache(maxsize=64)
def _all_names(template: str) -> frozenset[str]:
    """The variables that a Jinja template does not set itself."""
    with import_lock:
        from jinja2 import Environment, TemplateSyntaxError, meta, nodes, pass_context

    if len(template) > LONGEST_TEMPLATE:
        raise ConfigurationError(
            f"the chat template has {len(template)} characters, and {LONGEST_TEMPLATE} are the most"
        )
    # It is parsed only. While it looks for names Jinja would compute what is constant, `9 ** 9 ** 9` too:
    # unless there is no optimizer, each output goes through a function of the context, and autoescape says
    # nothing.
    environment = Environment(
        extensions=["jinja2.ext.loopcontrols"], autoescape=False, finalize=pass_context(_as_it_is)
    )
    try:
        parsed = environment.parse(_GENERATION.sub("", template))
        for node in parsed.find_all(nodes.EvalContextModifier):
            node.options = []
        reader = meta.TrackingCodeGenerator(environment)
        reader.optimizer = None
        reader.visit(parsed)
    except TemplateSyntaxError as error:
        raise ConfigurationError(f"the chat template is no Jinja template: {error}") from error
    except RecursionError as error:
        raise ConfigurationError("the chat template is nested too deeply") from error
    return frozenset(reader.undeclared_identifiers)


def _as_it_is(context: Any, value: Any) -> Any:
    return value


def _check_arguments(arguments: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(set(arguments) - known):
        listed = ", ".join(sorted(known)) or "nothing"
        raise ConfigurationError(
            f"chat_template_kwargs {unknown!r} are unknown to the model's chat format, which takes: {listed}"
        )
