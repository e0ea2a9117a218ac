"""What people see of a rollout says how it ended, for each way in which a task or an example can end.

A world's last move is no message: what shows messages alone called every lost game "not finished".
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import art
from art.environments import tasks
from art.types import SHOW
from art_extensions.testing import LlmServer

EXAMPLES = Path(__file__).parents[3] / "examples"
Replies = Callable[[Any, int], Mapping[str, Any]]
"""A world and the turn -> the assistant's message."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Returns a module of an example by "folder/module"."""

    def load(name: str) -> ModuleType:
        folder, module = name.split("/")
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        return importlib.import_module(module)

    return load


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def texts(*said: str) -> Replies:
    """The replies in turn, the last one again and again."""
    return lambda _, turn: {"role": "assistant", "content": said[min(turn, len(said) - 1)]}


def calls(*made: Mapping[str, Any]) -> Replies:
    return lambda _, turn: made[min(turn, len(made) - 1)]


def run(world: Any, reply: Replies) -> list[Mapping[str, Any]]:
    messages = list(world.opening)
    for turn in range(20):
        messages.append(dict(reply(world, turn)))
        messages += world.reply(messages[-1])
        if world.done:
            return messages
    raise AssertionError("it did not end")


def last_line(shown: object) -> str:
    return str(shown).splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "reply", "ending"),
    [
        ("mail", lambda world, _: call("answer", text=world.scenario.wanted.name), "right"),
        ("mail", calls(call("answer", text="nobody")), r"wrong \(\w+ is right\)"),
        ("mail", calls(call("search", keyword="x")), r"out of turns \(after 6\)"),
        ("mail", calls(call("post", x="y")), r"broken \(no such call\)"),
        ("mail", texts("alice"), r"broken \(no tool is called\)"),
        ("yes-no-maybe", texts("Maybe."), "maybe, worth 1"),
        ("yes-no-maybe", texts("blue"), "none of the three words, worth 0"),
        ("tic-tac-toe", texts("A1 or B2"), "invalid"),
        ("tic-tac-toe", texts("A1", "A1"), "invalid"),
    ],
)
def test_a_task_says_how_a_rollout_ended(name: str, reply: Replies, ending: str) -> None:
    task = tasks.find(name)
    world = task.environment(task.scenario(0, 0), 0)
    assert world.ending == ""
    shown = task.show(run(world, reply), world.ending)
    assert re.fullmatch(f"result: {ending}", last_line(shown)), shown


@pytest.mark.parametrize("way", ["won", "lost", "draw"])
def test_a_game_of_tic_tac_toe_is_shown_with_its_last_move(way: str) -> None:
    task: Any = tasks.find("tic-tac-toe")

    def play(world: Any, _: int) -> dict[str, str]:
        dice = random.Random(world.board)
        return {"role": "assistant", "content": task.CELLS[dice.choice(task.free_cells(world.board))]}

    for seed in range(200):
        world = task.environment(task.scenario(0, 0), seed)
        messages = run(world, play)
        if world.ending.partition(" ")[0] == way:
            break
    moves, *board, result = task.show(messages, world.ending).splitlines()
    assert result == f"result: {way}" and "\n".join(board) == task.draw_board(world.board)
    assert moves.count("X ") == world.board.count("X") and moves.count("O ") == world.board.count("O")
    assert world.board.count(".") or way != "lost" or moves.rpartition(", ")[2].startswith("O ")


@pytest.mark.parametrize(
    ("program", "world", "replies", "ending"),
    [
        ("guess_number", "NumberWorld", ["{secret}"], r"found \(guess 1\)"),
        ("guess_number", "NumberWorld", ["0"], r"not found \(it was \d+\)"),
        ("guess_number", "NumberWorld", [""], r"invalid \(the reply is no number\)"),
        ("extract_json", "OrderWorld", ["{answer}"], "4 of 4 values right"),
        ("extract_json", "OrderWorld", ['{"name": 1, "city": 1, "item": 1, "count": 1}'], "0 of 4 values.*"),
        ("extract_json", "OrderWorld", [""], r"invalid \(no JSON object with the four keys\)"),
        ("shopping_agent", "ShopWorld", [], "right"),
        ("shopping_agent", "ShopWorld", ["1"], r"wrong \(\d+ is right, behind both calls\)"),
        ("shopping_agent", "ShopWorld", [""], r"wrong \(\d+ is right, behind both calls\)"),
        ("shopping_agent", "ShopWorld", [call("get_price", x="y")], r"wrong call \(right calls before: 0\)"),
    ],
)
def test_a_small_world_says_how_a_rollout_ended(
    example: Callable[[str], ModuleType], program: str, world: str, replies: Sequence[Any], ending: str
) -> None:
    module = example(f"{program}/{program}")
    environment = next(
        value
        for name, value in vars(module).items()
        if name.endswith("Environment") and hasattr(value, "world")
    )()
    made = environment.world(environment.scenarios("val")[3])
    said = replies or [one for one in made.demonstration()[1:] if one["role"] == "assistant"]
    facts = {
        "secret": getattr(getattr(made, "game", None), "secret", ""),
        "answer": getattr(getattr(made, "order", None), "answer", ""),
    }

    def reply(_: Any, turn: int) -> Mapping[str, Any]:
        one = said[min(turn, len(said) - 1)]
        if not isinstance(one, str):
            return one
        for name, value in facts.items():
            one = one.replace(f"{{{name}}}", str(value))
        return {"role": "assistant", "content": one}

    shown = module.show(run(made, reply), made.ending)
    assert re.fullmatch(f"result: {ending}", last_line(shown)), shown


