"""Each moment of a step belongs to one part, and the parts add up to the wall clock."""

from __future__ import annotations

import itertools

import pytest

from art.server.step_times import StepClock
from art.wire.jobs import STEP_PARTS, part_metric


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seconds(clock: StepClock) -> dict[str, float]:
    """What was taken, by part, without those that had nothing."""
    taken = clock.take()
    assert set(taken) == {part_metric(part) for part in STEP_PARTS}
    return {part: taken[part_metric(part)] for part in STEP_PARTS if taken[part_metric(part)]}


def test_a_step_from_job_to_job() -> None:
    hand = Hand()
    clock = StepClock(hand)
    hand.now = 1.0
    with clock.sampling():
        hand.now = 2.0
        with clock.sampling():  # two at once are one second of the wall each
            hand.now = 4.0
        hand.now = 5.0
    hand.now = 5.5
    clock.queue(1)
    hand.now = 6.0
    clock.queue(-1)
    with clock.part("prepare"):
        hand.now = 7.0
        with clock.part("gradient"):
            hand.now = 11.0
        hand.now = 11.25
        with clock.part("save"):
            hand.now = 12.0
        with clock.part("canary"):
            hand.now = 13.0
        hand.now = 13.5
        found = seconds(clock)
    assert found == {
        "client": 1.5, "sampling": 4.0, "queue": 0.5, "prepare": 1.75, "gradient": 4.0, "save": 0.75,
        "canary": 1.0,
    }  # fmt: skip
    assert sum(found.values()) == hand.now
    hand.now = 14.0
    assert seconds(clock) == {"client": 0.5}


def test_what_is_sampled_beside_a_job_is_the_job_s_time() -> None:
    hand = Hand()
    clock = StepClock(hand)
    with clock.sampling():
        hand.now = 1.0
        with clock.part("gradient"):
            hand.now = 3.0
        hand.now = 3.5
    assert seconds(clock) == {"sampling": 1.5, "gradient": 2.0}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_add_up_whatever_ends_first(order: tuple[int, ...]) -> None:
    hand = Hand()
    clock = StepClock(hand)
    blocks = [clock.sampling(), clock.part("queue"), clock.part("load")]
    for place, block in enumerate(blocks):
        hand.now += 1.0 + place
        block.__enter__()
    for place in order:
        hand.now += 0.25
        blocks[place].__exit__(None, None, None)
    hand.now += 0.5
    assert sum(seconds(clock).values()) == pytest.approx(hand.now)


def test_a_job_that_failed_leaves_no_part_behind() -> None:
    hand = Hand()
    clock = StepClock(hand)
    with pytest.raises(ZeroDivisionError), clock.part("prepare"), clock.part("gradient"):
        hand.now = 1.0
        raise ZeroDivisionError
    hand.now = 3.0
    clock.queue(-1)  # of a job that an earlier server had accepted
    assert seconds(clock) == {"gradient": 1.0, "client": 2.0}
