"""A Postgres of the tests' own: made by `initdb` in a temporary folder, on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

PASSWORD = "sesame-of-the-tests"
WAIT_S = 240.0


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`: Debian keeps them off the PATH."""
    found = shutil.which("pg_ctl")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [Path(found or "/").resolve().parent]
    return next((folder for folder in reversed(folders) if (folder / "pg_ctl").exists()), None)


class PrivatePostgres:
    """A server, and its databases."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        """durable: what is committed is on disk before that is told, for tests that kill it."""
        bin_folder = programs()
        assert bin_folder is not None, "sh tests/install_programs.sh"
        self._bin, self.folder, self._durable = bin_folder, folder, durable
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        self.port = free_port()
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self.data = folder / "data"
        self.data.mkdir()
        password = folder / "password"
        password.write_text(PASSWORD)
        if os.getuid() == 0:
            shutil.chown(self.data, self.user)
            shutil.chown(password, self.user)
        made = ["initdb", "-D", str(self.data), "-U", "art", "-A", "scram-sha-256", f"--pwfile={password}"]
        self._run(*made, "-E", "UTF8", "--locale=C", *([] if durable else ["--no-sync"]))
        password.unlink()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.data),
            "max_connections": "60",
            "shared_buffers": "64MB",
            "fsync": "on" if self._durable else "off",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        log = (self.folder / "postgres.log").open("ab")
        self._process = subprocess.Popen(
            [*self._as_user(), str(self._bin / "postgres"), "-D", str(self.data), *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        log.close()
        deadline = time.monotonic() + WAIT_S
        while "accepting" not in self._ready():
            assert time.monotonic() < deadline, (self.folder / "postgres.log").read_text()[-2000:]
            assert self._process.poll() is None, (self.folder / "postgres.log").read_text()[-2000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """`kill -9` of the postmaster and of every process of it."""
        pids = [int((self.data / "postmaster.pid").read_text().split()[0])]
        children = Path(f"/proc/{pids[0]}/task/{pids[0]}/children")
        pids += [int(pid) for pid in children.read_text().split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self) -> None:
        """A fast, clean end."""
        if self._process is not None and self._process.poll() is None:
            os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)
            self._process.wait(WAIT_S)

    def create_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}", database="postgres")
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://art:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def sql(self, text: str, *, database: str) -> str:
        """What psql prints of a statement."""
        done = subprocess.run(
            [str(self._bin / "psql"), "-X", "-A", "-t", "-d", database, "-c", text],
            env={**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "art"}
            | {"PGPASSWORD": PASSWORD, "PGOPTIONS": "-c search_path=art,public"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    def _ready(self) -> str:
        words = [str(self._bin / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False).stdout

    def _run(self, program: str, *words: str) -> None:
        command = [*self._as_user(), str(self._bin / program), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S, cwd="/")

    def _as_user(self) -> list[str]:
        return ["runuser", "-u", self.user, "--"] if os.getuid() == 0 else []


def open_folder() -> Path:
    """A new folder that the user of Postgres may enter: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="art-postgres-"))
    folder.chmod(0o755)
    return folder


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[PrivatePostgres]:
    """A server until the block ends. durable: what is committed is on disk, for tests that kill it."""
    folder = open_folder()
    server = PrivatePostgres(folder / "server", durable=durable)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
