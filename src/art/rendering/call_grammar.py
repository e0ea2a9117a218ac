"""Tool calls as grammars: what a chat format's `parse` reads as calls, in llguidance's Lark.

    nano, Hermes (Qwen)     <tool_call>
                            {"name": "search", "arguments": {"keyword": "atlas"}}
                            </tool_call>
    Llama 3                 {"name": "search", "parameters": {"keyword": "atlas"}}

The markers are ids, `<[497]>`, so that no text can be taken for one. Arguments follow the tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art.engine.constraints import AS_TAUGHT, alternatives
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.rendering.chat_renderer import Tool
from art.rendering.reply import CallMarkers

Thinking = Literal["no", "may", "open"]
"""Whether a reply may begin with a thought, or the prompt has begun one."""

_ANY = r"/(.|\n)*/"
_HERMES = frozenset({"NanoRenderer", "Qwen3Renderer", "Qwen3VLRenderer", "TemplateRenderer"})
THINKING = frozenset({"Qwen3Renderer", "Qwen3VLRenderer", "TemplateRenderer"})
"""Formats whose replies may begin with a thought of their own accord."""
_LLAMA = frozenset({"Llama3Renderer"})
_FRAMED = frozenset({"GptOssRenderer", "InklingRenderer"})
"""Their text stands in frames of markers, which a constraint of the text alone would forbid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFormat:
    """The format of one call, around and between its parts."""

    before: str
    """Lark, as the following ones."""
    arguments: str
    """The key of the arguments."""
    after: str
    between: str | None
    """None: a reply holds one call at most, and then nothing else."""


def check_plain(kind: str) -> None:
    """Raises: RequestError for a format whose replies do not begin with their text."""
    if kind in _FRAMED:
        raise RequestError(
            f"replies of this model's chat format ({kind}) cannot be constrained: they are more than text",
            status=400,
            code="unsupported_parameter",
        )


def call_format(kind: str, tokenizer: Any) -> CallFormat | None:
    """The format of a renderer's calls; None where no grammar of them is known here."""
    if kind in _LLAMA:
        return CallFormat(before="", arguments="parameters", after="", between=None)
    opening, closing = _marker(tokenizer, "<tool_call>"), _marker(tokenizer, "</tool_call>")
    if kind not in _HERMES or opening is None or closing is None:
        return None
    return CallFormat(
        before=f'{opening} "\\n"', arguments="arguments", after=f'"\\n" {closing}', between='"\\n"'
    )


def call_markers(kind: str, tokenizer: Any) -> CallMarkers | None:
    """The ids around a call, where it is written as its name and then its arguments; None elsewhere."""
    opening, closing = _marker_id(tokenizer, "<tool_call>"), _marker_id(tokenizer, "</tool_call>")
    if kind not in _HERMES or opening is None or closing is None:
        return None
    return CallMarkers(opening, closing)


def reply_grammar(
    form: CallFormat | None,
    *,
    text: Constraint | Literal["any"] | None,
    tools: Sequence[Tool],
    parallel: bool,
    thinking: Thinking,
    tokenizer: Any,
) -> Constraint | None:
    """Returns the grammar of a reply: a text, calls of `tools`, or either; None if no grammar can express it.

    `text`: what a reply in words looks like; None: it must call. Raises: RequestError for a tool whose
    parameters are no object.
    """
    if tools and form is None:
        return None
    prefix = _thought(thinking, tokenizer)
    if prefix is None or (not tools and not prefix):
        return None
    rules: list[str] = []
    body = "calls"
    if text == "any":
        rules.append(f"text: {_ANY}")
        body = "text calls?" if form is not None and form.between is not None else "text | calls"
    elif text is not None:
        rules.append(f"text: {_embedded(text)}")
        body = "text | calls" if tools else "text"
    if tools and form is not None:
        rules += _calls(form, tools, parallel)
    start = f"start: {prefix} reply\nreply: {body}"
    return Constraint(kind="lark", text="\n".join([start, *rules]))


def _calls(form: CallFormat, tools: Sequence[Tool], parallel: bool) -> list[str]:
    several = f" ({form.between} call)*" if parallel and form.between is not None else ""
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f"calls: call{several}", f"call: {names}"]
    for number, tool in enumerate(tools):
        function = tool["function"]
        head = f'{{"name": {json.dumps(function["name"])}, "{form.arguments}": '
        rules.append(
            f'call_{number}: {form.before} {json.dumps(head)} arguments_{number} "}}" {form.after}'.rstrip()
        )
        rules.append(f"arguments_{number}: {_json(_arguments(function))}")
    return rules


def _arguments(function: Any) -> dict[str, Any]:
    schema = dict(function.get("parameters") or {})
    if schema.setdefault("type", "object") != "object":
        raise RequestError(
            f"the parameters of tool {function['name']!r} are of type {schema['type']!r}, not 'object'",
            status=400,
            code="invalid_value",
            param="tools",
        )
    return schema


def _embedded(text: Constraint) -> str:
    """The constraint as the body of a rule."""
    from llguidance import regex_to_lark

    if text.kind == "json_schema":
        try:
            return _json(json.loads(text.text))
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"the JSON schema is none: {error}", status=400, code="invalid_constraint"
            ) from error
    if text.kind == "regex":
        return f"/{regex_to_lark(text.text, use_ascii='')}/"
    if text.kind == "choice":
        return alternatives(text)
    raise RequestError("a grammar of one's own says all of a reply", status=400, code="unsupported_parameter")


def _json(schema: Any) -> str:
    own = schema.get("x-guidance", {}) if isinstance(schema, dict) else None
    if isinstance(own, dict):
        schema = {**schema, "x-guidance": {**AS_TAUGHT, **own}}
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def _thought(thinking: Thinking, tokenizer: Any) -> str | None:
    """Lark of a thought before the reply; None where the format's end of a thought is no marker."""
    if thinking == "no":
        return ""
    opening, closing = _marker(tokenizer, "<think>"), _marker(tokenizer, "</think>")
    if closing is None or (thinking == "may" and opening is None):
        return None if thinking == "open" else ""
    if thinking == "open":
        return f'{_ANY} {closing} "\\n"*'
    return f'({opening} {_ANY} {closing} "\\n"*)?'


def _marker(tokenizer: Any, text: str) -> str | None:
    """The id of a marker, as Lark writes it."""
    token_id = _marker_id(tokenizer, text)
    return None if token_id is None else f"<[{token_id}]>"


def _marker_id(tokenizer: Any, text: str) -> int | None:
    ids: list[int] = tokenizer.encode(text)
    return ids[0] if len(ids) == 1 else None
