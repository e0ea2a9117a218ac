"""A machine of the stand-in: a home folder, a real sshd on a loopback address of its own, a job, and an end.

    python -I box_keeper.py FOLDER      returns when the machine is up; it goes on in the background

As on a machine of SkyPilot's, jobs run without whoever started them, and a machine without a job ends by
itself. A minute is a second here. `FOLDER/ended` then has the reason.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MINUTE_S = 1.0
BOX = Path(sys.argv[1])
HOME, SSH = BOX / "home", BOX / "ssh"
PATHS = os.environ["PATH"]
SSHD = shutil.which("sshd", path=f"{PATHS}:/usr/sbin") or "sshd"


def free_address() -> tuple[str, int]:
    """An address of this machine that is not 127.0.0.1, and a free port of it."""
    address = f"127.0.{1 + os.getpid() % 250}.{2 + os.getpid() // 250 % 250}"
    with socket.socket() as probe:
        probe.bind((address, 0))
        return address, int(probe.getsockname()[1])


def start_sshd() -> subprocess.Popen[bytes]:
    SSH.mkdir(mode=0o700)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(SSH / name)], check=True)
    address, port = free_address()
    (SSH / "sshd_config").write_text(
        f"ListenAddress {address}:{port}\nHostKey {SSH}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {SSH}/user_key.pub\nPasswordAuthentication no\n"
        f'ForceCommand cd {HOME} && export HOME={HOME} && eval "$SSH_ORIGINAL_COMMAND"\n'
    )
    (SSH / "config").write_text(
        f"Host {BOX.name}\n  HostName {address}\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {SSH}/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    command = [SSHD, "-D", "-e", "-f", str(SSH / "sshd_config")]
    with (SSH / "sshd.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return server
        time.sleep(0.1)
    raise SystemExit(f"sshd did not start: {(SSH / 'sshd.log').read_text()}")


class Keeper:
    """The machine's jobs, one at a time, and its end."""

    def __init__(self, sshd: subprocess.Popen[bytes]) -> None:
        self._sshd = sshd
        self._job: subprocess.Popen[bytes] | None = None
        self._state = "INIT"
        self._idle_minutes: float | None = None
        self._idle_since = time.monotonic()
        self.reason: str | None = None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["order"] == "job":
            self._end_job()
            self._idle_minutes = order["idle_minutes"]
            self._start_job(order)
        elif order["order"] == "cancel":
            self._end_job()
            self._state = "CANCELLED"
        elif order["order"] == "down":
            self.reason = "asked to"
        return {"job": self._state}

    def look(self) -> None:
        """Notes the end of the job, and the end of the time without one."""
        if self._job is not None and self._job.poll() is not None:
            self._state = "SUCCEEDED" if self._job.returncode == 0 else "FAILED"
            self._job = None
            self._idle_since = time.monotonic()
        idle = self._job is None and self._idle_minutes is not None
        if idle and time.monotonic() - self._idle_since > (self._idle_minutes or 0) * MINUTE_S:
            self.reason = self.reason or "idle"

    def _start_job(self, order: dict[str, Any]) -> None:
        variables = {"PATH": PATHS, "HOME": str(HOME), "LANG": "C.UTF-8", **order["variables"]}
        variables |= {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
        log = (BOX / "job.log").open("ab")
        (BOX / "job.sh").write_text(f"( {order['setup']} ) && ( {order['run']} )\n")
        self._job = subprocess.Popen(
            ["bash", str(BOX / "job.sh")],
            cwd=HOME,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._state = "RUNNING"

    def _end_job(self) -> None:
        if self._job is not None:
            os.killpg(self._job.pid, signal.SIGTERM)
            try:
                self._job.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._job.pid, signal.SIGKILL)
                self._job.wait()
            self._job, self._idle_since = None, time.monotonic()

    def end(self) -> None:
        """The machine is gone with its disk; its log stays, for whoever looks after the test."""
        self._end_job()
        self._sshd.terminate()
        self._sshd.wait()
        shutil.rmtree(HOME, ignore_errors=True)
        shutil.rmtree(SSH, ignore_errors=True)
        (BOX / "orders").unlink()
        (BOX / "ended").write_text(str(self.reason))


def serve_orders(keeper: Keeper, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            reply = keeper.obey(json.loads(connection.makefile().readline()))
            connection.sendall(json.dumps(reply).encode() + b"\n")


def main() -> None:
    mounts = json.loads(sys.stdin.read())["mounts"]
    for place, source in mounts.items():
        shutil.copytree(source, HOME / place.removeprefix("~/"))
    ready, told = os.pipe()
    if os.fork():
        os.close(told)
        sys.exit(0 if os.read(ready, 1) else 1)
    os.setsid()
    log = os.open(BOX / "keeper.log", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in (0, 1, 2):
        os.dup2(log, number)
    keeper = Keeper(start_sshd())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(BOX / "orders"))
    listener.listen()
    threading.Thread(target=serve_orders, args=(keeper, listener), daemon=True).start()
    os.write(told, b"1")
    while keeper.reason is None:
        time.sleep(0.1)
        keeper.look()
    keeper.end()


main()
