"""The stand-in of SkyPilot's clouds, run by the interpreter of SkyPilot's environment: boxes are processes.

    python -I local_provider.py FOLDER sky_program.py

The protocol and the parsing of the task are those of `sky_program.py`, with SkyPilot's real `Task`. Only what
its API would do at a cloud is done here: `box_keeper.py` is a machine, with a real sshd.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER, PROGRAM = Path(sys.argv[1]), Path(sys.argv[2])
KEEPER = Path(__file__).with_name("box_keeper.py")
START_S = 120


def loaded_program() -> Any:
    spec = importlib.util.spec_from_file_location("sky_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sky_program"] = module
    spec.loader.exec_module(module)
    return module


class LocalProvider:
    """Boxes of this machine, each a folder under FOLDER."""

    def status(self, cluster: str) -> dict[str, Any]:
        up = self._ask(cluster, {"order": "status"}) is not None
        return {"status": "UP" if up else None, "ssh_config": self._config(cluster) if up else None}

    def launch(self, task: Any, request: Any, log: Any) -> dict[str, Any]:
        if task.num_nodes != 1:
            raise ValueError("the stand-in has one machine a box")
        box = FOLDER / cluster if (cluster := request["cluster"]) else FOLDER
        job = {
            "order": "job",
            "setup": task.setup,
            "run": task.run,
            "variables": {
                **task.envs,
                **{name: secret.get_secret_value() for name, secret in task.secrets.items()},
                "SKYPILOT_NODE_RANK": "0",
                "SKYPILOT_NUM_NODES": "1",
            },
            "idle_minutes": 1 if request["autodown"] else None,
        }
        if self._ask(cluster, {"order": "status"}) is None:
            shutil.rmtree(box, ignore_errors=True)
            (box / "home").mkdir(parents=True)
            log(f"starting a machine for {cluster}")
            subprocess.run(
                [sys.executable, "-I", str(KEEPER), str(box)],
                input=json.dumps({"mounts": task.file_mounts or {}}),
                text=True,
                check=True,
                timeout=START_S,
            )
        self._ask(cluster, job)
        return {"ssh_config": self._config(cluster)}

    def job(self, cluster: str, log: Any) -> str | None:
        reply = self._ask(cluster, {"order": "status"})
        return None if reply is None else str(reply["job"])

    def cancel(self, cluster: str) -> None:
        if self._ask(cluster, {"order": "cancel"}) is None:
            raise ValueError(f"Cluster {cluster!r} does not exist.")

    def down(self, cluster: str) -> None:
        if self._ask(cluster, {"order": "down"}) is None:
            raise ValueError(f"Cluster {cluster!r} does not exist.")

    def _config(self, cluster: str) -> str:
        return str(FOLDER / cluster / "ssh" / "config")

    def _ask(self, cluster: str, order: dict[str, Any]) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_S)
            try:
                connection.connect(str(FOLDER / cluster / "orders"))
            except OSError:
                return None
            connection.sendall(json.dumps(order).encode() + b"\n")
            return json.loads(connection.makefile().readline())


sys.exit(loaded_program().run_once(LocalProvider()))
