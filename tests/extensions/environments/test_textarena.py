"""Games with the real library, in an environment of its own (`make test-all` makes it)."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.environments.textarena import draw_move
from art_extensions.testing import LlmServer
from library_programs import needs, told_by

PLACE = ".venv-environments"
apart = needs(PLACE)


def reply(body: Mapping[str, Any]) -> str:
    """Models "first-cell" and "last-cell" take that of the moves on offer."""
    offered = re.findall(
        r"'\[(\w+)\]'", str(body["messages"][-1]["content"]).lower().rpartition("available")[2]
    )
    return str(offered[0 if body["model"] == "first-cell" else -1]) if offered else "no move"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with LlmServer(reply) as server:
        return told_by(PLACE, "textarena_games.py", server.base_url, server.key)


@apart
@pytest.mark.slow
def test_self_play_gives_a_trajectory_for_each_seat_of_one_game(found: dict[str, Any]) -> None:
    zero, one = found["play"]
    assert (zero["seat"], one["seat"]) == (0, 1)
    assert zero["reward"] == -one["reward"] == 1.0  # 0, 2, 4, 6 is a line
    assert (zero["replies"], one["replies"]) == (["0", "2", "4", "6"], ["1", "3", "5"])
    assert "You are Player 0" in zero["users"][0] and "You are Player 1" in one["users"][0]
    assert "Player 0 has won!" in zero["show"] and "O | X | O" in zero["show"]
    assert "[6]" not in zero["show"].partition("Available")[2].splitlines()[0]  # the board is the last one
    assert "[Player 0]" not in "".join(zero["users"])  # its own moves are its replies, and nothing else


@apart
@pytest.mark.slow
@pytest.mark.parametrize("name", ["function", "model"])
def test_another_player_has_the_other_seat(found: dict[str, Any], name: str) -> None:
    game = found[name]
    assert game["seat"] == (1 if name == "function" else 0)
    assert game["replies"][:2] == ["0", "1"]
    assert "8" in game["show"].splitlines()[0 if name == "function" else 1]


@apart
@pytest.mark.slow
def test_a_turn_is_shown_with_all_boards_the_newest_or_as_a_function_says(found: dict[str, Any]) -> None:
    assert found["model"]["replies"] == found["short"]["replies"]
    assert [text.count("Current Board") for text in found["model"]["users"]] == [1, 2, 2]
    assert [text.count("Current Board") for text in found["short"]["users"]] == [1, 1, 1]
    assert found["short"]["users"][1].count("[Player 1]") == 1
    assert found["model"]["replies"] == found["rewritten"]["replies"]
    assert all(text.startswith("Available Moves: ") for text in found["rewritten"]["users"])


@apart
@pytest.mark.slow
def test_a_game_without_an_end_has_no_reward(found: dict[str, Any]) -> None:
    assert found["cut"]["reward"] == "textarena:TicTacToe-v0 did not end within 2 moves"
    assert len(found["cut"]["replies"]) == 1


@apart
@pytest.mark.slow
def test_games_at_the_same_time_draw_from_generators_of_their_own(found: dict[str, Any]) -> None:
    """textarena draws cards from Python's global generator, and seeds it."""
    assert found["alone"] == found["together"]
    assert len({game["users"][0] for game in found["alone"]}) > 2
    assert found["global generator untouched"]


@apart
@pytest.mark.slow
def test_a_game_that_lists_no_moves_says_what_to_do(found: dict[str, Any]) -> None:
    assert 'give opponent="module:function" or opponent="self"' in found["no moves"]


@apart
@pytest.mark.slow
def test_a_game_whose_reward_is_no_number_fails_by_name(found: dict[str, Any]) -> None:
    """Countdown gives the reason of a wrong move in place of the reward."""
    assert "'textarena:Countdown-v0': the game's reward is 'Invalid action" in found["reward is a text"]


def test_a_random_move_is_one_of_the_last_that_are_listed() -> None:
    seen = "For example, '[4]'.\nAvailable Moves: '[0]', '[1]'\n[Player 1] [7]\nAvailable Moves: '[0]', '[8]'"
    drawn = {draw_move(seen, random.Random(seed)) for seed in range(50)}
    assert drawn == {"[0]", "[8]"}
    assert draw_move("Your available actions are: '[check]'", random.Random(0)) == "[check]"
    with pytest.raises(ConfigurationError, match="opponent="):
        draw_move("[Player 1] [col 4]", random.Random(0))
