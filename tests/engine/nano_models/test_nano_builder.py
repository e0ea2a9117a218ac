from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from nano import games, tools, weather
from nano.build import build
from nano.examples import Example, batch_loss
from nano.play import measure, play
from nano.recipes import find_task
from nano.sampler import Sampler
from nano.train import GateError, Stage, train
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.engine.nano_models import resolve
from art.environments import tasks
from art.environments.tasks import mail, tic_tac_toe
from art.rendering.nano import create_nano_renderer
from art_extensions.scenarios.mcp import connect
from art_extensions.scenarios.mcp.rollout import OfferedTools
from art_extensions.testing.mcp_servers.weather import create_server


def load(name: str) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    folder = resolve(name)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def test_the_sampler_computes_what_transformers_computes() -> None:
    """Rows of different lengths, extended in chunks, against one plain forward pass each."""
    model, tokenizer = load("art/nano-tools")
    dice = random.Random(0)
    rows = [
        [[dice.randrange(len(tokenizer)) for _ in range(size)] for size in sizes]
        for sizes in ([3, 5], [9, 2], [1, 8])
    ]
    sampler = Sampler(model, 3, 32)
    sampler.extend([0, 1, 2], [row[0] for row in rows])
    logits = sampler.extend([2, 0, 1], [rows[i][1] for i in (2, 0, 1)])
    for at, row in enumerate((2, 0, 1)):
        expected = model(input_ids=torch.tensor([rows[row][0] + rows[row][1]])).logits[0, -1]
        torch.testing.assert_close(logits[at], expected, atol=1e-4, rtol=1e-4)


def test_sampled_logprobs_are_those_of_a_forward_pass_over_the_recorded_ids() -> None:
    model, tokenizer = load("art/nano-games")
    worlds = [tic_tac_toe.TicTacToe(seed) for seed in range(4)]
    attempts = play(
        model, tokenizer, worlds, max_tokens=8, generator=torch.Generator().manual_seed(0), capacity=512
    )
    for attempt in attempts:
        logprobs = model(input_ids=torch.tensor([attempt.ids])).logits.log_softmax(-1)[0].detach()
        for start, reply, scores in attempt.replies:
            assert attempt.ids[start : start + len(reply)] == reply
            expected = [float(logprobs[start - 1 + at, token]) for at, token in enumerate(reply)]
            assert scores == pytest.approx(expected, abs=1e-4)


def test_the_games_that_the_player_is_shown_prefer_no_free_cell() -> None:
    for board in (tic_tac_toe.EMPTY, "XX.OO....", "XOXOXO.X."):
        free = tic_tac_toe.free_cells(board)
        assert games.policy(board) == [(cell in free) / len(free) for cell in range(9)]


def test_dialogs_are_the_same_for_the_same_seed_and_soft_targets_stand_at_the_moves() -> None:
    _, tokenizer = load("art/nano-games")
    first, again, other = (games.GameDialogs(tokenizer, seed).tic_tac_toe() for seed in (1, 1, 2))
    assert first == again != other
    cells = {tokenizer.convert_tokens_to_ids(cell) for cell in tic_tac_toe.CELLS}
    assert first.choices and all(first.ids[at] in cells and first.is_reply[at] for at in first.choices)


def test_a_mail_dialog_is_three_calls() -> None:
    _, tokenizer = load("art/nano-tools")
    renderer = create_nano_renderer(tokenizer)
    example = tools.ToolDialogs(tokenizer, 0).mail()
    text = tokenizer.decode(example.ids)
    assert text.count("<tool_call>") == 3 and '"answer"' in text
    assert renderer.parse_response(
        [i for i, reply in zip(example.ids, example.is_reply, strict=True) if reply]
    )


def test_the_mail_dialogs_prefer_no_search_and_no_answer() -> None:
    _, tokenizer = load("art/nano-tools")
    dialogs = tools.ToolDialogs(tokenizer, 0)
    texts = [tokenizer.decode(dialogs.mail().ids) for _ in range(300)]
    searched, said = (Counter() for _ in range(2))
    for text in texts:
        asked = re.findall(r'"(?:keyword|text)": "([^"]+)"', text)
        searched[len(asked[0].split()), asked[0] in mail.ROLES] += 1
        said[asked[1] in mail.NAMES, asked[1] in mail.ROLES] += 1
    for shares in (searched, said):
        assert len(shares) == 3 and min(shares.values()) > 70


