"""Tool calls as grammars: what a chat format's `parse` reads as calls, in llguidance's Lark.

    nano, Hermes (Qwen 3)       <tool_call>
                                {"name": "search", "arguments": {"keyword": "atlas"}}
                                </tool_call>
    Qwen 3.5, Nemotron          <tool_call>
                                <function=search>
                                <parameter=keyword>
                                atlas
                                </parameter>
                                </function>
                                </tool_call>

The markers are ids, `<[497]>`, so that no text can be taken for one. Arguments follow the tool's schema; of
formats that write each argument alone, a schema that such a text cannot follow has no grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from art.engine.constraints import AS_TAUGHT, alternatives
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.process.imports import import_lock
from art.rendering.chat_renderer import Tool
from art.rendering.reply import CallMarkers

Thinking = Literal["no", "may", "open"]
"""Whether a reply may begin with a thought, or the prompt has begun one."""

_ANY = r"/(.|\n)*/"
_FRAMED = frozenset({"GptOssRenderer", "InklingRenderer"})
"""Their text stands in frames of markers, which a constraint of the text alone would forbid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFormat:
    """The calls of a format: texts with the markers in them; `{name}` and `{quoted}` are the tool's."""

    opening: str = ""
    """The text before the first call."""
    head: str
    key: str = ""
    """The text before the value of `{key}`; empty: the arguments are one JSON object."""
    end: str = ""
    """The text after each value."""
    tail: str
    closing: str = ""
    """The text after the last call."""
    between: str | None
    """The text between calls. None: a reply holds one call at most, and then nothing else."""
    spelled: bool = False
    """Markers that the vocabulary does not have are spelled as text."""


_HERMES = CallFormat(
    head='<tool_call>\n{"name": {quoted}, "arguments": ', tail="}\n</tool_call>", between="\n"
)
_FUNCTION = CallFormat(
    head="<tool_call>\n<function={name}>\n",
    key="<parameter={key}>\n",
    end="\n</parameter>\n",
    tail="</function>\n</tool_call>",
    between="\n",
)
_DEEPSEEK = CallFormat(
    opening="<｜tool▁calls▁begin｜>",
    head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    tail="\n```<｜tool▁call▁end｜>",
    closing="<｜tool▁calls▁end｜>",
    between="",
)
_KIMI = CallFormat(
    opening="<|tool_calls_section_begin|>",
    head="<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>",
    tail="<|tool_call_end|>",
    closing="<|tool_calls_section_end|>",
    between="",
)
_FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        **dict.fromkeys(("NanoRenderer", "Qwen3Renderer", "Qwen3VLRenderer", "TemplateRenderer"), _HERMES),
        **dict.fromkeys(("Qwen35Renderer", "Qwen36Renderer", "PrimeQwen3Renderer"), _FUNCTION),
        "GenericToolsRenderer": CallFormat(
            opening="<tool_call>[",
            head='{"name": {quoted}, "arguments": ',
            tail="}",
            closing="]</tool_call>",
            between=", ",
            spelled=True,
        ),
        "Nemotron3Renderer": replace(_FUNCTION, closing="\n"),
        "Llama3Renderer": CallFormat(head='{"name": {quoted}, "parameters": ', tail="}", between=None),
        **dict.fromkeys(("DeepSeekV3Renderer", "DeepSeekR1Renderer"), _DEEPSEEK),
        **dict.fromkeys(("KimiK2Renderer", "KimiK25Renderer"), _KIMI),
        "GLM45Renderer": CallFormat(
            head="<tool_call>{name}\n",
            key="<arg_key>{key}</arg_key>\n<arg_value>",
            end="</arg_value>\n",
            tail="</tool_call>",
            between="\n",
        ),
        "GLM5Renderer": CallFormat(
            head="<tool_call>{name}",
            key="<arg_key>{key}</arg_key><arg_value>",
            end="</arg_value>",
            tail="</tool_call>",
            between="",
        ),
        "MiniMaxM2Renderer": CallFormat(
            opening="<minimax:tool_call>\n",
            head='<invoke name="{name}">\n',
            key='<parameter name="{key}">',
            end="</parameter>\n",
            tail="</invoke>\n",
            closing="</minimax:tool_call>",
            between="",
        ),
    }
)
"""The format of a renderer's calls."""
_MARKERS = re.compile(
    r"(</?tool_call>|<｜[^｜]+｜>|<\|tool_call[^|]*\|>|</?arg_key>|</?arg_value>|</?minimax:tool_call>)"
)
"""What is one id in a format's texts."""
_NUMBER = re.compile(r"(\{number\})")
THINKING = frozenset(
    {
        *("Qwen3Renderer", "Qwen3VLRenderer", "TemplateRenderer", "PrimeQwen3Renderer"),
        *("GenericToolsRenderer", "ToollessRenderer", "Qwen35Renderer", "Qwen36Renderer", "GLM45Renderer"),
    }
)
"""Formats whose replies may begin with a thought of their own accord."""
_JSON_TYPES = frozenset({"integer", "number", "boolean", "null", "object", "array"})
_TEXT_KEYS = frozenset({"type", "enum", "const", "maxLength", "description", "title", "default", "examples"})
"""What the schema of a text may have, where it is written without quotes."""
_LIMITS = frozenset({"enum", "const", "maxLength"})
_NO_JSON, _JSON_WORDS = r'[^\s0-9\-"{\[<](.|\n)*', r"(true|false|null|NaN|Infinity)\s*"
"""What no JSON begins with, and the words of JSON."""
_COMBINED = frozenset({"$ref", "anyOf", "oneOf", "allOf", "not", "if"})


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a value, in Lark; `text` where no marker tells it from a value's own text."""

    lark: str
    text: str
    never: str = ""
    """What no text may have, because the call would be read as ended."""

    def after_text(self, rule: str, pattern: str, *, but: str = "") -> list[str]:
        """Returns the rules of a text that ends as soon as the end is read. but: no such text."""
        end = "" if _MARKERS.search(self.text) else self.text.replace("\n", r"\n").replace("/", r"\/")
        terminal = rule.upper()
        definition = f"{terminal}: /{pattern}{end}/" + (f" & ~/{but}{end}/" if but else "")
        if self.never:
            definition += rf" & ~/(.|\n)*{self.never.replace('/', chr(92) + '/')}(.|\n)*/"
        return [f"{rule}[lazy]: {terminal}" if end else f"{rule}: {terminal} {self.lark}", definition]


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
    form = _FORMATS.get(kind)
    if form is None or form.spelled:
        return form
    texts = (form.opening, form.head, form.key, form.end, form.tail, form.closing)
    markers = {marker for text in texts for marker in _MARKERS.findall(text)}
    return None if any(_marker_id(tokenizer, marker) is None for marker in markers) else form


