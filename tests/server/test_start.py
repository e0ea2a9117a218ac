"""The start-up contract of `python -m art.server`, with real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError
from art.server.data_folder import DataFolderLock
from art.server.settings import KEY_VARIABLE, ServerSettings, parse_settings, resolve_key
from waiting import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_starts")]

KEY = "a-secret-key-of-a-test"
Start = Callable[..., "Started"]


class Started:
    """A server process and what it said first."""

    def __init__(self, settings: dict[str, Any] | bytes) -> None:
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        line = settings if isinstance(settings, bytes) else json.dumps(settings).encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()
        self.said = json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, str]:
        """Close its input; exit status and log."""
        _, log = self.process.communicate(timeout=240)
        return self.process.returncode, log.decode()


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[Started] = []

    def run(settings: dict[str, Any] | bytes) -> Started:
        servers.append(Started(settings))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate(timeout=240)


def test_it_tells_its_port_serves_and_ends_with_its_input(start: Start, tmp_path: Path) -> None:
    server = start({"data_dir": str(tmp_path), "key": KEY})
    assert server.said["ready"] is True
    with urllib.request.urlopen(f"http://127.0.0.1:{server.said['port']}/health", timeout=240) as reply:
        assert json.load(reply)["status"] == "ok"
    other = start({"data_dir": str(tmp_path), "key": KEY})
    assert other.said["ready"] is False
    assert str(tmp_path) in other.said["error"] and str(server.process.pid) in other.said["error"]
    taken = start({"data_dir": str(tmp_path / "b"), "key": KEY, "port": server.said["port"]})
    assert "cannot listen" in taken.said["error"]
    status, log = server.end()
    assert status == 0
    assert KEY not in log
    assert other.end()[0] == taken.end()[0] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_end_it_and_free_the_folder(start: Start, tmp_path: Path, number: int) -> None:
    server = start({"data_dir": str(tmp_path), "key": KEY})
    server.process.send_signal(number)
    assert server.process.wait(DEADLINE_S) == (-number if number == signal.SIGKILL else 0)
    DataFolderLock(tmp_path / "server").release()


def test_a_folder_in_use_says_by_whom_and_what_to_do(tmp_path: Path) -> None:
    holder = DataFolderLock(tmp_path / "server")
    with pytest.raises(ConfigurationError) as refused:
        DataFolderLock(tmp_path / "server")
    for named in (str(tmp_path), str(os.getpid()), "art.LocalBackend attaches"):
        assert named in str(refused.value)
    holder.release()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"{\n", "Invalid JSON"),
        (b"\n", "Invalid JSON"),
        (json.dumps({"prot": 8000, "key": KEY}).encode() + b"\n", "prot"),
        (json.dumps({"key": [KEY]}).encode() + b"\n", "key"),
        (json.dumps({"limits": {"max_n": 0}}).encode() + b"\n", "limits.max_n"),
    ],
)
def test_wrong_settings_are_refused_by_name_without_the_key(line: bytes, named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_settings(line)
    assert named in str(refused.value)
    assert "data_dir" in str(refused.value)
    assert KEY not in str(refused.value)


def test_refusals_of_the_child_are_one_json_line(start: Start) -> None:
    server = start(b'{"prot": 8000}\n')
    assert server.said["ready"] is False and "prot" in server.said["error"]
    assert server.end()[0] == 1


def test_a_refusal_names_its_kind(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = start({"data_dir": str(tmp_path / "file"), "key": KEY})
    assert refused.said["kind"] == "DiskError" and str(tmp_path / "file") in refused.said["error"]
    assert refused.end()[0] == 1


def test_a_key_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    settings = ServerSettings(data_dir=tmp_path)
    key = resolve_key(settings)
    assert len(key) > 30
    assert resolve_key(settings) == key
    assert stat.S_IMODE((tmp_path / "server" / "key").stat().st_mode) == 0o600
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert resolve_key(settings) == KEY
    assert resolve_key(ServerSettings(data_dir=tmp_path, key="given-to-it")) == "given-to-it"
    assert "given-to-it" not in repr(ServerSettings(key="given-to-it"))


def test_other_machines_need_a_chosen_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(ConfigurationError, match=KEY_VARIABLE):
            resolve_key(ServerSettings(host=host, data_dir=tmp_path))
    for host in ("127.0.0.1", "::1", "localhost"):
        resolve_key(ServerSettings(host=host, data_dir=tmp_path))
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigurationError, match="at least 8"):
        resolve_key(ServerSettings(data_dir=tmp_path))


def test_the_server_never_loads_torch() -> None:
    code = (
        "import sys, art.server.process, art.rendering.registry, renderers.base\n"
        "renderers.base._populate_registry()\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "from art.rendering import template\n"
        "sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0
