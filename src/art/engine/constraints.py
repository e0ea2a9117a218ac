"""Constraints on a completion: grammars compiled by llguidance, and masks over the vocabulary.

The same masks serve the engine that draws under them and the trainer that computes the distribution again.
Nothing here needs torch. A grammar is compiled by a helper of `art.process.bounded` first (`prepare` runs
there), within limits of time and memory; compiled grammars are kept while they are used.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import orjson

from art.engine.protocol import Constraint
from art.errors import RequestError
from art.process.bounded import Bounded, LimitExceededError, WorkLimits
from art.process.imports import import_lock

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


_END = "<|end of the constrained text|>"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's JSON, in which every marker is special, and the id that ends a constrained text."""

    text: str
    end: int

    @cached_property
    def tokens(self) -> Any:
        """The `LLTokenizer`. Takes a second for 150,000 tokens."""
        with import_lock:
            from llguidance import LLTokenizer

        return LLTokenizer(self.text, eos_token=self.end)


def read_vocabulary(model: str, *, markers: bool = True) -> Vocabulary:
    """The vocabulary of a model folder or hub name.

    markers: added tokens that are no white space (`<tool_call>`, `<|im_end|>`) are never text, and a grammar
    has to name them by id. Otherwise those are text that the tokenizer does not call special: vLLM reads it
    so. Raises: RequestError when the model has no fast tokenizer.
    """
    with import_lock:
        from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"constraints need a fast tokenizer beside the model, and {model!r} has none: {error}",
            status=400,
            code="unsupported_parameter",
        ) from error
    backend = tokenizer.backend_tokenizer
    # An end of its own that no model has: what ends a text is the request's to say.
    backend.add_special_tokens([_END])
    written = json.loads(backend.to_str())
    written["truncation"] = written["padding"] = None
    for added in written["added_tokens"]:
        added["special"] = added["special"] or (markers and bool(added["content"].strip()))
    return Vocabulary(json.dumps(written), backend.token_to_id(_END))


Bits = npt.NDArray[np.uint8]