def call_markers(kind: str, tokenizer: Any) -> CallMarkers | None:
    """The ids around a call, where it is written as its name and then its arguments; None elsewhere."""
    opening, closing = _marker_id(tokenizer, "<tool_call>"), _marker_id(tokenizer, "</tool_call>")
    if _FORMATS.get(kind) is not _HERMES or opening is None or closing is None:
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
    if text == "any" and form is not None and form.spelled:
        body, further = _words_and_calls(form, tokenizer)
        rules += further
    elif text == "any":
        rules.append(f"text: {_ANY}")
        body = "text calls?" if form is not None and form.between is not None else "text | calls"
    elif text is not None:
        rules.append(f"text: {_embedded(text)}")
        body = "text | calls" if tools else "text"
    if tools and form is not None:
        calls = _calls(form, tools, parallel, tokenizer)
        if calls is None:
            return None
        rules += calls
    start = f"start: {prefix} reply\nreply: {body}"
    return Constraint(kind="lark", text="\n".join([start, *rules]))


def _words_and_calls(form: CallFormat, tokenizer: Any) -> tuple[str, list[str]]:
    """Returns a reply of words and then calls, if any, and its rules: no words have the marker of a call."""
    marker = _MARKERS.findall(form.opening)[0]
    words = rf"WORDS: {_ANY} & ~/(.|\n)*{marker}(.|\n)*/"
    if _marker(tokenizer, marker) is not None:
        return "WORDS calls?", [words]
    # Words and marker are one text, which ends with the marker: alone, words would go on into it.
    begun = re.escape(form.opening)
    twice = rf"BEGUN: /(.|\n)*{begun}/ & ~/(.|\n)*{marker}(.|\n)*{begun}/"
    return "WORDS | begun listed", [words, "begun[lazy]: BEGUN", twice]


