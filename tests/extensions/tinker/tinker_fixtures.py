"""`art tinker`, started once for the tests of a module, with its log where one of them fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tinker_service import DONE, PYTHON, Service

from starting import StartedProgram
from waiting import DEADLINE_S

PROGRAMS = Path(__file__).parent / "programs"
TORCH = sysconfig.get_paths()["purelib"]
"""Where the SDK's environment, which has no torch, finds that of the tests."""
PROGRAM_S = 540.0


@contextmanager
def started(data: Path, *options: str) -> Iterator[Service]:
    """The service. It ends with all processes of its group; after a failure its log is printed."""
    service = Service(data, *options)
    try:
        service.start()
        yield service
    except BaseException:
        print(service.log.read_text()[-8000:])
        raise
    finally:
        end(service)


def end(service: Service) -> None:
    process = service.process
    if process is None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(DEADLINE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)


def run_program(service: Service, name: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """The JSON lines that a program of `programs` prints, in the SDK's environment.

    Fails, with what it and the service wrote, where it ends badly or takes too long.
    """
    command = [str(PYTHON), str(PROGRAMS / name), *arguments]
    environment = {**service.variables, "HF_HUB_OFFLINE": "1", **variables}
    with StartedProgram(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        output, errors = program.communicate(timeout=PROGRAM_S)
    told = f"{errors[-4000:]}\n{service.log.read_text()[-4000:]}"
    assert program.returncode in DONE, told
    return [json.loads(line) for line in output.splitlines()]
