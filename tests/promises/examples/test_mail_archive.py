"""The world of the mail agent: what the tools say, whose conversations it shows, how they are judged."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "art_e"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import mail_archive

    return mail_archive


def test_every_mail_is_found_by_its_subject_and_says_the_answer(world: ModuleType) -> None:
    question = world.draw_question("train 0", 3)
    archive = world.MailArchive(question)
    assert len(question.mails) == 80 == len({mail.id for mail in question.mails})
    for mail in question.mails:
        assert archive.search(mail.subject) == f"{mail.subject} {mail.id}"
        assert archive.read(mail.id) == f"The {mail.role} of {mail.project} is {mail.name}."
    assert len(archive.search(question.wanted.project).splitlines()) == world.MOST_FOUND
    archive.close()


@pytest.mark.parametrize("keyword", ['"', "a AND", "x OR *", "(", "id:", "nobody", "", "  ", '" OR "a'])
def test_no_keyword_is_a_query_of_its_own(world: ModuleType, keyword: str) -> None:
    """FTS5 has a query language; words of a model are words."""
    archive = world.MailArchive(world.draw_question("train 0", 0))
    assert archive.search(keyword) == "nothing"
    assert archive.read(keyword) == "no such mail"
    archive.close()


def test_questions_are_the_same_each_time_and_streams_differ(world: ModuleType) -> None:
    assert world.draw_question("held out", 7) == world.draw_question("held out", 7)
    trained = {world.draw_question("train 0", number) for number in range(300)}
    held_out = {world.draw_question("held out", number) for number in range(300)}
    assert len(trained) == len(held_out) == 300 and not trained & held_out


def test_the_demonstrations_are_noisy_and_the_judge_sees_it(world: ModuleType) -> None:
    right, qualities = [], []
    for number in range(200):
        messages = world.demonstration(number)
        calls = [world.read_call(call) for one in messages for call in one.get("tool_calls") or []]
        assert all(calls) and calls[-1][0] == "answer"
        right.append(calls[-1][1] == world.draw_question("demonstrations", number).wanted.name)
        qualities.append(world.quality_of(messages))
    assert 0.4 < sum(right) / 200 < 0.8
    liked = [is_right for is_right, quality in zip(right, qualities, strict=True) if quality > 0.3]
    assert all(liked) and len(liked) > 80, (
        "a right answer that no mail said is worth no more than a wrong one"
    )


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": "delete", "arguments": '{"id": "b1"}'}},
        {"function": {"name": "read", "arguments": '{"keyword": "b1"}'}},
        {"function": {"name": "read", "arguments": '{"id": 7}'}},
        {"function": {"name": "read", "arguments": '{"id": "b1", "more": 1}'}},
        {"function": {"name": "read", "arguments": "{"}},
        {"function": {"name": "read", "arguments": "[]"}},
        {},
    ],
)
def test_a_call_that_no_tool_understands_is_none(world: ModuleType, call: dict) -> None:
    assert world.read_call(call) is None