def _calls(form: CallFormat, tools: Sequence[Tool], parallel: bool, tokenizer: Any) -> list[str] | None:
    """Returns the rules of the calls; None where a tool's arguments cannot be written in this format."""

    def lark(text: str, **named: str) -> str:
        """The text as Lark, with its markers as ids."""
        parts = []
        for part in _MARKERS.split(text):
            if _MARKERS.fullmatch(part):
                parts.append(_marker(tokenizer, part) or json.dumps(part))
                continue
            for piece in _NUMBER.split(part):
                for name, value in named.items():
                    piece = piece.replace(f"{{{name}}}", value)
                if piece == "{number}":
                    parts.append("/[0-9]/")
                elif piece:
                    parts.append(json.dumps(piece, ensure_ascii=False))
        return " ".join(parts)

    several = parallel and form.between is not None
    more = f" ({lark(form.between or '')} call)*" if several else ""
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    end = _End(lark(form.end), form.end, "" if _MARKERS.search(form.tail) else form.tail.strip())
    rules = [
        f"calls: {lark(form.opening)} listed".replace("  ", " "),
        f"listed: call{more} {lark(form.closing)}".rstrip(),
        f"call: {names}",
    ]
    for number, tool in enumerate(tools):
        function = tool["function"]
        name, schema = function["name"], _arguments(function)
        if form.key:
            values = _values(number, schema, lambda key: lark(form.key, key=key), end)
            if values is None or re.search(r'[<>"\n]', name):
                return None
            body, further = values
            rules += further
        else:
            body = f"arguments_{number}"
            rules.append(f"{body}: {_json(schema)}")
        head = lark(form.head, name=name, quoted=json.dumps(name))
        rules.append(f"call_{number}: {head} {body} {lark(form.tail)}")
    return rules


def _values(
    number: int, schema: Mapping[str, Any], head: Callable[[str], str], end: _End
) -> tuple[str, list[str]] | None:
    """Returns how the arguments of tool `number` are written one by one, and the rules for it; None for a
    schema that this cannot express.
    """
    properties, required = schema.get("properties") or {}, set(schema.get("required") or ())
    if _COMBINED & schema.keys() or not required <= properties.keys():
        return None
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts, rules = [], []
    for place, (key, one) in enumerate(properties.items()):
        rule = f"value_{number}_{place}"
        value = _value(one, rule, end, definitions)
        if value is None or key != key.strip() or not key or re.search(r'[<>"\n]', key):
            return None
        rules += value
        written = f"{head(key)} {rule}"
        parts.append(written if key in required else f"({written})?")
    return " ".join(parts), rules


def _value(schema: Any, rule: str, end: _End, definitions: Mapping[str, Any]) -> list[str] | None:
    """Returns the rules of a value with its end, in which a text has no quotes; None if it has none."""
    if not isinstance(schema, dict):
        return None
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _one_of(options, rule, end, definitions)
    kind = schema.get("type")
    if kind == "string" and not set(schema) - _TEXT_KEYS:
        known = [schema["const"]] if "const" in schema else schema.get("enum")
        if known is not None:
            plain = all(
                isinstance(one, str) and one and one == one.strip() and "<" not in one for one in known
            )
            return [f"{rule}: ({' | '.join(map(json.dumps, known))}) {end.lark}"] if plain and known else None
        length = f"{{0,{schema['maxLength']}}}" if "maxLength" in schema else "*"
        return end.after_text(rule, rf"(.|\n){length}")
    if kind in _JSON_TYPES:
        return [f"{rule}: {rule}_json {end.lark}", f"{rule}_json: {_json({**schema, **definitions})}"]
    return None


def _one_of(options: Sequence[Any], rule: str, end: _End, definitions: Mapping[str, Any]) -> list[str] | None:
    """Returns the rules of a value of one of several schemas, such as a text or null. A text is no JSON then,
    as which it would be read.
    """
    texts = [one for one in options if isinstance(one, dict) and one.get("type") == "string"]
    if len(texts) > 1 or any(one.keys() - _TEXT_KEYS or one.keys() & _LIMITS for one in texts):
        return None
    names, rules = [], []
    for number, one in enumerate(options):
        names.append(f"{rule}_{number}")
        found = (
            end.after_text(names[-1], _NO_JSON, but=_JSON_WORDS)
            if one in texts
            else _value(one, names[-1], end, definitions)
        )
        if found is None:
            return None
        rules += found
    return [f"{rule}: {' | '.join(names)}", *rules]


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
    with import_lock:
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
