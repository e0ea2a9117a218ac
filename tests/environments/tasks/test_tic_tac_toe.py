from __future__ import annotations

from itertools import product

import pytest

from art.environments.tasks import tic_tac_toe as task

REACHABLE = [
    "".join(marks) for marks in product("XO.", repeat=9) if marks.count("X") - marks.count("O") in (0, 1)
]


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_free_cells_and_placing_agree_on_every_board() -> None:
    for board in REACHABLE:
        free = task.free_cells(board)
        assert [board[cell] for cell in free] == ["."] * board.count(".")
        for cell in free:
            after = task.place(board, cell, "X")
            assert after[cell] == "X"
            assert [a for i, a in enumerate(after) if i != cell] == [
                b for i, b in enumerate(board) if i != cell
            ]


def test_winner_is_whoever_fills_a_row_column_or_diagonal() -> None:
    grid = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    lines = [*grid, *map(list, zip(*grid, strict=True)), [0, 4, 8], [2, 4, 6]]
    for board in REACHABLE:
        winners = {mark for mark in "XO" for line in lines if all(board[cell] == mark for cell in line)}
        if len(winners) < 2:  # both can have a line only on boards that no game reaches
            assert task.winner(board) == (winners.pop() if winners else None)


def test_outcome_covers_the_end_of_every_game() -> None:
    endings: dict[str, int] = {"won": 0, "lost": 0, "draw": 0}

    def explore(board: str, mark: str) -> None:
        ended = task.outcome(board)
        if ended:
            endings[ended] += 1
            return
        for cell in task.free_cells(board):
            explore(task.place(board, cell, mark), "O" if mark == "X" else "X")

    explore("XO" + "." * 7, "X")  # one opening stands for all: the whole tree takes longer
    assert sum(endings.values()) == endings["won"] + endings["lost"] + endings["draw"] > 1000
    assert all(endings.values())


def test_known_number_of_games_from_the_empty_board() -> None:
    """255,168 games: 131,184 won by the first player, 77,904 by the second, 46,080 drawn."""
    counts: dict[tuple[str, str], tuple[int, int, int]] = {}

    def count(board: str, mark: str) -> tuple[int, int, int]:
        ended = task.outcome(board)
        if ended:
            return (int(ended == "won"), int(ended == "lost"), int(ended == "draw"))
        if (board, mark) not in counts:
            other = "O" if mark == "X" else "X"
            branches = [count(task.place(board, cell, mark), other) for cell in task.free_cells(board)]
            counts[board, mark] = tuple(map(sum, zip(*branches, strict=True)))  # type: ignore[assignment]
        return counts[board, mark]

    assert count(task.EMPTY, "X") == (131_184, 77_904, 46_080)


@pytest.mark.parametrize(
    ("text", "cell"),
    [("A1", 0), ("B2", 4), (" C3\n", 8), ("I take B1.", 3), ("<move>C1</move>", 6)],
)
def test_a_reply_with_one_cell_is_a_move(text: str, cell: int) -> None:
    assert task.parse_move(text) == cell


@pytest.mark.parametrize("text", ["", "D1", "A4", "a1", "A1 or B2", "A11", "xA1", "yes"])
def test_any_other_reply_is_none(text: str) -> None:
    assert task.parse_move(text) is None


def test_an_unreadable_move_ends_the_game_with_minus_one() -> None:
    game = task.TicTacToe(0)
    assert game.reply(say("no idea")) == []
    assert (game.done, game.reward) == (True, -1.0)
    assert game.metrics == {"won": 0.0, "draw": 0.0, "invalid": 1.0, "not_lost": 0.0}


def test_an_occupied_cell_ends_the_game_with_minus_one() -> None:
    game = task.TicTacToe(0)
    game.reply(say("B2"))
    game.reply(say("B2"))
    assert (game.done, game.reward, game.metrics["invalid"]) == (True, -1.0, 1.0)


@pytest.mark.parametrize("seed", range(60))
def test_rewards_follow_the_last_board(seed: int) -> None:
    game = task.TicTacToe(seed)
    while not game.done:
        shown = game.reply(say(task.CELLS[task.free_cells(game.board)[0]]))
        assert game.done or shown[0]["content"].endswith(task.draw_board(game.board))
    ended = task.outcome(game.board)
    assert game.reward == {"won": 1.0, "draw": 0.5, "lost": 0.0}[str(ended)]
    assert game.metrics["not_lost"] == float(ended != "lost")


def test_the_opponent_is_a_function_of_scenario_and_seed() -> None:
    def opponent(index: int, seed: int) -> str:
        game = task.environment(task.scenario(5, index), seed)
        return str(game.reply(say("B2"))[0]["content"])

    assert opponent(0, 1) == opponent(0, 1)
    assert len({opponent(index, 1) for index in range(30)}) > 3
    assert len({opponent(0, seed) for seed in range(30)}) > 3


def test_show_tells_moves_board_and_result() -> None:
    game = task.TicTacToe(3)
    messages = list(game.opening)
    while not game.done:
        messages.append(say(task.CELLS[task.free_cells(game.board)[0]]))
        messages += game.reply(messages[-1])
    shown = task.show(messages, game.ending)
    assert task.draw_board(game.board) in shown
    assert shown.startswith("X A1, O ")
