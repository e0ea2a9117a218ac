"""A constraint that is too large or never ends costs its tenant an error, and nobody else anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from engine_models import build_qwen3

from art.engine import constraints as proof
from art.engine.builtin.engine import BuiltinEngine
from art.engine.constraints import Grammars
from art.engine.protocol import Constraint, GenerateRequest, Sampling
from art.errors import OverloadedError, RequestError

pytestmark = pytest.mark.slow

PROCESSES = Path("/proc")


def endless(word: str) -> Constraint:
    """1.4 KB whose emptiness check has 2 ** 26 states."""
    parts = [{"type": "string", "pattern": f".*{word}{n}.*"} for n in range(26)]
    return Constraint(kind="json_schema", text=json.dumps({"allOf": parts}))


def ask(owner: str, constraint: Constraint) -> GenerateRequest:
    sampling = Sampling(max_tokens=4, seed=1, constraint=constraint)
    return GenerateRequest(
        request_id=f"{owner}{constraint.text[:40]}",
        adapter=None,
        prompt_ids=[5, 6, 7],
        sampling=sampling,
        owner=owner,
    )


async def answered(engine: BuiltinEngine, owner: str, constraint: Constraint) -> list[int]:
    deltas = [delta async for delta in engine.generate(ask(owner, constraint))]
    return [token for delta in deltas for token in delta.token_ids]


def resident() -> int:
    """MiB of this process, which is the engine's here."""
    for line in (PROCESSES / "self" / "status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    raise AssertionError("no VmRSS")


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof, "COMPILE_LIMITS", replace(proof.COMPILE_LIMITS, cpu_s=1, memory_bytes=128 << 20)
    )


@pytest.fixture
async def engine(tmp_path: Path, strict: None) -> AsyncIterator[BuiltinEngine]:
    started = await BuiltinEngine.start(str(build_qwen3(tmp_path)))
    yield started
    await started.close()


async def test_an_endless_constraint_is_refused_while_others_are_compiled(engine: BuiltinEngine) -> None:
    await answered(engine, "bob~p/m", Constraint(kind="regex", text="[a-b]+"))  # the helper is up
    before = resident()
    attacks = [
        asyncio.create_task(answered(engine, f"alice~p/m{n}", endless("a" * (n + 1)))) for n in range(3)
    ]
    for text in ("[a-c]+", "[a-d]+", "[a-e]+"):
        assert await answered(engine, "bob~p/m", Constraint(kind="regex", text=text))
        assert not all(attack.done() for attack in attacks), "bob did not wait for alice"
    for outcome in await asyncio.gather(*attacks, return_exceptions=True):
        assert isinstance(outcome, RequestError) and outcome.status == 400
        assert outcome.code == "invalid_constraint"
        assert "1 s of processor time" in str(outcome) or "128 MiB of memory" in str(outcome)
    assert resident() - before < 64, "the engine itself compiled none of it"
    assert engine.health().waiting == 0
    with pytest.raises(RequestError, match="too complex to be compiled"):  # which is known by now
        await answered(engine, "carol~p/m", endless("a"))


async def test_a_schema_of_4000_optional_properties_holds_up_its_tenant_alone(engine: BuiltinEngine) -> None:
    def many(word: str) -> Constraint:
        properties = {f"{word}{n}": {"type": "string"} for n in range(4000)}
        return Constraint(kind="json_schema", text=json.dumps({"properties": properties}))

    attacks = [asyncio.create_task(answered(engine, "alice~p/m", many(f"p{n}_"))) for n in range(3)]
    await asyncio.sleep(0)
    assert await answered(engine, "bob~p/m", Constraint(kind="regex", text="[a-c]+"))
    assert not attacks[-1].done()
    for outcome in await asyncio.gather(*attacks, return_exceptions=True):
        assert isinstance(outcome, list) or "1 s of processor time" in str(outcome)


async def test_nothing_is_compiled_for_a_client_that_has_gone(engine: BuiltinEngine) -> None:
    attacks = [asyncio.create_task(answered(engine, "alice~p/m", endless("b" * (n + 1)))) for n in range(8)]
    await asyncio.sleep(0.5)
    for attack in attacks:
        attack.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)
    assert await answered(engine, "alice~p/m", Constraint(kind="regex", text="[a-f]+"))
    assert engine.health().waiting == 0
    assert not engine._core.grammars._refused.keys() - {endless("b")}, "the others were never begun"


async def test_a_tenant_has_a_bounded_queue_and_equal_constraints_one_place(engine: BuiltinEngine) -> None:
    same = [asyncio.create_task(answered(engine, "alice~p/m", endless("c"))) for _ in range(80)]
    other = [asyncio.create_task(answered(engine, "alice~p/m", endless(f"d{n}"))) for n in range(40)]
    await asyncio.wait(other, return_when=asyncio.FIRST_COMPLETED)
    refused = [task.exception() for task in other if task.done()]
    assert refused and all(isinstance(one, OverloadedError) for one in refused)
    for task in other:
        task.cancel()
    await asyncio.gather(*other, return_exceptions=True)
    for outcome in await asyncio.gather(*same, return_exceptions=True):
        assert isinstance(outcome, RequestError), outcome


async def test_the_kept_grammars_are_bounded_by_their_size(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.engine.constraints.KEPT_BYTES", 1000)
    grammars = Grammars(str(base))
    texts = [f"[a-{letter}]{{1,{number}}}" for number, letter in enumerate("bcdefgh", 1)]
    for text in texts:
        grammars.open(Constraint(kind="regex", text=text), [2])
    last = Constraint(kind="regex", text=texts[-1])
    assert grammars.find_compiled(last, [2]) is not None
    sizes = [size for _, size in grammars._compiled.values()]
    assert sum(sizes) == grammars._size and (grammars._size <= 1000 or len(sizes) == 1)
    grammars.close()
