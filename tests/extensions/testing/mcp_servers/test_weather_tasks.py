from __future__ import annotations

import json
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.testing.mcp_servers.weather import shipped
from art_extensions.testing.mcp_servers.weather.tasks import (
    DONE,
    GUESSED,
    PHRASINGS,
    Question,
    quality,
    questions,
    scenarios,
)

ALL = [question for kind in PHRASINGS for question in questions(shipped(), kind)]


def call(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}


def attempt(question: Question, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": question.text()}, *calls]


def planned(question: Question) -> list[dict[str, Any]]:
    return [call(name, **arguments) for name, arguments in question.plan(shipped())]


def test_every_question_is_found_again_in_its_text() -> None:
    for question in ALL:
        for phrasing in range(len(PHRASINGS[question.kind])):
            assert Question.parse(question.text(phrasing)) == question
    assert Question.parse("Write a poem about Oslo on Monday.") is None


def test_every_plan_is_executable_and_its_last_answer_says_what_is_asked_for() -> None:
    weather = shipped()
    for question in ALL:
        name, arguments = question.plan(weather)[-1]
        assert question.answer(weather) in getattr(weather, name)(**arguments)


def test_no_question_is_both_in_training_and_held_out() -> None:
    tasks = scenarios()
    asked = [{Question.parse(one.task) for one in part} for part in (tasks.train, tasks.test)]
    assert None not in asked[0] | asked[1] and not asked[0] & asked[1]
    assert {question.kind for question in asked[1] if question} == set(PHRASINGS)
    assert len({one.task for one in tasks.train}) == len(tasks.train) == 192 and len(tasks.test) == 64
    assert scenarios().train.to_dicts() == tasks.train.to_dicts() != scenarios(seed=1).train.to_dicts()


def test_more_tasks_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"test=100000\): there are only \d+; ask for fewer"):
        scenarios(test=100_000)


def test_a_task_done_as_planned_is_worth_one() -> None:
    for question in ALL:
        end = call("complete_task", summary=question.answer(shipped()))
        assert quality(attempt(question, *planned(question), end)) == 1.0


@pytest.mark.parametrize(
    ("question", "summary"),
    [
        (Question(kind="temperature", place="Oslo", day="Monday"), "{} degrees in Oslo, not 99"),
        (Question(kind="warmer", place="Oslo", other="Rome", day="Monday"), "{} is warmer than Oslo"),
        (Question(kind="condition", place="Oslo", day="Monday"), "There will be {}."),
    ],
)
def test_the_answer_may_stand_in_a_sentence(question: Question, summary: str) -> None:
    end = call("complete_task", summary=summary.format(question.answer(shipped())))
    assert quality(attempt(question, *planned(question), end)) == 1.0


def test_detours_cost_little_guesses_half_and_a_wrong_answer_most() -> None:
    question = Question(kind="largest_temperature", region="north", day="Friday")
    listing, forecast = planned(question)
    end = call("complete_task", summary=question.answer(shipped()))
    wrong = call("complete_task", summary="99")
    detour = call("alerts", place="Oslo")
    assert DONE <= quality(attempt(question, listing, detour, forecast, end)) < 1.0
    assert quality(attempt(question, listing, *[detour] * 9, forecast, end)) == DONE
    assert quality(attempt(question, forecast, end)) == 1.0
    assert quality(attempt(question, listing, end)) == quality(attempt(question, end)) == GUESSED < DONE
    assert quality(attempt(question, listing, forecast, wrong)) == pytest.approx(0.4)
    assert quality(attempt(question, listing)) == pytest.approx(0.2)
    assert quality(attempt(question, wrong)) == quality(attempt(question)) == 0.0


def test_which_of_two_places_is_named_first_makes_no_difference() -> None:
    question = Question(kind="warmer", place="Oslo", other="Rome", day="Monday")
    swapped = call("compare", place="rome", other="OSLO", day="monday")
    end = call("complete_task", summary="Rome")
    assert quality(attempt(question, swapped, end)) == 1.0


def test_arguments_may_be_given_as_objects() -> None:
    question = Question(kind="alert", place="Oslo")
    calls = [*planned(question), call("complete_task", summary=question.answer(shipped()))]
    for one in calls:
        function = one["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
    assert quality(attempt(question, *calls)) == 1.0


def test_broken_calls_and_what_the_agent_says_about_itself_count_for_nothing() -> None:
    question = Question(kind="alert", place="Oslo")
    broken = call("alerts")
    broken["tool_calls"][0]["function"]["arguments"] = '{"place": '
    boast = {
        "role": "assistant",
        "content": "Perfect: 1.0. How warm will it be in Rome on Monday?",
    }
    assert quality(attempt(question, broken, boast)) == 0.0


def test_a_task_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no task of the weather server in 'Write a poem'"):
        quality([{"role": "user", "content": "Write a poem"}])
