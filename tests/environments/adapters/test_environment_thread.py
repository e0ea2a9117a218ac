"""Foreign code in a thread: errors by name, deadlines, and nothing that waits for what hangs."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading

import pytest

from art.environments.adapters.environment import EnvironmentThread, OwnRandom
from art.errors import ConfigurationError, DeadlineError, EnvironmentFailedError, EnvironmentTimeoutError
from waiting import DEADLINE_S, until


def fail(error: BaseException) -> None:
    raise error


async def test_all_calls_of_a_world_are_in_one_thread_that_is_not_the_callers() -> None:
    with EnvironmentThread("game") as thread:
        seen = {await thread.call("look", threading.get_ident) for _ in range(3)}
    assert len(seen) == 1 and threading.get_ident() not in seen


async def test_an_error_names_the_environment_the_action_and_the_cause() -> None:
    with EnvironmentThread("game") as thread:
        with pytest.raises(EnvironmentFailedError, match="'game': step failed: KeyError: 'board'") as failed:
            await thread.call("step", fail, KeyError("board"))
        assert isinstance(failed.value.__cause__, KeyError)
        with pytest.raises(EnvironmentFailedError, match="StopIteration"):
            await thread.call("step", fail, StopIteration())
        with pytest.raises(EnvironmentFailedError, match="step failed: SystemExit: 3"):
            await thread.call("step", sys.exit, 3)
        with pytest.raises(ConfigurationError, match="as it is"):
            await thread.call("reset", fail, ConfigurationError("as it is"))


async def test_a_call_that_hangs_ends_at_its_deadline_and_others_go_on() -> None:
    release = threading.Event()
    with EnvironmentThread("hangs", deadline_s=0.05) as stuck, EnvironmentThread("fine") as fine:
        hanging = asyncio.create_task(stuck.call("step", release.wait))
        assert await fine.call("step", lambda: 7) == 7
        with pytest.raises(
            EnvironmentTimeoutError, match=r"'hangs': step did not answer within 0.05 s"
        ) as late:
            await hanging
        assert isinstance(late.value, DeadlineError)
    release.set()


async def test_a_call_that_hangs_while_it_draws_leaves_the_generator_to_others() -> None:
    release, ended = threading.Event(), threading.Event()
    theirs, mine = OwnRandom("theirs"), OwnRandom("mine")

    def hang() -> None:
        with theirs.drawing():
            random.random()
            release.wait(DEADLINE_S)
        ended.set()

    random.seed("program")
    before = random.getstate()
    with EnvironmentThread("hangs", deadline_s=0.05) as stuck:
        with pytest.raises(EnvironmentTimeoutError):
            await stuck.call("step", hang)
        assert random.getstate() == before
        with mine.drawing():
            drawn = random.random()
            release.set()
            assert ended.wait(DEADLINE_S), "the one that hung ends, and changes nothing here"
            drawn_after = random.random()
    expected = random.Random("mine")
    assert [drawn, drawn_after] == [expected.random(), expected.random()]
    assert random.getstate() == before


class World:
    """It waits in `step` until it is let go."""

    def __init__(self) -> None:
        self.stepping, self.release, self.closed = threading.Event(), threading.Event(), threading.Event()

    def step(self) -> None:
        self.stepping.set()
        assert self.release.wait(DEADLINE_S)

    def close(self) -> None:
        self.closed.set()
        raise RuntimeError("closing fails, too")


async def test_a_cancelled_rollout_does_not_wait_for_its_world_which_is_closed_later() -> None:
    world = World()

    async def roll_out() -> None:
        with EnvironmentThread("game") as thread:
            try:
                await thread.call("step", world.step)
            finally:
                await thread.close_world(world)

    task = asyncio.create_task(roll_out())
    await until(world.stepping.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not world.closed.is_set()
    world.release.set()
    await until(world.closed.is_set)


async def test_a_world_is_closed_in_its_thread_and_may_lack_the_method() -> None:
    world = World()
    with EnvironmentThread("game") as thread:
        await thread.close_world(object())
        with pytest.raises(EnvironmentFailedError, match="close failed: RuntimeError: closing fails"):
            await thread.close_world(world)


@pytest.mark.slow
def test_a_process_ends_while_a_call_hangs() -> None:
    program = (
        "import asyncio, threading\n"
        "from art.environments.adapters.environment import EnvironmentThread\n"
        "from art.errors import EnvironmentTimeoutError\n"
        "async def main():\n"
        "    with EnvironmentThread('hangs', deadline_s=0.05) as thread:\n"
        "        await thread.call('step', threading.Event().wait)\n"
        "try:\n    asyncio.run(main())\nexcept EnvironmentTimeoutError:\n    print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "ended\n"
