"""Constraints -> compiled grammars, kept while they are used."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import orjson

from art.constraints.guide import Guide
from art.constraints.proof import helper
from art.constraints.vocabulary import Vocabulary, read_vocabulary
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.process.bounded import Bounded, LimitExceededError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LARGEST = 1 << 18
"""Characters of a constraint; what they may cost is bounded by the limits of the helper, and what its
masks cost by llguidance's own limits."""
KEPT = 256
"""Compiled grammars that are kept, and what is known of so many others that were refused."""
KEPT_BYTES = 256 << 20
AS_TAUGHT: Mapping[str, Any] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
)
"""JSON as models read it in training. With free white space, no token across a brace or a colon is allowed,
and a weak model writes white space alone. A schema's own `x-guidance` goes first."""


class Grammars:
    """The grammars of one vocabulary. Safe to use from several threads.

    A constraint is compiled by a helper process first, under limits of time and memory: here nothing could
    stop a compiler, and its memory would stay.

    >>> guide = Grammars("art/nano").open(Constraint(kind="regex", text="[0-9]+"), stops=[2])
    """

    def __init__(self, model: str, *, load: Callable[[str], Vocabulary] | None = None) -> None:
        """`model` is a folder or hub name; its tokenizer is read when the first constraint asks for it."""
        self._model, self._load = model, load
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Constraint, tuple[Any, int]] = OrderedDict()
        """Compiled grammars with their sizes in bytes, the last used last."""
        self._size = 0
        self._refused: OrderedDict[Constraint, str] = OrderedDict()
        """What is wrong with constraints: to find it out again may take seconds."""
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._helper = helper(self._read)

    def open(self, constraint: Constraint, stops: Sequence[int], *, by: Bounded | None = None) -> Guide:
        """The masks of one completion that begins now; `stops` are the ids that end it.

        May take seconds: the tokenizer is read, the grammar compiled. `by`: a helper of one's own
        (`new_helper`), which can be cancelled. Raises: RequestError with what is wrong with the constraint,
        WorkCancelledError.
        """
        known = self.kept(constraint, stops)
        if known is not None:
            return known
        size = self._prove(constraint, by or self._helper)
        matcher = compiled(constraint, self._tokens())
        with self._lock:
            if constraint not in self._kept:
                self._kept[constraint] = matcher, size
                self._size += size
            while len(self._kept) > KEPT or (self._size > KEPT_BYTES and len(self._kept) > 1):
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone
        return Guide(matcher.deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def kept(self, constraint: Constraint, stops: Sequence[int]) -> Guide | None:
        """As `open`, at once: None when the grammar is not compiled yet."""
        with self._lock:
            known = self._kept.get(constraint)
            if known is None:
                return None
            self._kept.move_to_end(constraint)
            return Guide(known[0].deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def new_helper(self) -> Bounded:
        """One that works beside others. Close it."""
        return helper(self._read)

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def _prove(self, constraint: Constraint, by: Bounded) -> int:
        """Bytes that the grammar has. Raises: RequestError."""
        check_size(constraint)
        with self._lock:
            refused = self._refused.get(constraint)
        if refused is None:
            try:
                refused, size = orjson.loads(by.ask(orjson.dumps([constraint.kind, constraint.text])))
            except LimitExceededError as error:
                refused = (
                    f"the {constraint.kind} constraint cannot be used: it is too complex to be compiled, "
                    f"which may take {error.limit}; fewer or simpler patterns and properties need less"
                )
            except OSError as error:
                _refuse(constraint, f"its compiler failed: {error}")
            if refused is None:
                return int(size) + len(constraint.text)
            with self._lock:
                self._refused[constraint] = refused
                if len(self._refused) > KEPT:
                    self._refused.popitem(last=False)
        raise RequestError(refused, status=400, code="invalid_constraint")

    def _tokens(self) -> Any:
        vocabulary = self._read()
        with self._reading:
            return vocabulary.tokens

    def _read(self) -> Vocabulary:
        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = (self._load or read_vocabulary)(self._model)
            return self._vocabulary


def compiled(constraint: Constraint, tokens: Any) -> Any:
    """The matcher at its start, for copies. Raises: RequestError."""
    from llguidance import LLMatcher, LLParserLimits

    # Errors without the state of the parser: they are told to whoever asked.
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(tokens, grammar_text(constraint), log_level=0, limits=limits)
    matcher.compute_bitmask()  # what it finds out is in every copy
    if matcher.is_error():
        _refuse(constraint, matcher.get_error())
    return matcher


def check_size(constraint: Constraint) -> None:
    """Raises: RequestError."""
    if len(constraint.text) > LARGEST:
        _refuse(constraint, f"it has {len(constraint.text)} characters, and {LARGEST} are the most")


def grammar_text(constraint: Constraint) -> str:
    """The constraint as llguidance reads it. Raises: RequestError."""
    from llguidance import LLMatcher

    text = constraint.text
    check_size(constraint)
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
