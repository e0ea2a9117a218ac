"""What a trajectory and a group look like in a terminal and in a notebook."""

from __future__ import annotations

import json
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art
from art.types import SHOWN_CHARS

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></details><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\"><iframe srcdoc='<script>alert(1)</script>'>",
    "' onmouseover='alert(1)",
    "<!--<script>--><style>body{display:none}</style>",
    "]]><a href=javascript:alert(1)>x</a>",
    "<plaintext>",
    "<textarea><title><noscript><xmp>",
    "\x00<scr\x00ipt>\x1b[31m\u202e\ud800\x7f",
    "$\\href{javascript:alert(1)}{x}$",
    "<" * 100,
    "{{7*7}}<%= 1 %>${1}",
]
TAGS = {"html", "head", "body", "details", "summary", "div", "b", "pre", "p"}
ATTRIBUTES = {"class", "style"}


def said(content: Any, **message: Any) -> Choice:
    return Choice.construct(
        index=0, finish_reason="stop", message={"role": "assistant", "content": content, **message}
    )


def hostile_group(text: str) -> art.TrajectoryGroup:
    """A group with the text wherever a model, a tool, a judge or a user may have put it."""
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": text}}
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": text, "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, {"type": text}]},
            said(text, tool_calls=[call], reasoning_content=text),
            {"role": "tool", "tool_call_id": text, "content": text},
            Choice.construct(index=0, finish_reason=text, message={"role": "assistant", "content": text}),
        ],
        reward=art.Unscored(text),
        metrics={text: 1.0},
        metadata={text: text},
        logs=[text],
    )
    return art.TrajectoryGroup([trajectory, ValueError(text)], metadata={text: text}, logs=[text])


def parsed(html: str) -> Element:
    html.encode()  # a page is stored as UTF-8
    root: Element = html5lib.parse(html, namespaceHTMLElements=False)
    for element in root.iter():
        assert isinstance(element.tag, str), "a comment"
        assert element.tag in TAGS and element.attrib.keys() <= ATTRIBUTES, (element.tag, element.attrib)
    return root


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text_in_a_notebook(text: str) -> None:
    group = hostile_group(text)
    for shown in (group, group.trajectories[0]):
        root = parsed(shown._repr_html_())
        pres = [element.text or "" for element in root.iter("pre")]
        assert len(pres) == 5
        if text.isprintable():
            assert pres[0] == text and text in pres[1] and pres[2].count(text) == 4
        for block in root.findall("body/*"):
            assert "mathjax_ignore" in block.attrib["class"]


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_text_makes_a_page(text: str) -> None:
    group = hostile_group(text)
    assert len(list(parsed(group._repr_html_()).iter("pre"))) == 5
    assert "\n" not in repr(group)


def test_no_content_keeps_a_notebook_from_showing_a_trajectory() -> None:
    odd: list[Any] = [None, 3, [None, 3, {"type": "image_url"}, {"text": 4}], {"a": 1}]
    messages: list[Any] = [{"content": one} for one in odd]
    messages.append({"role": "assistant", "tool_calls": [{}, {"function": None}]})
    parsed(art.Trajectory(messages_and_choices=messages)._repr_html_())


def test_a_long_text_is_cut_and_says_how_much_is_left_out() -> None:
    html = art.Trajectory(messages_and_choices=[said("x" * (SHOWN_CHARS + 7))])._repr_html_()
    assert "x" * SHOWN_CHARS in html and "7 more characters" in html and len(html) < SHOWN_CHARS + 1000


def test_a_trajectory_in_one_line() -> None:
    history = art.History(messages_and_choices=[])
    won = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "long " * 999}, said("a"), said("b")],
        reward=0.75,
        additional_histories=[history],
    )
    assert repr(won) == "Trajectory(2 turns, reward 0.75, finish stop, 1 further history)"
    again = art.Trajectory.model_validate(json.loads(won.model_dump_json()))
    assert repr(again) == repr(won)
    unscored = art.Trajectory(messages_and_choices=[said("a")], reward=art.Unscored("the judge\nis down"))
    assert repr(unscored) == "Trajectory(1 turn, unscored: 'the judge\\nis down', finish stop)"


def test_a_reward_that_is_no_number_keeps_nothing_from_being_shown() -> None:
    odd = art.Trajectory()
    odd.reward = "good"  # type: ignore[assignment]  # nothing checks it before it is gathered
    assert repr(odd) == "Trajectory(0 turns, no reward)" and parsed(odd._repr_html_())
    assert repr(art.TrajectoryGroup([odd])) == "TrajectoryGroup(1 trajectory, 1 unscored)"


def test_a_group_in_one_line() -> None:
    class Game(art.Trajectory):
        pass

    rollouts = [Game(reward=0.0), Game(reward=1.0), art.Trajectory(reward=art.Unscored("x"))]
    group = art.TrajectoryGroup([*rollouts, ValueError("gone")])
    assert repr(group) == "TrajectoryGroup(3 trajectories, reward 0.5 ± 0.5, 1 unscored, 1 exception)"
    assert repr(art.TrajectoryGroup([])) == "TrajectoryGroup(0 trajectories)"
    assert repr(rollouts[0]) == "Game(0 turns, reward 0)"