class Guide:
    """Tells what may follow the ids so far. Where the text may end, the ids that end it are allowed; where
    it must end, only they are.
    """

    def __init__(self, matcher: Any, *, stops: Sequence[int], ends: Sequence[int]) -> None:
        """`ends`: what llguidance itself takes for the end of a text."""
        self._matcher = matcher
        self._stops = np.unique(np.asarray(stops, np.int64))
        self._ends = np.asarray(ends, np.int64)

    @property
    def is_over(self) -> bool:
        """Returns whether the completion ends here because no id may follow."""
        return not len(self._stops) and bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self, vocabulary: int) -> Bits:
        """One bit for each of the model's ids, the first id lowest: `ceil(vocabulary / 8)` bytes.

        Raises: RequestError when the constraint has become too complex to follow.
        """
        matcher, size = self._matcher, -(-vocabulary // 8)
        bits = np.zeros(size, np.uint8)
        if not matcher.is_stopped():
            known = np.frombuffer(matcher.compute_bitmask(), np.uint8)[:size]
            bits[: len(known)] = known
            _clear_bit(bits, self._ends)
        self._check()
        if matcher.is_accepting():
            _set_bit(bits, self._stops)
        if not bits.any():
            _refuse_completion("the model has no token that may come next")
        return bits

    def advance(self, token: int) -> None:
        """An id was drawn that does not end the completion. Raises: RequestError for one that may not be."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            _refuse_completion(self._matcher.get_error().strip().partition("\n")[0])


def unpack_mask(bits_MB: Any, shift_8: Any, vocabulary: int) -> Any:
    """Rows of `Guide.allowed` as booleans [M, vocabulary], where the bits are: arrays of NumPy or tensors.

    `shift_8`: the numbers 0 to 7 of the bits' own type.
    """
    return ((bits_MB[:, :, None] >> shift_8) & 1).reshape(len(bits_MB), -1)[:, :vocabulary] != 0


def _refuse_completion(problem: str) -> NoReturn:
    raise RequestError(
        f"the constraint cannot be followed any further: {problem}", status=400, code="invalid_constraint"
    )


def _clear_bit(bits: Bits, ids: npt.NDArray[np.int64]) -> None:
    ids = ids[ids < 8 * len(bits)]
    np.bitwise_and.at(bits, ids >> 3, ~(np.uint8(1) << (ids & 7).astype(np.uint8)))


def _set_bit(bits: Bits, ids: npt.NDArray[np.int64]) -> None:
    ids = ids[ids < 8 * len(bits)]
    np.bitwise_or.at(bits, ids >> 3, np.uint8(1) << (ids & 7).astype(np.uint8))


COMPILE_LIMITS = WorkLimits(cpu_s=4, wall_s=60.0, memory_bytes=256 << 20, output_bytes=1 << 16)
"""What one constraint may cost to be compiled."""


def compile_helper(vocabulary: Callable[[], Vocabulary]) -> Bounded:
    """Returns the helper that compiles first. A task is `compile_task`'s; its answer has the error and the
    size.
    """

    def setup() -> bytes:
        read = vocabulary()
        return orjson.dumps([read.text, read.end])

    return Bounded(__name__, setup, COMPILE_LIMITS)


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """Returns the function that compiles constraints; runs in the helper. setup: `[vocabulary, its end]` in
    JSON.
    """
    import resource

    compiled = compile_constraint
    from art.engine.protocol import Constraint

    vocabulary = Vocabulary(*orjson.loads(setup))
    tokens = vocabulary.tokens

    def prove(task: bytes) -> bytes:
        kind, text = orjson.loads(task)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            compiled(Constraint(kind=kind, text=text), tokens)
        except RequestError as error:
            return orjson.dumps([str(error), 0])
        return orjson.dumps([None, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)])

    return prove


LONGEST_CONSTRAINT = 1 << 18
"""Characters of a constraint; what they may cost is bounded by the limits of the helper, and what its
masks cost by llguidance's own limits."""
MOST_KEPT = 256
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

        guide = Grammars(folder).open(Constraint(kind="regex", text="[0-9]+"), stops=[2])
    """

    def __init__(self, model: str, *, load: Callable[[str], Vocabulary] | None = None) -> None:
        """`model` is a folder or hub name; its tokenizer is read when the first constraint asks for it."""
        self._model, self._load = model, load
        self._vocabulary: Vocabulary | None = None
        self._compiled: OrderedDict[Constraint, tuple[Any, int]] = OrderedDict()
        """Compiled grammars with their sizes in bytes, the last used last."""
        self._size = 0
        self._refused: OrderedDict[Constraint, str] = OrderedDict()
        """What is wrong with constraints: to find it out again may take seconds."""
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._helper = compile_helper(self._read)

    def open(self, constraint: Constraint, stops: Sequence[int], *, by: Bounded | None = None) -> Guide:
        """The masks of one completion that begins now; `stops` are the ids that end it.

        May take seconds: the tokenizer is read, the grammar compiled. `by`: a helper of one's own
        (`new_helper`), which can be cancelled. Raises: RequestError with what is wrong with the constraint,
        WorkCancelledError.
        """
        known = self.find_compiled(constraint, stops)
        if known is not None:
            return known
        size = self._prove(constraint, by or self._helper)
        matcher = compile_constraint(constraint, self._tokens())
        with self._lock:
            if constraint not in self._compiled:
                self._compiled[constraint] = matcher, size
                self._size += size
            while len(self._compiled) > MOST_KEPT or (self._size > KEPT_BYTES and len(self._compiled) > 1):
                _, (_, gone) = self._compiled.popitem(last=False)
                self._size -= gone
        return Guide(matcher.deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def find_compiled(self, constraint: Constraint, stops: Sequence[int]) -> Guide | None:
        """Returns the grammar as `open` does, at once: None if it is not compiled yet."""
        with self._lock:
            known = self._compiled.get(constraint)
            if known is None:
                return None
            self._compiled.move_to_end(constraint)
            return Guide(known[0].deep_copy(), stops=stops, ends=self._tokens().eos_tokens)

    def new_helper(self) -> Bounded:
        """One that works beside others. Close it."""
        return compile_helper(self._read)

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
                if len(self._refused) > MOST_KEPT:
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


def compile_constraint(constraint: Constraint, tokens: Any) -> Any:
    """The matcher at its start, for copies. Raises: RequestError."""
    with import_lock:
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
    if len(constraint.text) > LONGEST_CONSTRAINT:
        _refuse(
            constraint, f"it has {len(constraint.text)} characters, and {LONGEST_CONSTRAINT} are the most"
        )


def grammar_text(constraint: Constraint) -> str:
    """The constraint as llguidance reads it. Raises: RequestError."""
    with import_lock:
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


def ended_grammar(constraint: Constraint, stops: Sequence[int]) -> str:
    """The constraint in Lark, with one of the ids `stops` where its text ends: another server's llguidance
    then allows what a `Guide` does. Raises: RequestError.
    """
    grammar = grammar_text(constraint)
    if constraint.kind == "json_schema":
        text = f"%json {json.dumps(json.loads(grammar)['grammars'][0]['json_schema'])}"
    else:
        if constraint.kind == "regex":
            grammar = json.loads(grammar)["grammars"][0]["lark_grammar"]
        text = f"%lark {{\n{grammar}\n}}"
    return f"start: text ({' | '.join(f'<[{stop}]>' for stop in stops)})\ntext: {text}"


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
