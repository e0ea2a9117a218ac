"""The whole of MCP-RL, offline: real server, real backend, a judge and a generator behind a real endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import ConfigurationError, LlmAnswerError
from art.rewards.llm.budget import Budget
from art.rewards.llm.cache import AnswerCache
from art.rewards.llm.names import base_of
from art.rewards.llm.own_model import OwnModelLlm
from art.rewards.ruler import Ruler
from art.runs.comparison import Comparison, ComparisonSide
from art.runs.folder import StepRow
from art.runs.training_run import model_to_train
from art_extensions.scenarios.judges import Candidate
from art_extensions.scenarios.mcp.server_address import parse_server
from art_extensions.scenarios.mcp.types import PlannedScenario
from art_extensions.scenarios.mcp_rl.checked_scenarios import ScenarioSet
from art_extensions.scenarios.mcp_rl.mcp_run import McpReport, compared_metrics, run_judges, server_start_hint
from art_extensions.scenarios.mcp_rl.settings import (
    TrainSettings,
    require_same_scenarios,
    split_own_scenarios,
)
from art_extensions.scenarios.mcp_rl.training import train
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either
from art_extensions.testing.mcp_servers.weather import create_server, shipped
from art_extensions.testing.mcp_servers.weather.tasks import SYSTEM_PROMPT, Question, quality, scenarios

MODEL = "art/nano-mcp"
SMALL = {
    **{"num_train": 4, "num_test": 2, "groups_per_step": 2, "group_size": 4, "eval_group_size": 1},
    **{"difficulty_rollouts": 1, "max_turns": 6, "max_tokens": 48, "learning_rate": 1e-3},
    **{"system_prompt": SYSTEM_PROMPT},
}


def stock(count: int) -> list[dict[str, Any]]:
    """Tasks as a generator would write them, with their plans."""
    found = []
    for one in list(scenarios(train=count, test=1).train):
        question = Question.parse(one.task)
        assert question is not None
        calls = [{"tool": tool, "arguments": given} for tool, given in question.plan(shipped())]
        found.append({**one.to_dict(), "plan": calls})
    return found


def truth(trajectory: art.Trajectory) -> float:
    return quality(trajectory.messages())


@pytest.fixture(scope="module")
def oracle() -> Iterator[LlmServer]:
    judge, generator = TruthfulJudge(quality), ScriptedGenerator(scenarios=stock(24))
    with LlmServer(either(judge=judge, generator=generator)) as server:
        yield server


def asked(oracle: LlmServer) -> tuple[int, int]:
    """Questions to the judge and to the generator so far."""
    judged = sum("<trajectory" in json.dumps(body["messages"]) for body in oracle.requests)
    return judged, len(oracle.requests) - judged


@pytest.mark.slow
async def test_a_run_from_server_to_report(oracle: LlmServer, tmp_path: Path) -> None:
    async with art.LocalBackend(path=str(tmp_path / "art")) as backend:
        await runs(oracle, backend, tmp_path)


async def runs(oracle: LlmServer, backend: art.LocalBackend, tmp_path: Path) -> None:
    params = {"base_url": oracle.base_url, "api_key": oracle.key}
    told: list[str] = []

    async def run(name: str, **more: Any) -> McpReport:
        common = {"base_model": MODEL, "judge": "truth", "generator": "writer", "backend": backend}
        asked = {"judge_params": params, "generator_params": params, "path": tmp_path, "tell": told.append}
        return await train(create_server, name=name, **{**common, **asked, **SMALL, **more})

    # The whole run.
    report = await run("weather", steps=1, measure=truth)
    assert report.step == 1 and report.stopped is None and len(report.steps) == 1
    assert report.steps[0].rollouts == 8 and report.steps[0].trained > 0
    both = report.comparison
    assert both.before.attempts == both.after.attempts == 2 and both.unjudged == 0
    assert both.before.judged == pytest.approx(both.before.figures["measure"], abs=0.02)  # it knows the truth
    assert both.wins + both.ties + both.losses == 2
    assert all(one.pass_rate is not None for one in report.scenarios.train)
    assert report.costs["generator"]["calls"] == 1 and report.costs["judge"]["calls"] >= 4
    folder = tmp_path / "mcp" / "mcp" / "weather"
    shown = (folder / "report.md").read_text()
    assert report.verdict != "not judged" and "95 % interval" in shown and "> complete_task(" in shown
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(report.to_dict()))
    assert told[0].startswith("4 tools: list_places") and any(line.startswith("step 1/1") for line in told)

    # Again: nothing is left to do, and nobody is asked.
    before = asked(oracle)
    again = await run("weather", steps=1, measure=truth)
    assert again.comparison == both and again.scenarios == report.scenarios and asked(oracle) == before
    assert told[-1] == f"going on with the run in {folder}"

    # Further: one more step, with the scenarios and the attempts of before that there are.
    further = await run("weather", steps=2)
    assert further.step == 2 and further.steps[0] == report.steps[0]
    assert asked(oracle)[1] == before[1] and asked(oracle)[0] > before[0]
    assert further.comparison.before.figures["num_turns"] == both.before.figures["num_turns"]

    # As its own judge the model has its adapter off. (The nano model has no room for what a judge is told.)
    alone = await run("alone", judge="base", judge_params=None, steps=1, difficulty_rollouts=0)
    assert alone.steps[0].unscored == 8 and alone.costs["judge"]["failures"] > 0
    await the_adapter_is_off(model_to_train(tmp_path, "weather", "mcp", MODEL), backend)

    # Not on other terms.
    with pytest.raises(ConfigurationError, match="group_size=5, but the run was started with 4"):
        await run("weather", group_size=5)
    with pytest.raises(ConfigurationError, match="base_model='art/nano-mcp', not 'art/nano-games'"):
        await run("weather", base_model="art/nano-games")

    # A spent budget ends training with what is learned, and with a report.
    poor = await run("poor", steps=3, budget=Budget(calls=3), cache=None, seed=7)
    assert poor.stopped is not None and "budget is spent" in poor.stopped and poor.step < 3
    assert poor.comparison.unjudged == 2 and "Training stopped before its end" in poor.to_markdown()

    # Gone on with, it has what is left of the budget: nothing.
    before = asked(oracle)
    still = await run("poor", steps=3, budget=Budget(calls=3), cache=None, seed=7)
    assert still.stopped is not None and still.step == poor.step and asked(oracle) == before

    # A model that was trained elsewhere has no "before".
    with pytest.raises(ConfigurationError, match="has been trained already"):
        await train(
            create_server,
            **{"base_model": MODEL, "name": "weather", "judge": "truth", "judge_params": params},
            **{"backend": backend, "path": tmp_path / "elsewhere", "scenarios": stock(6), **SMALL},
        )


async def the_adapter_is_off(model: art.TrainableModel[Any, Any], backend: art.LocalBackend) -> None:
    """What `judge="base"` asks answers as the model did before training, not as it does now."""
    await model.register(backend)
    judge = base_of(model)

    async def likelihoods(name: str) -> list[float]:
        told = await model.openai_client().chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "How warm will it be in Oslo on Monday?"}],
            temperature=0,
            max_tokens=8,
            logprobs=True,
        )
        assert told.choices[0].logprobs is not None
        return [token.logprob for token in told.choices[0].logprobs.content or []]

    assert isinstance(judge, OwnModelLlm)
    base = await likelihoods(judge._asked_as)
    assert base == await likelihoods(f"{model.name}@0") != await likelihoods(model.get_inference_name())


def test_settings_act_or_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"groupsize=3 is no option.*did you mean 'group_size'.*known: "
    ):
        TrainSettings.from_options({"groupsize": 3})
    for name, value in (("group_size", 1), ("num_test", 0), ("max_turns", 0), ("difficulty_rollouts", -1)):
        with pytest.raises(ConfigurationError, match=f"{name}={value} must be at least"):
            TrainSettings.from_options({name: value})
    with pytest.raises(ConfigurationError, match="give a list of tools, or True"):
        TrainSettings.from_options({"allow_writes": "write"})
    with pytest.raises(ConfigurationError, match=r"max_failed=2\.0 is a share"):
        TrainSettings.from_options({"max_failed": 2.0})
    assert TrainSettings.from_options({"allow_writes": ["a"]}).allow_writes == ("a",)
    chosen = TrainSettings.from_options(
        {"groups_per_step": 3, "epochs": 2, "warmup_steps": 1, "final_share": 0.5}
    )
    assert chosen.total_steps(16) == 11 and TrainSettings.from_options({"steps": 0}).total_steps(16) == 0
    assert [round(chosen.rate_at(step, [(0, 2)]) / chosen.learning_rate, 3) for step in (0, 1, 2)] == [
        0.5,
        0.75,
        0.5,
    ]


def test_many_starts_of_a_command_are_told_of() -> None:
    many = TrainSettings(steps=50, groups_per_step=16, group_size=8, num_test=64, eval_group_size=8)
    command = parse_server("serve")
    said = server_start_hint(command, many, 0.8)
    assert said is not None and "each of some 7456 rollouts starts the server, which took 0.8 s" in said
    assert server_start_hint(parse_server("http://localhost/mcp"), many, 0.8) is None
    assert server_start_hint(command, TrainSettings(), 0.8) is None


def test_settings_survive_json_and_hold_a_run_to_them() -> None:
    chosen = TrainSettings.from_options({"allow_writes": ["a"], "rubric": "Short.", "seed": 3})
    saved = TrainSettings.from_options(json.loads(json.dumps(chosen.to_dict())))
    assert saved == chosen
    more = TrainSettings.from_options(
        {"allow_writes": ["a"], "rubric": "Short.", "seed": 3, "steps": 9, "concurrency": 2}
    )
    more.check_resumes(saved)
    with pytest.raises(ConfigurationError, match=r"rubric=None, but the run was started with 'Short\.'"):
        TrainSettings.from_options({"allow_writes": ["a"], "seed": 3}).check_resumes(saved)


def test_scenarios_of_ones_own() -> None:
    settings = TrainSettings(num_test=2)
    made = split_own_scenarios(["a", {"task": "b"}, PlannedScenario("c", 4), "A!", "d"], settings, [])
    assert len(made.test) == 2 and sorted(one.task for one in (*made.train, *made.test)) == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert split_own_scenarios(made, settings, []) == made
    with pytest.raises(ConfigurationError, match="cannot be split"):
        split_own_scenarios(["only one"], settings, [])


def test_nothing_that_is_held_out_is_trained_on() -> None:
    settings = TrainSettings(num_test=1)
    made = split_own_scenarios(
        ["The weather in Oslo?", "Tell me the weather in Oslo, please.", "Late books"], settings, []
    )
    assert len(made.train) == len(made.test) == 1 and made.rejections == {"near_duplicate": 1}
    twins = ScenarioSet(
        train=(PlannedScenario("Weather for Oslo", 1), PlannedScenario("Late books", 1)),
        test=(PlannedScenario("Tell me the weather for Oslo", 1),),
        tools={},
    )
    made = split_own_scenarios(twins, settings, [])
    assert [one.task for one in made.train] == ["Late books"] and made.rejections == {"near_duplicate": 1}
    for lacking in (replace(twins, train=twins.train[:1]), replace(twins, test=())):
        with pytest.raises(ConfigurationError, match="at least one of each is needed"):
            split_own_scenarios(lacking, settings, [])
    require_same_scenarios(twins, made.with_train([one.measured(0.5) for one in made.train]), settings)
    with pytest.raises(ConfigurationError, match="the run was started with others"):
        require_same_scenarios(["a", "b"], made, settings)


async def test_what_has_not_begun_may_be_begun_otherwise(tmp_path: Path) -> None:
    common: dict[str, Any] = {"base_model": MODEL, "judge": lambda messages: {}, "path": tmp_path}
    for count in (4, 5):
        with pytest.raises(LlmAnswerError):
            await train(create_server, **common, num_train=count, generator=lambda messages: "no")
    with pytest.raises(ConfigurationError, match="is not a name"):
        await train(create_server, **common, name="../out", generator=lambda messages: "no")
    assert [path.name for path in (tmp_path / "mcp").iterdir()] == ["mcp"]


async def test_a_generator_is_needed_only_when_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no provider 'nosuch'"):
        await train(
            create_server, base_model=MODEL, judge=lambda messages: {}, generator="nosuch/x", path=tmp_path
        )
    with pytest.raises(LlmAnswerError, match="gave no answer of the right form"):
        await train(
            create_server,
            base_model=MODEL,
            judge=lambda messages: {},
            generator=lambda messages: "no",
            path=tmp_path,
        )


def test_a_report_says_what_is_not_known() -> None:
    side = ComparisonSide(attempts=2, failed=1, figures={"num_turns": 2.0})
    row = StepRow(
        step=1,
        reward=None,
        rollouts=8,
        failed=1,
        unscored=8,
        trained=0,
        learning_rate=1e-5,
        seconds_rollouts=1.0,
        seconds_training=1.0,
        judge={"judge/agreement": 0.75},
    )
    report = McpReport(
        server="weather",
        base_model="m",
        model="p/n",
        step=1,
        scenarios=ScenarioSet(train=(PlannedScenario("a", 1),), test=(PlannedScenario("b", 1),), tools={}),
        steps=(row,),
        comparison=Comparison(before=side, after=side, unjudged=1),
        costs={"judge": {"calls": 3, "usd": None}},
        same_judge=False,
        seconds=2.0,
        stopped="the budget is spent",
        folder=Path("somewhere"),
    )
    text = report.to_markdown()
    assert "| num_turns (less is better) | 2.000 | 2.000 |" in text and "judge, both side by side" not in text
    assert "1 without a verdict" in text and "judge/agreement" in text and "0.750" in text
    assert (
        "Nothing was judged, so nothing is known" in text and "| judge | 3 | 0 | 0 | 0 | not known |" in text
    )
    assert (
        "Only 0 of 8 rollouts could teach anything" in text and "before its end: the budget is spent" in text
    )
    assert report.base_rate is None and json.dumps(report.to_dict())


def test_a_judge_by_name_goes_by_the_rubric_and_no_other_does(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"cache": AnswerCache(tmp_path / "answers"), "budget": Budget(usd=1.0)}
    base = Candidate.from_judge(model_to_train(tmp_path, "n", "p", MODEL), None, **shared)
    judges = run_judges(base, None, "Short.")
    channel = judges.judge.channel
    assert channel is not None and channel.llm.name == MODEL and judges.has_one_judge
    own = Candidate.from_judge(0.5 * Ruler(lambda messages: {}, cache=False), None, **shared)
    with pytest.raises(ConfigurationError, match=r"rubric='Short\.' is for a judge by name"):
        run_judges(own, None, "Short.")


def test_what_is_compared_of_a_rollout() -> None:
    """What a judge puts beside it is left out."""
    attempt = art.Trajectory(metrics={"num_turns": 3, "success": True, "tool_errors": 0, "ruler_score": 0.5})
    assert compared_metrics(attempt) == {
        "num_turns": 3.0,
        "success": 1.0,
        "tool_errors": 0.0,
        "clean_finish": 1.0,
    }
