"""Many slow environments over HTTP in one client: it waits for a busy server, and holds little for each.

`python -m bench.serving.environments_held` does the same with a thousand.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from bench.serving.environments_held import MEMORY_MIB, STEPS, measure

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentFailedError
from art_extensions.environments.environment_server import EnvironmentServer
from art_extensions.testing import LlmServer
from starting import StartedProgram

pytestmark = pytest.mark.slow


def test_a_busy_server_is_waited_for_and_a_thousand_would_fit(real_starts: None) -> None:
    count, capacity = 120, 15
    program = f"""if True:
        import json
        from bench.serving.environments_held import measure
        print(json.dumps(measure({count}, capacity={capacity}, connections=64, seconds=0.1)))
    """  # in a process of its own: this one holds what other tests have left
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ended"] == count and found["finished"] == count + 1, "one before, for the imports"
    assert found["refused"] > 0 and found["most_at_once"] <= capacity
    each = (found["peak"] - found["before"]) / count
    assert found["before"] + 1000 * each < MEMORY_MIB, found


def test_no_more_requests_are_sent_than_there_are_connections() -> None:
    found = measure(24, capacity=1000, connections=4, seconds=0.05)
    assert found["ended"] == 24 and found["refused"] == 0
    assert found["most_at_once"] <= 4 < found["most_open"], "the others wait in the client"


async def test_a_server_that_stays_busy_fails_the_rollout_with_its_reason() -> None:
    asked: list[int] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked.append(len(line))
            while (header := await reader.readline()).strip():
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nretry-after: 0.1\r\n\r\nfull")
            await writer.drain()

    server = await asyncio.start_server(refuse, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    sessions = EnvironmentServer("it", deadline_s=3.0, connections=2)
    try:
        with pytest.raises(EnvironmentFailedError, match="/reset failed with status 503: full"):
            await sessions.open(f"http://127.0.0.1:{port}").ask("/reset", {"row": 1})
    finally:
        await sessions.close()
        server.close()
    assert len(asked) > 2
    with pytest.raises(ConfigurationError, match="connections=0 allows no request"):
        EnvironmentServer("it", deadline_s=3.0, connections=0)


def test_an_environment_goes_on_in_another_loop() -> None:
    """`asyncio.run` twice: connections belong to a loop."""
    rows = [{"responses_create_params": {"input": f"Play {number}."}} for number in range(3)]
    world = ["-m", "bench.serving.slow_environment", "0.01", "9", str(STEPS)]
    with (
        LlmServer(lambda body: "go on") as model,
        StartedProgram([sys.executable, *world], stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            environment = find_environment(f"nemo-gym:{address}", data=rows, deadline_s=120.0)
            player = art.Model(
                name="player",
                project="held",
                inference_model_name="player",
                inference_base_url=model.base_url,
                inference_api_key=model.key,
            )
            for scenario in environment.scenarios("train"):
                one = asyncio.run(environment.rollout(player, scenario))
                assert one.reward == STEPS and one.metrics["turns"] == STEPS
        finally:
            server.kill()
