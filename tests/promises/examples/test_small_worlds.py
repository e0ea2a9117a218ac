"""The worlds of the examples for a real small model: what earns a reward, what earns none, and the splits."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

EXAMPLES = Path(__file__).parents[3] / "examples"
NUMBERS = st.integers(0, 10**6)
SPLITS = st.sampled_from(("train", "val"))


@pytest.fixture(scope="module")
def orders() -> ModuleType:
    return world_file("extract_json", "orders")


@pytest.fixture(scope="module")
def number_game() -> ModuleType:
    return world_file("guess_number", "number_game")


@pytest.fixture(scope="module")
def shop() -> ModuleType:
    return world_file("shopping_agent", "shop")


def world_file(folder: str, name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / folder)
        return __import__(name)


def worlds(orders: ModuleType, number_game: ModuleType, shop: ModuleType) -> list[tuple[Any, Any]]:
    return [
        (orders.draw_order, orders.OrderWorld),
        (number_game.draw_number, number_game.NumberWorld),
        (shop.draw_purchase, shop.ShopWorld),
    ]


def test_what_is_held_out_is_never_trained_on(
    orders: ModuleType, number_game: ModuleType, shop: ModuleType
) -> None:
    for draw, world in worlds(orders, number_game, shop):
        asked = {
            split: {
                json.dumps([world(one).opening, getattr(one, "secret", 0)])
                for one in map(draw, [split] * 300, range(300))
            }
            for split in ("train", "val")
        }
        assert len(asked["train"]) > 100 and len(asked["val"]) > 20
        assert not asked["train"] & asked["val"]
        assert [draw("val", 7), draw("train", 7)] == [draw("val", 7), draw("train", 7)]


@given(split=SPLITS, number=NUMBERS)
def test_a_demonstration_earns_all_that_can_be_earned(
    orders: ModuleType, number_game: ModuleType, shop: ModuleType, split: str, number: int
) -> None:
    for draw, make in worlds(orders, number_game, shop):
        scenario = draw(split, number)
        shown, played = make(scenario).demonstration(), make(scenario)
        said = [one for one in shown[len(played.opening) :] if one["role"] == "assistant"]
        for message in said:
            assert not played.done
            played.reply(message)
        assert played.done and played.reward >= 0.75
        assert shown[: len(played.opening)] == played.opening


def test_three_ways_to_ask_end_with_the_same_question(
    orders: ModuleType, number_game: ModuleType, shop: ModuleType
) -> None:
    for draw, make in worlds(orders, number_game, shop):
        ways = [make(draw("val", 3), prompt).opening for prompt in range(3)]
        assert len({json.dumps(way) for way in ways}) == 3
        last = min((way[-1]["content"] for way in ways), key=len)
        assert all(way[-1]["content"].endswith(last) for way in ways)
        roles = [[one["role"] for one in way if one["role"] != "system"] for way in ways]
        assert all(way[0] == way[-1] == "user" for way in roles)
        pairs = [pair for way in roles for pair in pairwise(way)]
        assert ("user", "user") not in pairs, "templates want the sides to take turns"


@pytest.mark.parametrize(
    ("change", "reward", "formed"),
    [
        ({}, 1.0, True),
        ({"count": "7"}, 0.75, True),
        ({"count": True}, 0.75, True),
        ({"name": "Nobody", "city": None}, 0.5, True),
        ({"more": 1}, 0.0, False),
        ({"name": ...}, 0.0, False),
    ],
)
def test_an_object_earns_its_right_values(
    orders: ModuleType, change: dict[str, Any], reward: float, formed: bool
) -> None:
    order = orders.draw_order("train", 0)
    said = {name: value for name, value in {**json.loads(order.answer), **change}.items() if value is not ...}
    world = orders.OrderWorld(order)
    assert world.reply({"content": json.dumps(said)}) == []
    assert (world.done, world.reward) == (True, reward)
    assert world.metrics == {"right": float(reward == 1), "well_formed": float(formed)}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "[" * 100_000, "```json\n{0}\n```", "{0} {0}", "{sentence}"]
)
def test_anything_else_than_the_object_alone_earns_nothing(orders: ModuleType, text: str) -> None:
    order = orders.draw_order("train", 0)
    world = orders.OrderWorld(order)
    world.reply({"content": text.replace("{0}", order.answer).replace("{sentence}", order.sentence)})
    assert world.done and world.reward == 0 and not world.metrics["well_formed"]


def test_a_number_is_found_by_its_hints_and_late_is_worth_less(number_game: ModuleType) -> None:
    game = number_game.SecretNumber(secret=5, top=20)
    world = number_game.NumberWorld(game)
    assert world.reply({"content": "10"})[0]["content"] == "My number is lower than 10."
    assert world.reply({"content": " 2.\n"})[0]["content"] == "My number is higher than 2."
    assert world.reply({"content": "12"}) and world.reply({"content": "5"}) == []
    assert world.done and world.reward == 0.85
    assert world.metrics == {"found": 1.0, "malformed": 0.0, "guesses": 4.0, "fitting": 0.75}


@pytest.mark.parametrize("text", ["", "ten", "10 or 11", "-1", "1e1", "٣", "My guess is 10", "1" * 5000])
def test_a_guess_that_is_no_number_ends_the_game(number_game: ModuleType, text: str) -> None:
    world = number_game.NumberWorld(number_game.SecretNumber(secret=10, top=20))
    assert world.reply({"content": text}) == []
    assert world.done and world.reward == 0 and world.metrics["malformed"]


def test_a_game_has_six_guesses(number_game: ModuleType) -> None:
    world = number_game.NumberWorld(number_game.SecretNumber(secret=10, top=20))
    answered = [bool(world.reply({"content": "1"})) for _ in range(6)]
    assert answered == [True] * 5 + [False]
    assert world.done and world.reward == 0 and world.metrics["guesses"] == 6


def test_a_total_counts_only_behind_both_calls(shop: ModuleType) -> None:
    purchase = shop.Purchase(question="What do 3 bags cost?", item="bag", count=3, price=8)
    first, second = shop.call(1, "get_price", item="bag"), shop.call(2, "multiply", a=3, b=8)

    def play(*messages: dict[str, Any]) -> tuple[float, bool]:
        world = shop.ShopWorld(purchase)
        for message in messages:
            world.reply(message)
        return world.reward, world.done

    say = {"content": "24"}
    assert play(first, second, say) == (1.0, True)
    assert play(say) == (0.0, True), "a guess"
    assert play(first, say) == (0.1, True)
    assert play(first, second, {"content": "The total is 24"}) == (0.3, True)
    assert play(first, second, {"content": "25"}) == (0.3, True)
    assert play(second) == (0.0, True), "the price is not known yet"
    assert play(first, first) == (0.1, True)
    assert play(first, shop.call(2, "multiply", a=3, b=9)) == (0.1, True)
    assert play(shop.call(1, "get_price", item="bags")) == (0.0, True)
    assert play(shop.call(1, "get_price", item="bag", more=1)) == (0.0, True)
    assert play(first) == (0.0, False)


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"item": ["bag"]}', '{"item": null}', "[" * 100_000])
def test_arguments_that_are_none_end_the_conversation(shop: ModuleType, arguments: str) -> None:
    world = shop.ShopWorld(shop.draw_purchase("train", 0))
    called = shop.call(1, "get_price")
    called["tool_calls"][0]["function"]["arguments"] = arguments
    assert world.reply(called) == [] and world.done and world.reward == 0
