from __future__ import annotations

import json
from typing import Any

import pytest

from art.environments.tasks import mail as task


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": f"call_{name}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def say(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.mark.parametrize("index", range(20))
def test_an_inbox_has_eighty_mails_with_unique_ids_and_subjects(index: int) -> None:
    scenario = task.scenario(1, index)
    assert len(scenario.inbox) == 80
    assert len({mail.id for mail in scenario.inbox}) == 80
    assert len({(mail.project, mail.role) for mail in scenario.inbox}) == 80
    assert scenario.wanted in scenario.inbox
    for project in {mail.project for mail in scenario.inbox}:
        assert len({mail.id[0] for mail in scenario.inbox if mail.project == project}) == 5


def test_scenarios_are_a_function_of_seed_and_index() -> None:
    assert task.scenario(2, 3) == task.scenario(2, 3)
    assert task.scenario(2, 3) != task.scenario(2, 4)
    assert task.scenario(2, 3) != task.scenario(3, 3)


def test_search_needs_every_word_and_lists_at_most_five() -> None:
    inbox = task.scenario(0, 0).inbox
    mail = inbox[0]
    assert (
        task.search(inbox, f"{mail.role.upper()} {mail.project}") == f"{mail.project} {mail.role} {mail.id}"
    )
    assert {line.split()[1] for line in task.search(inbox, mail.project).splitlines()} == set(task.ROLES)
    assert len(task.search(inbox, mail.role).splitlines()) == 5
    assert task.search(inbox, f"{mail.project} nobody") == "nothing"


def test_the_three_calls_lead_to_the_right_answer() -> None:
    scenario = task.scenario(0, 1)
    world = task.environment(scenario)
    found = world.reply(say(call("search", keyword=scenario.wanted.project)))
    assert found[0]["role"] == "tool" and found[0]["tool_call_id"] == "call_search"
    assert scenario.wanted.id in found[0]["content"]
    text = world.reply(say(call("read", id=scenario.wanted.id)))[0]["content"]
    assert text == f"The {scenario.wanted.role} of {scenario.wanted.project} is {scenario.wanted.name}."
    assert world.reply(say(call("answer", text=scenario.wanted.name.title()))) == []
    assert (world.done, world.reward) == (True, 1.0)
    assert world.metrics == {"right": 1.0, "broken": 0.0, "turns": 3.0}


def test_a_wrong_answer_and_running_out_of_turns_give_zero() -> None:
    world = task.environment(task.scenario(0, 1))
    world.reply(say(call("answer", text="nobody")))
    assert (world.done, world.reward, world.metrics["broken"]) == (True, 0.0, 0.0)
    world = task.environment(task.scenario(0, 1))
    while not world.done:
        world.reply(say(call("read", id="?")))
    assert (world.turns, world.reward, world.metrics["broken"]) == (task.TURN_LIMIT, 0.0, 0.0)


@pytest.mark.parametrize(
    "message",
    [
        say(content="It is alice."),
        say(call("delete", id="k7")),
        say(call("search")),
        say(call("search", keyword="atlas", limit=3)),
        say(call("read", id=7)),
        say({"id": "1", "type": "function", "function": {"name": "read", "arguments": "{id: k7"}}),
        say({"id": "1", "type": "function", "function": {"name": "read", "arguments": "[1]"}}),
    ],
)
def test_anything_but_a_well_formed_call_is_broken(message: dict[str, Any]) -> None:
    world = task.environment(task.scenario(0, 0))
    assert world.reply(message) == []
    assert (world.done, world.reward, world.metrics["broken"]) == (True, -1.0, 1.0)


def test_several_calls_in_one_message_are_answered_in_order() -> None:
    scenario = task.scenario(0, 2)
    world = task.environment(scenario)
    results = world.reply(say(call("search", keyword="atlas"), call("read", id=scenario.wanted.id)))
    assert [result["tool_call_id"] for result in results] == ["call_search", "call_read"]
    assert scenario.wanted.name in results[1]["content"]


def test_show_names_each_call_and_its_result() -> None:
    scenario = task.scenario(0, 3)
    world = task.environment(scenario)
    messages = list(world.opening)
    messages.append(say(call("read", id=scenario.wanted.id)))
    messages += world.reply(messages[-1])
    shown = task.show(messages)
    assert scenario.question in shown and scenario.wanted.name in shown