def player(base_url: str, key: str) -> art.Model:
    return art.Model(
        name="scripted",
        project="endings",
        inference_base_url=base_url,
        inference_api_key=key,
        inference_model_name="scripted",
    )


@pytest.mark.slow
async def test_the_games_of_the_examples_say_how_they_ended(example: Callable[[str], ModuleType]) -> None:
    """Each example's own rollout, against an endpoint that moves at random."""
    simple, self_play, sliding = (
        example("tic_tac_toe/tic_tac_toe"),
        example("tic_tac_toe/self_play"),
        example("game_2048/game_2048"),
    )
    dice = random.Random(0)

    def answer(body: Mapping[str, Any]) -> str:
        board = str(body["messages"][-1]["content"])
        if dice.random() < 0.05:
            return "no move"
        if "Choose" in board:  # 2048
            return dice.choice(board.rpartition("Choose ")[2].split(" or "))
        if "1 2 3" in board:  # tic-tac-toe, as X alone
            rows = [row.split() for row in board.splitlines()[-3:]]
            return dice.choice([f"{row[0]}{n}" for row in rows for n in (1, 2, 3) if row[n] == "."])
        return dice.choice([row.split()[0] for row in board.splitlines()])  # both seats

    with LlmServer(answer) as server:
        model = player(server.base_url, server.key)
        games = await asyncio.gather(*(simple.play(model, str(n)) for n in range(40)))
        seats = await asyncio.gather(*(self_play.play_itself(model, "." * 9, False) for _ in range(30)))
        slides = await asyncio.gather(*(sliding.play(model, str(n)) for n in range(12)))
        quick = [
            await tasks.find("tic-tac-toe").rollout(model, tasks.find("tic-tac-toe").scenario(0, n))
            for n in range(8)
        ]
    seen = set()
    for game in games:
        (way,) = [name for name in ("won", "draw", "invalid") if game.metrics[name]] or ["lost"]
        assert last_line(game.metadata[SHOW]) == way
        seen.add(way)
    assert seen == {"won", "lost", "draw", "invalid"}
    for pair in seats:
        ends = [last_line(seat.trajectory.metadata[SHOW]) for seat in pair]
        assert sorted(ends) in (
            ["lost", "won"],
            ["draw", "draw"],
            ["invalid", "not finished: the other seat named no free cell"],
        )
    for game in slides:
        why = "illegal move" if game.metrics["illegal"] else "out of turns"
        assert last_line(game.metadata[SHOW]) == f"result: {why}, score {game.metrics['score']}"
    for game in quick:
        (way,) = [name for name in ("won", "draw", "invalid") if game.metrics[name]] or ["lost"]
        assert last_line(game.metadata[SHOW]) == f"result: {way}"


@pytest.mark.parametrize(
    ("answer", "broken", "ending"),
    [
        ("{wanted}", False, "right"),
        ("nobody", False, r"wrong, \w+ is right"),
        (None, True, "broken"),
        (None, False, "out of turns"),
    ],
)
def test_the_mail_agent_says_how_it_ended(
    example: Callable[[str], ModuleType], answer: str | None, broken: bool, ending: str
) -> None:
    program, archive = example("art_e/art_e"), example("art_e/mail_archive")
    question = archive.draw_question("val", 0)
    said = answer and answer.replace("{wanted}", question.wanted.name)
    made = art.Trajectory(messages_and_choices=list(question.opening), reward=0.0)
    scored = program.score(made, question, said, broken=broken, turns=2)
    assert re.fullmatch(f"result: {ending}", last_line(scored.metadata[SHOW]))


async def test_a_clue_that_is_none_is_shown_as_that(example: Callable[[str], ModuleType]) -> None:
    program, boards = example("codenames/codenames"), example("codenames/codenames_board")
    board = boards.draw_board("endings", 0)
    words = iter(["nonsense", board.clues[0]])

    def answer(body: Mapping[str, Any]) -> str:
        asked = body["messages"][-1]["content"].startswith("Give a hint")
        return next(words) if asked else board.secret

    with LlmServer(answer) as server:
        givers, *_ = await program.play(player(server.base_url, server.key), board, 2, 1)
    ends = sorted(str(one.metadata[SHOW]).rpartition(", ")[2] for one in givers)
    assert ends == ["not one of the clues", "understood by 100%"]
