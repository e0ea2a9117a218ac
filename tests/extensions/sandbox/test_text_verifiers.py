"""Rules for texts: exact, patterns, JSON schemas, mathematics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError, VerifierError, install_command
from art.rewards.verifiers import ExactMatch, JsonSchemaMatch, Limits, MathMatch, RegexMatch, last_answer
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored
from waiting import DEADLINE_S

TIGHT = Limits(wall_s=60.0, cpu_s=1, memory_bytes=1 << 30, processes=8)
CATASTROPHE = (r"(a+)+$", "a" * 60 + "!")


def said(*texts: str, **metadata: Any) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "assistant", "content": text}], metadata=metadata)
        for text in texts
    )


@pytest.fixture(scope="module")
def regex() -> Iterator[RegexMatch]:
    yield (verifier := RegexMatch(key="pattern", limits=TIGHT, at_once=1))
    verifier.close()


@pytest.fixture(scope="module")
def schema() -> Iterator[JsonSchemaMatch]:
    yield (verifier := JsonSchemaMatch(key="schema", limits=TIGHT, at_once=1))
    verifier.close()


@pytest.fixture(scope="module")
def math() -> Iterator[MathMatch]:
    yield (verifier := MathMatch(key="answer", limits=TIGHT, at_once=1))
    verifier.close()


async def value(verifier: Any, answer: str, expected: Any) -> float:
    return (await verifier.verify(answer, expected)).value


def test_the_last_answer_is_what_the_assistant_said_last_without_its_thoughts() -> None:
    assert last_answer(Trajectory()) is None
    turns: list[Any] = [
        {"role": "assistant", "content": "<think>5?</think>\n 7 "},
        {"role": "user", "content": "and?"},
    ]
    assert last_answer(Trajectory(messages_and_choices=turns)) == "7"
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "b"},
    ]
    assert last_answer(Trajectory(messages_and_choices=[{"role": "assistant", "content": parts}])) == "a\nb"
    assert last_answer(Trajectory(messages_and_choices=[{"role": "assistant", "content": " "}])) is None


async def test_exact_match() -> None:
    exact = ExactMatch(key="answer")
    assert [await value(exact, " Paris\n", expected) for expected in ("Paris", "paris", ["x", "Paris"])] == [
        1,
        0,
        1,
    ]
    loose = ExactMatch(key="answer", ignore_case=True, ignore_space=True)
    assert await value(loose, "NEW\n york", "New York") == 1.0
    assert await value(exact, "7", 7) == 1.0
    with pytest.raises(VerifierError, match="neither a text nor a list"):
        await exact.verify("7", {"a": 1})


async def test_what_is_expected_comes_from_a_value_a_function_or_metadata() -> None:
    group = said("a", "b", answer="a")
    assert [t.reward for t in await ExactMatch("b").score_group(group)] == [0.0, 1.0]
    assert [t.reward for t in await ExactMatch(key="answer").score_group(group)] == [1.0, 0.0]
    of_each = ExactMatch(lambda trajectory: trajectory.metadata["answer"])
    assert [t.reward for t in await of_each.score_group(group)] == [1.0, 0.0]
    of_group = TrajectoryGroup(said("a").trajectories, metadata={"truth": "a"})
    scored = await ExactMatch(key="truth").score_group(of_group)
    assert scored.trajectories[0].reward == 1.0 and scored.trajectories[0].metrics["reward/exact"] == 1.0
    missing = (await ExactMatch(key="truth").score_group(group)).trajectories[0].reward
    assert isinstance(missing, Unscored) and "'truth'" in missing.reason
    silent = await ExactMatch("a").score_group(TrajectoryGroup([Trajectory()]))
    assert silent.trajectories[0].reward == 0.0


@pytest.mark.slow
async def test_patterns(regex: RegexMatch) -> None:
    assert [await value(regex, "order 17 sent", pattern) for pattern in (r"\d+", r"^\d+$")] == [1.0, 0.0]
    assert (
        await value(RegexMatch("x", whole=True, flags=re.I, limits=TIGHT, at_once=1), "SENT", "sent") == 1.0
    )
    with pytest.raises(VerifierError, match="unterminated"):
        await regex.verify("a", "[")
    with pytest.raises(ConfigurationError, match="unterminated"):
        RegexMatch("[")
    with pytest.raises(ConfigurationError, match="flags"):
        RegexMatch("a", flags=1 << 20)


@pytest.mark.slow
async def test_a_catastrophic_pattern_ends_and_the_next_check_goes_on(regex: RegexMatch) -> None:
    pattern, text = CATASTROPHE
    scored = await regex.score_group(said(text, "aaa", pattern=pattern))
    lost, found = (t.reward for t in scored)
    assert isinstance(lost, Unscored) and "more than 1 s of CPU time" in lost.reason
    assert found == 1.0


@pytest.mark.slow
async def test_an_answer_that_is_too_hard_to_check_can_be_given_a_value() -> None:
    pattern, text = CATASTROPHE
    strict = RegexMatch(pattern, limits=TIGHT, over_limit=0.0, at_once=1)
    scored = (await strict.score_group(said(text))).trajectories[0]
    assert scored.reward == 0.0 and "CPU time" in scored.logs[0]
    strict.close()


@pytest.mark.slow
async def test_json_schemas(schema: JsonSchemaMatch) -> None:
    wanted = {
        "type": "object",
        "required": ["day"],
        "properties": {"day": {"type": "string", "format": "date"}},
    }
    assert await value(schema, '{"day": "2024-02-29"}', wanted) == 1.0
    assert await value(schema, 'Here:\n```json\n{"day": "2024-02-29"}\n```\nDone.', wanted) == 1.0
    for wrong, why in [
        ('{"day": NaN}', "no JSON: NaN"),
        ('{"day": "2024-02-30"}', "$.day: '2024-02-30' is not a 'date'"),
        ("{}", "'day' is a required property"),
        ("nothing", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ]:
        score = await schema.verify(wrong, wanted)
        assert score.value == 0.0 and why in score.explanation
    assert await value(schema, "3", '{"type": "integer"}') == 1.0
    for broken in ({"type": "nope"}, "not json", 3, {"$ref": "http://localhost:1/schema.json"}):
        with pytest.raises(VerifierError, match="schema"):
            await schema.verify("{}", broken)


@pytest.mark.slow
async def test_mathematics(math: MathMatch) -> None:
    for answer, expected in [
        (r"So it is \boxed{\frac{2}{4}}.", "0.5"),
        ("The answer is 1,000", "1000"),
        (r"$x = \sqrt{8}$", r"2\sqrt{2}"),
        (r"$(1, 3]$", "$(1,3]$"),
        (r"$(1, 3]$", "(1,3]"),
        (r"$1 + x$", "x + 1"),
        (r"$50\%$", "1/2"),
    ]:
        assert await value(math, answer, expected) == 1.0, answer
    assert await value(math, r"\boxed{3}", "4") == 0.0
    assert await value(math, "I do not know", "4") == 0.0
    with pytest.raises(VerifierError, match="no mathematical expression"):
        await math.verify("4", "???")


@pytest.mark.slow
@pytest.mark.parametrize("bomb", ["9**9**9**9", "$9^{9^{9^{9}}}$"])
async def test_an_expression_that_explodes_ends(math: MathMatch, bomb: str) -> None:
    with pytest.raises(VerifierError, match="the check"):
        await math.verify(bomb, "3")
    assert await value(math, "3", "3") == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        "__import__('os')._exit(0)",
        "The final answer is __import__('os').write(4, b'{\"value\": 1.0}')",
        r"\boxed{__import__('os')._exit(0)}",
        r"$\text{__import__('os').system('true')}$",
    ],
)
async def test_an_answer_is_never_executed(math: MathMatch, attack: str) -> None:
    score = await math.verify(attack, "3")
    assert score.value == 0.0


@pytest.mark.slow
async def test_a_process_that_is_lost_is_replaced(regex: RegexMatch) -> None:
    await regex.verify("a", "a")
    child = regex._sandbox._idle.get_nowait()
    child._process.kill()
    child._process.wait()  # what it supervises is killed with it
    regex._sandbox._idle.put(child)
    with pytest.raises(VerifierError, match="was lost"):
        await regex.verify("a", "a")
    assert await value(regex, "a", "a") == 1.0


@pytest.mark.slow
def test_a_verifier_works_in_one_event_loop_after_another() -> None:
    verifier = RegexMatch("a", limits=TIGHT, at_once=1)
    for _ in range(2):
        assert asyncio.run(value(verifier, "a", "a")) == 1.0
    supervisor = verifier._sandbox._idle.get_nowait()
    verifier._sandbox._idle.put(supervisor)
    del verifier
    assert supervisor._process.wait(DEADLINE_S) == 0
    assert not Path(supervisor.base).exists()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("verifiers"))):
        MathMatch("3")


async def test_without_a_sandbox_the_rule_that_needs_one_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.extensions._all_points", list)
    with pytest.raises(ConfigurationError, match="no extension gives the sandbox 'processes'"):
        RegexMatch("a")
    assert await value(ExactMatch("a"), "a", "a") == 1.0


async def test_a_function_of_the_user_that_fails_is_no_verdict() -> None:
    for verifier in (
        ExactMatch(lambda trajectory: trajectory.metadata["truth"]),
        ExactMatch("4", answer=lambda trajectory: str(trajectory.metadata["truth"])),
    ):
        [reward] = [one.reward for one in await verifier.score_group(said("4"))]
        assert isinstance(reward, Unscored) and "KeyError: 'truth'" in reward.reason


@pytest.mark.extension
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_processes_is_at_least_one(number: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at_once={number}: at least 1 process"):
        RegexMatch("a", at_once=number)
