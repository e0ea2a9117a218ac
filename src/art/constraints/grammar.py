"""Constraints -> compiled grammars, kept while they are used."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from art.constraints.guide import Guide
from art.engine.protocol import Constraint
from art.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LARGEST = 1 << 18
"""Characters of a constraint; what they may cost is bounded by llguidance's own limits."""
KEPT = 256
"""Compiled grammars that are kept."""
AS_TAUGHT: Mapping[str, Any] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)
"""JSON as models read it in training. With free white space, no token across a brace or a colon is allowed,
and a weak model writes white space alone. A schema's own `x-guidance` goes first."""


class Grammars:
    """The grammars of one vocabulary. Safe to use from several threads.

    >>> guide = Grammars("art/nano").open(Constraint(kind="regex", text="[0-9]+"), stops=[2])
    """

    def __init__(self, model: str, *, load: Callable[[str], Any] | None = None) -> None:
        """`model` is a folder or hub name; its tokenizer is read when the first constraint asks for it."""
        self._model, self._load = model, load
        self._vocabulary: Any = None
        self._kept: OrderedDict[Constraint, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    def open(self, constraint: Constraint, stops: Sequence[int]) -> Guide:
        """The masks of one completion that begins now; `stops` are the ids that end it.

        May take a second: the tokenizer is read, the grammar compiled. Raises: RequestError with what is
        wrong with the constraint.
        """
        known = self.kept(constraint, stops)
        if known is not None:
            return known
        matcher = self._compile(constraint)
        with self._lock:
            self._kept[constraint] = matcher
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return Guide(matcher.deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def kept(self, constraint: Constraint, stops: Sequence[int]) -> Guide | None:
        """As `open`, at once: None when the grammar is not compiled yet."""
        with self._lock:
            matcher = self._kept.get(constraint)
            if matcher is None:
                return None
            self._kept.move_to_end(constraint)
            return Guide(matcher.deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def _compile(self, constraint: Constraint) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        grammar = grammar_text(constraint)
        # Errors without the state of the parser: they are told to whoever asked.
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # what it finds out is in every copy
        if matcher.is_error():
            _refuse(constraint, matcher.get_error())
        return matcher

    def _tokens(self) -> Any:
        with self._reading:
            if self._vocabulary is None:
                from art.constraints.vocabulary import read_vocabulary

                self._vocabulary = (self._load or read_vocabulary)(self._model)
            return self._vocabulary


def grammar_text(constraint: Constraint) -> str:
    """The constraint as llguidance reads it. Raises: RequestError."""
    from llguidance import LLMatcher

    text = constraint.text
    if len(text) > LARGEST:
        _refuse(constraint, f"it has {len(text)} characters, and {LARGEST} are the most")
    try:
        if constraint.kind == "json_schema":
            spelling = cast("JsonCompileOptions", dict(AS_TAUGHT))
            return str(LLMatcher.grammar_from_json_schema(text, defaults=spelling))
        if constraint.kind == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        if constraint.kind == "choice":
            # As one lexeme: as alternatives of a rule, 2,000 texts would be the most.
            return str(LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives(constraint)}"))
    except (ValueError, RecursionError) as error:
        _refuse(constraint, str(error))
    return str(LLMatcher.grammar_from_lark(text))


def alternatives(constraint: Constraint) -> str:
    """A choice in Lark. Raises: RequestError, ValueError for what is no JSON."""
    texts = json.loads(constraint.text)
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
        _refuse(constraint, "it must be a JSON list of texts, none of them empty")
    return " | ".join(json.dumps(one, ensure_ascii=False) for one in texts)


def _refuse(constraint: Constraint, problem: str) -> NoReturn:
    if "NoExtensionBias" in problem:
        problem = "no text fits it: does it refer to itself without an end?"
    raise RequestError(
        f"the {constraint.kind} constraint cannot be used: {' '.join(problem.split())[:500]}",
        status=400,
        code="invalid_constraint",
    )
