"""What another server's llguidance allows under the grammar that vLLM gets: the same ids as a guide here."""

from __future__ import annotations

import json
import random
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from art.engine.constraints import Grammars, Guide, ended_grammar, read_vocabulary
from art.engine.nano_models import resolve
from art.engine.protocol import Constraint

FOLDER = str(resolve("art/nano-tools"))
ADDED = "aside!"
"""Added to the tokenizer, and not special. llguidance itself takes `<think>` for a marker, whatever it is."""
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer"}, "kind": {"enum": ["a", "b"]}},
    "required": ["street", "number"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    Constraint(kind="json_schema", text=json.dumps(ADDRESS)),
    Constraint(kind="json_schema", text=json.dumps({"type": "array", "items": {"type": "boolean"}})),
    Constraint(kind="regex", text=r"[a-f]{1,3}/(\d+|\{x\})?"),
    Constraint(kind="choice", text=json.dumps(["yes", 'no "no"', "may}be", "start: x\n"])),
    Constraint(
        kind="lark", text='start: item ("," item)*\nitem: NAME "=" %json {"type": "integer"}\nNAME: /[a-z]+/'
    ),
    Constraint(kind="lark", text='start: "a" <[7]> TAIL?\nTAIL: /[}{"]+/'),
]
MOST = 40


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    made = AutoTokenizer.from_pretrained(FOLDER)
    made.add_tokens([ADDED])
    return made


@lru_cache
def read(folder: str, *, markers: bool) -> Grammars:
    tokenizer().save_pretrained(folder)
    return Grammars(folder, load=partial(read_vocabulary, markers=markers))


class TheirServer:
    """What vLLM's guidance backend does with a grammar."""

    def __init__(self, constraint: Constraint, stops: tuple[int, ...]) -> None:
        self.tokens = from_tokenizer(tokenizer(), len(tokenizer()))
        self.matcher = LLMatcher(self.tokens, ended_grammar(constraint, stops), log_level=0)
        assert not self.matcher.get_error()

    def allowed(self) -> set[int]:
        return ids(np.frombuffer(self.matcher.compute_bitmask(), np.uint8))


def ids(bits: Any) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")[: len(tokenizer())]).tolist())


def walk(guide: Guide, theirs: TheirServer, stops: tuple[int, ...], dice: random.Random) -> None:
    """Draws ids until the text ends, and compares what may come at each place."""
    for place in range(MOST):
        allowed = ids(guide.allowed(len(tokenizer())))
        assert allowed == theirs.allowed(), f"place {place}"
        ends = sorted(allowed & set(stops))
        token = dice.choice(ends) if ends and dice.random() < 0.3 else dice.choice(sorted(allowed))
        theirs.matcher.consume_token(token)
        if token in stops:
            return
        guide.advance(token)


@pytest.mark.slow
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda one: f"{one.kind}-{len(one.text)}")
@given(seed=st.integers(0, 1 << 30), both=st.booleans())
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_ended_grammar_allows_elsewhere_what_a_guide_allows(
    constraint: Constraint, seed: int, both: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    grammars = read(folder(tmp_path_factory), markers=False)
    end, first = tokenizer().eos_token_id, 3
    stops = (end, first) if both else (first,)
    walk(grammars.open(constraint, stops), TheirServer(constraint, stops), stops, random.Random(seed))


def folder(factory: pytest.TempPathFactory) -> str:
    return str(factory.getbasetemp() / "with-an-added-token")


@pytest.mark.slow
def test_added_tokens_that_are_not_special_are_text_to_vllm_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    constraint, added = Constraint(kind="regex", text="[a-z]+!"), tokenizer().convert_tokens_to_ids(ADDED)
    where = folder(tmp_path_factory)
    ours = read(where, markers=True).open(constraint, (3,))
    as_theirs = read(where, markers=False).open(constraint, (3,))
    assert added not in ids(ours.allowed(len(tokenizer())))
    assert added in ids(as_theirs.allowed(len(tokenizer())))
    assert added in TheirServer(constraint, (3,)).allowed()
