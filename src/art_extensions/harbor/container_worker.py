"""A sandbox of Harbor's own classes, in the interpreter that has Harbor: a request and a reply a line.

It is run by its path and imports nothing of ART. stdout has the replies; what Harbor prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


class ContainerWorker:
    """One sandbox; the requests come one after the other."""

    def __init__(self, folder: str, kind: str) -> None:
        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.environment_type import EnvironmentType
        from harbor.models.task.task import Task
        from harbor.models.trial.paths import TrialPaths

        task = Task(Path(folder))
        self._records = tempfile.TemporaryDirectory(prefix="art-trial-")
        paths = TrialPaths(trial_dir=Path(self._records.name))
        paths.mkdir()
        given: dict[str, Any] = {
            "environment_dir": task.paths.environment_dir,
            "environment_name": task.paths.task_dir.name.lower(),
            "session_id": f"art-{os.getpid()}-{os.urandom(4).hex()}",
            "trial_paths": paths,
            "task_env_config": task.config.environment,
            "logger": logging.getLogger("harbor"),
        }
        if ":" in kind:
            self._sandbox = EnvironmentFactory.create_environment_from_import_path(kind, **given)
        else:
            self._sandbox = EnvironmentFactory.create_environment(type=EnvironmentType(kind), **given)

    async def start(self) -> dict[str, Any]:
        await self._sandbox.start(force_build=False)
        return {}

    async def run(
        self, command: str, timeout_s: float, variables: dict[str, str], workdir: str | None
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s + 5.0):
                done = await self._sandbox.exec(
                    command, cwd=workdir, env=variables or None, timeout_sec=max(1, round(timeout_s))
                )
        except TimeoutError:
            return {"code": 137, "output": "", "timed_out": True}
        return {
            "code": done.return_code,
            "output": (done.stdout or "") + (done.stderr or ""),
            "timed_out": False,
        }

    async def upload(self, folder: str, target: str) -> dict[str, Any]:
        await self._sandbox.upload_dir(source_dir=folder, target_dir=target)
        return {}

    async def stop(self) -> dict[str, Any]:
        await self._sandbox.stop(delete=True)
        self._records.cleanup()
        return {}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    async def serve() -> None:
        worker: ContainerWorker | None = None
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            name = asked.pop("do")
            try:
                if name == "make":
                    worker = ContainerWorker(**asked)
                    reply({})
                elif worker is not None:
                    reply(await getattr(worker, name)(**asked))
            except Exception as error:  # noqa: BLE001  # Harbor's, or a service's: the other side raises it
                reply({"error": f"{type(error).__name__}: {error}"})
            if name == "stop":
                return
        if worker is not None:  # the program that asked has ended
            await worker.stop()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
