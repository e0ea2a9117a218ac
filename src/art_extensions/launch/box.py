"""`python -m art_extensions.launch.box --idle-seconds 1800 --data-dir DIR -- OPTIONS`, on the box.

Runs `art serve OPTIONS` on the loopback address and ends it when no client has used it for so long: its
laptop died, or was forgotten. SkyPilot then ends the machine, since no job runs there any more.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from art.process.reaper import reaper
from art.process.running_server import RunningServer, find_server

_log = logging.getLogger(__name__)

UNUSED = frozenset({"/health", "/metrics", "/art/models"})
"""Routes by which nobody uses the server: this program's own, and those of copying home."""
ASK_S = 10.0
LONGEST_PAUSE_S = 15.0
STOP_S = 60.0
_REQUESTS = re.compile(r"^art_requests_total\{(.*)\} (\S+)$", re.M)
_ROUTE = re.compile(r'route="([^"]*)"')
_JOBS = re.compile(r'^art_jobs\{state="(?:queued|running)"\} (\S+)$', re.M)


class ClientTraffic:
    """The time of the last use, by what the server counts.

    Worked example: 7 requests of `/v1/chat/completions` at 10 s, still 7 at 40 s, no job: idle for 30 s.
    """

    def __init__(self, now: float) -> None:
        self._requests, self._last = 0.0, now

    def note(self, metrics: str, now: float) -> None:
        """Reads the text of GET /metrics. An unfinished training job is a use, too."""
        requests = sum(
            float(number)
            for labels, number in _REQUESTS.findall(metrics)
            if (route := _ROUTE.search(labels)) is not None and route[1] not in UNUSED
        )
        if requests != self._requests or any(float(number) for number in _JOBS.findall(metrics)):
            self._requests, self._last = requests, now

    def idle_s(self, now: float) -> float:
        """Returns the seconds since the last use."""
        return now - self._last


def read_metrics(server: RunningServer) -> str:
    """Returns the text of GET /metrics. Raises httpx.HTTPError."""
    headers = {"authorization": f"Bearer {server.key}"}
    reply = httpx.get(f"{server.url}/metrics", headers=headers, timeout=ASK_S, trust_env=False)
    reply.raise_for_status()
    return reply.text


def watch_server(
    server: subprocess.Popen[bytes],
    data_dir: Path,
    idle_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Waits until the server ends, or ends it when it has been idle. Returns the exit code of the job."""
    traffic = ClientTraffic(clock())
    while server.poll() is None:
        found = find_server(data_dir / "server")
        if found is not None:
            try:
                traffic.note(read_metrics(found), clock())
            except httpx.HTTPError as error:  # a server that answers nothing is used by nobody
                _log.warning("the server does not answer GET /metrics: %r", error)
        if idle_s and traffic.idle_s(clock()) >= idle_s:
            _log.warning("no client has used the server for %g s: it ends, and with it the box", idle_s)
            stop_server_process(server)
            return 0
        pause(min(LONGEST_PAUSE_S, idle_s / 8 if idle_s else LONGEST_PAUSE_S))
    return server.returncode


def stop_server_process(server: subprocess.Popen[bytes]) -> None:
    """Asks the server to end, and kills it when it does not within a minute."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the server ends or is idle. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m art_extensions.launch.box")
    parser.add_argument("--idle-seconds", type=float, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("options", nargs="*")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    (chosen.data_dir / "server" / "logs").mkdir(parents=True, exist_ok=True)  # copied home from the start
    place = ["--host", "127.0.0.1", "--port", "0", "--data-dir", str(chosen.data_dir)]
    # A job that waited for a program would keep the box from being idle for ever.
    place.append("--resume-jobs")
    server = subprocess.Popen(
        [str(Path(sys.executable).with_name("art")), "serve", *place, *chosen.options], start_new_session=True
    )
    reaper().watch(server.pid)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return watch_server(server, chosen.data_dir, chosen.idle_seconds)
    finally:
        if server.poll() is None:
            stop_server_process(server)


if __name__ == "__main__":
    sys.exit(main())
