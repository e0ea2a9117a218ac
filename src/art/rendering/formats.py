"""One base model's chat format, told something: arguments of its template, or another template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from art.errors import ConfigurationError
from art.rendering.template import TemplateRenderer

_GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
)
"""Variables of a template that are not for callers."""
LONGEST_TEMPLATE = 1 << 16
"""Characters, which take a second to be read. Those of published models have some 30,000 at most."""
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
"""A tag that transformers adds to Jinja; it writes nothing."""


class Formats:
    """Makes renderers that differ in what they are told, all over one tokenizer."""

    def __init__(self, renderer: Any, fast: Any, tokenizer: Any) -> None:
        """`renderer` is told nothing; `fast` and `tokenizer` are the same one in its two forms."""
        self._renderer, self._fast, self._tokenizer = renderer, fast, tokenizer

    def names(self, template: str | None) -> frozenset[str]:
        """What the format, or `template`, can be told. Raises ConfigurationError when it is no template."""
        if template is None and not isinstance(self._renderer, TemplateRenderer):
            known: frozenset[str] = type(self._renderer.config).template_field_names()
            return known
        return template_names(self._tokenizer.get_chat_template() if template is None else template)

    def make(self, template: str | None, told: Mapping[str, Any]) -> Any:
        """A renderer of the format, or of `template`.

        Raises ConfigurationError for names that it does not know and values that it does not take.
        """
        if template is not None or isinstance(self._renderer, TemplateRenderer):
            _check(told, self.names(template))
            return TemplateRenderer(self._tokenizer, template=template, told=told)
        _check(told, self.names(template))
        config = type(self._renderer.config)
        try:
            return self._of(config(thinking_retention="all", **told))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"the model's chat format refuses {dict(told)!r}: {error}") from error

    def _of(self, config: Any) -> Any:
        from art.rendering.nano_renderer import NanoRenderer

        if isinstance(self._renderer, NanoRenderer):
            return NanoRenderer(self._fast, config)
        from renderers.base import create_renderer

        return create_renderer(self._fast, config)


@lru_cache(maxsize=64)
def template_names(template: str) -> frozenset[str]:
    """What a Jinja template can be told. Raises ConfigurationError when it is none.

    >>> sorted(template_names("{{ bos_token }}{% if enable_thinking %}{{ messages[0].content }}{% endif %}"))
    ['enable_thinking']
    """
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
        names = reader.undeclared_identifiers - _GIVEN
    except TemplateSyntaxError as error:
        raise ConfigurationError(f"the chat template is no Jinja template: {error}") from error
    except RecursionError as error:
        raise ConfigurationError("the chat template is nested too deeply") from error
    return frozenset(name for name in names if not name.endswith("_token"))


def _as_it_is(context: Any, value: Any) -> Any:
    return value


def _check(told: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(set(told) - known):
        listed = ", ".join(sorted(known)) or "nothing"
        raise ConfigurationError(
            f"chat_template_kwargs {unknown!r} are unknown to the model's chat format, which takes: {listed}"
        )
