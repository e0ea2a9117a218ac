"""Foreign code in a thread: errors by name, deadlines, and nothing that waits for what hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from art.environments.adapters.environment import EnvironmentThread
from art.errors import ConfigurationError, DeadlineError, EnvironmentFailedError, EnvironmentTimeoutError


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