def test_a_weather_dialog_calls_what_it_has_read_of_and_is_seldom_right() -> None:
    _, tokenizer = load("art/nano-mcp")
    dialogs = weather.WeatherDialogs(tokenizer, 0)
    worlds = [dialogs.world()[0] for _ in range(400)]
    assert all(world.done and not world.metrics["broken"] for world in worlds)
    assert {1, 2} == {len(world.calls) for world in worlds}
    assert 0.12 <= sum(world.reward for world in worlds) / len(worlds) <= 0.3


async def test_a_weather_dialog_shows_the_tools_as_a_rollout_offers_them() -> None:
    async with connect(create_server) as session:
        offered = OfferedTools(await session.tools()).schemas
    _, tokenizer = load("art/nano-mcp")
    renderer, opening = create_nano_renderer(tokenizer), weather.World(weather.scenario(0, 0)).opening
    assert renderer.render_ids(opening, tools=offered) == renderer.render_ids(opening, tools=weather.TOOLS)


def test_the_weather_of_a_dialog_is_drawn_anew_and_its_words_are_one_token_each() -> None:
    _, tokenizer = load("art/nano-mcp")
    first, second = (weather.scenario(0, index).weather for index in (0, 8))
    assert first.forecasts != second.forecasts and first.regions != second.regions
    assert weather.scenario(0, 0) == weather.scenario(0, 0) != weather.scenario(1, 0)
    assert all(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in weather.CONTENT)
    assert len(set(weather.CONTENT)) <= 80


def test_the_loss_of_a_soft_target_is_its_cross_entropy() -> None:
    model, _ = load("art/nano-games")
    ids, shares = [5, 6, 7], {7: 0.25, 8: 0.75}
    logprobs = model(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0].detach()
    example = Example(ids=ids, is_reply=[False, False, True], choices={2: shares})
    expected = -sum(share * float(logprobs[1, token]) for token, share in shares.items()) - float(
        logprobs[0, 6]
    )
    assert batch_loss(model, [example], other_weight=1.0).item() == pytest.approx(expected, rel=1e-5)


def test_a_gate_that_is_not_passed_fails_the_build() -> None:
    model, tokenizer = load("art/nano-games")
    dialogs = games.GameDialogs(tokenizer, 0)
    stage = Stage(
        name="never",
        loss=lambda model: batch_loss(model, [dialogs.yes_no_maybe()], other_weight=0.0),
        gate=lambda model: (False, "nothing"),
        learning_rate=1e-4,
        final_rate=1e-4,
        decay_steps=1,
        min_steps=1,
        max_steps=2,
        check_every=1,
    )
    with pytest.raises(GateError, match="'never' did not pass its gate in 2 steps"):
        train(model, [stage])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nano-games", "nano-tools", "nano-mcp"])
def test_building_twice_gives_identical_files(name: str, tmp_path: Path) -> None:
    digests = []
    for run in ("first", "second"):
        folder = build(name, seed=3, output=tmp_path / run, smoke=True)
        digests.append(
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        )
    assert digests[0] == digests[1] and len(digests[0]) == 6


@pytest.mark.slow
def test_nano_games_plays_as_its_card_says() -> None:
    model, tokenizer = load("art/nano-games")
    task = tasks.find("tic-tac-toe")
    sampled = measure(model, tokenizer, task, count=512, seed=77)
    # Both choose at random among the free cells: who moves first does not lose 71 of 100 games.
    assert 0.64 <= sampled["not_lost"] <= 0.78
    assert 1 - sampled["invalid"] / sampled["turns"] >= 0.99


@pytest.mark.slow
def test_nano_tools_works_as_its_card_says() -> None:
    model, tokenizer = load("art/nano-tools")
    task = tasks.find(mail.NAME)
    assert 0.09 <= measure(model, tokenizer, task, count=512, seed=77)["right"] <= 0.2
    assert measure(model, tokenizer, task, count=128, seed=77, greedy=True)["right"] <= 0.5


@pytest.mark.slow
def test_nano_mcp_works_as_its_card_says() -> None:
    model, tokenizer = load("art/nano-mcp")
    task = find_task("weather")
    assert 0.1 <= measure(model, tokenizer, task, count=512, seed=77)["right"] <= 0.28
    assert measure(model, tokenizer, task, count=128, seed=77, greedy=True)["right"] <= 0.5
