"""The process jail: a task's sandbox where there is no container runtime. Linux, with user namespaces.

A command sees a root folder of its own. This machine's programs and libraries are mounted into it read-only;
of its other files it sees none, nor its processes and network. It has no privileges, and limits on processes,
the size of files and time. It ends with the program that started it, and everything that it started with it.

It keeps mistakes of an agent from the machine. It is no boundary against an attack on the kernel.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from art.errors import ConfigurationError, EnvironmentFailedError
from art_extensions.harbor.dockerfile import Build, BuildStep, read_build
from art_extensions.harbor.sandbox import CommandResult, CutOutput
from art_extensions.harbor.task_folders import HarborTask

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64")
OWN = (
    "app",
    "dev",
    "etc",
    "home",
    "logs/agent",
    "logs/verifier",
    "opt",
    "proc",
    "root",
    "srv",
    "tmp",
    "var/tmp",
)
DEVICES = ("null", "zero", "full", "random", "urandom")
HOST_ETC = (
    "alternatives",
    "ssl",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ca-certificates",
    "mime.types",
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_PROCESSES, FILE_BYTES, MEMORY_BYTES = 512, 2 << 30, 4 << 30
"""The most of a jail, of a file and of a process."""
LONGEST_COMMAND = 100_000
"""Bytes of a command: Linux takes 131,072 in one argument."""
KILLED = 137
GRACE_S = 5.0
"""The seconds between the deadline of a command and the end of the process that keeps it."""
_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Mounts alone are made here: a folder is never, as the jail may have put a link in its place.
_ENTER = """
set -e
cd "$1"; workdir=$2; shift 2
mount --bind . . ; cd "$PWD"
read_only() { mount --bind "/$1" "$1"; mount -o remount,bind,ro "$1"; }
for name in $SYSTEM; do
  if [ -d "/$name" ] && [ ! -L "/$name" ]; then read_only "$name"; fi
done
for name in $ETC; do
  if [ -e "/etc/$name" ]; then read_only "etc/$name"; fi
done
for name in $DEVICES; do mount --bind "/dev/$name" "dev/$name"; done
mount -t proc proc proc
pivot_root . .
umount -l .
cd / && cd "$workdir"
exec /usr/bin/prlimit --nproc=$PROCESSES --fsize=$BYTES --data=$MEMORY --core=0 \
  /usr/bin/setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- /usr/bin/env -i "$@"
"""
_PROGRAMS = ("unshare", "mount", "pivot_root", "setpriv", "prlimit", "timeout", "tar")


class ProcessJail:
    """A sandbox of processes of this machine, see above. keep_going: a RUN that fails does not end the
    setup.
    """

    def __init__(self, task: HarborTask, *, keep_going: bool = False) -> None:
        """Raises: ConfigurationError where the task needs more, or the machine has no such jails."""
        check_machine()
        self._task, self._keep_going = task, keep_going
        self._build: Build = read_build(task.folder / "environment")
        self._root: Path | None = None
        """Made by `start`: one that was only checked leaves nothing."""
        self._workdir = task.workdir or self._build.workdir
        self._variables = {**self._build.variables, **task.variables}

    async def start(self) -> None:
        """Makes the root folder, and follows the Dockerfile. Raises: EnvironmentFailedError."""
        self._root = Path(tempfile.mkdtemp(prefix="art-jail-"))
        await asyncio.to_thread(_lay_out, self._root)
        for step in self._build.steps:
            await self._follow(step)
        made = await self.run(f"mkdir -p '{self._workdir}'", timeout_s=self._task.setup_s, workdir="/")
        if made.code:
            raise EnvironmentFailedError(f"the folder {self._workdir!r} cannot be made: {made.output}")

    async def _follow(self, step: BuildStep) -> None:
        if step.command is None:
            await self._copy(step)
            return
        done = await self.run(
            step.command, timeout_s=self._task.setup_s, variables=step.variables, workdir=step.workdir
        )
        if done.code and not self._keep_going:
            raise EnvironmentFailedError(
                f"{step.line}: `{step.command:.200}` {_ending(done)}: {done.output[-1000:]}\n"
                "The jail has this machine's programs and no network. Use sandbox='docker', or "
                "keep_going=True to run the task without it"
            )

    async def _copy(self, step: BuildStep) -> None:
        into_folder = step.target.endswith("/") or len(step.sources) > 1
        for source in step.sources:
            if source.is_dir():
                await self.upload(source, step.target)
            elif into_folder:
                await self._unpack(_packed([(source, source.name)]), step.target)
            else:
                folder, _, name = step.target.rpartition("/")
                await self._unpack(_packed([(source, name)]), folder or "/")

    async def upload(self, folder: Path, target: str) -> None:
        """Copies what is in a folder into one of the jail. Raises: EnvironmentFailedError."""
        await self._unpack(await asyncio.to_thread(_packed_folder, folder), target)

    async def _unpack(self, archive: bytes, target: str) -> None:
        """Unpacks inside of the jail, whose links lead nowhere else."""
        command = 'mkdir -p "$TARGET" && exec tar -xf - --no-same-owner -C "$TARGET"'
        done = await self._run(command, self._task.setup_s, {"TARGET": target}, "/", archive)
        if done.code:
            raise EnvironmentFailedError(f"files cannot be copied to {target!r}: {done.output[-1000:]}")

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        variables: Mapping[str, str] | None = None,
        workdir: str | None = None,
    ) -> CommandResult:
        """Runs a shell command in processes of its own; those that it leaves behind are ended."""
        given = {**self._variables, **(variables or {})}
        return await self._run(command, timeout_s, given, workdir or self._workdir, b"")

    async def _run(
        self, command: str, timeout_s: float, variables: Mapping[str, str], workdir: str, given: bytes
    ) -> CommandResult:
        if len(command.encode("utf-8", "replace")) > LONGEST_COMMAND:
            return CommandResult(code=126, output=f"a command has at most {LONGEST_COMMAND} bytes\n")
        if "\0" in command:
            return CommandResult(code=126, output="a command has no null characters\n")
        assert self._root is not None, "`start` comes first"
        arguments, begun = _arguments(self._root, workdir, variables, command, timeout_s), time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                output, _ = await asyncio.gather(_read(process), _write(process, given))
                code = await process.wait()
        except TimeoutError:
            return CommandResult(code=KILLED, output="", timed_out=True)
        finally:
            await _end(process)
        late = code in (KILLED, -signal.SIGKILL) and time.monotonic() - begun >= timeout_s
        return CommandResult(code=code, output=output, timed_out=late)

    async def close(self) -> None:
        """Removes the root folder."""
        if self._root is not None:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)


_ENVIRONMENT = {
    "PATH": PATH,
    "SYSTEM": " ".join(SYSTEM),
    "ETC": " ".join(HOST_ETC),
    "DEVICES": " ".join(DEVICES),
    "PROCESSES": str(MOST_PROCESSES),
    "BYTES": str(FILE_BYTES),
    "MEMORY": str(MEMORY_BYTES),
}


def check_machine() -> None:
    """Raises: ConfigurationError where this machine cannot make jails."""
    if sys.platform != "linux":
        raise ConfigurationError("the process jail needs Linux: use sandbox='docker'")
    missing = [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        raise ConfigurationError(
            f"the process jail needs the program {missing[0]}, which is not here: install it"
        )


def _arguments(
    root: Path, workdir: str, variables: Mapping[str, str], command: str, timeout_s: float
) -> Sequence[str]:
    shown = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb", **variables}
    namespaces = ("--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--net")
    return [
        *("timeout", "--signal=KILL", f"{timeout_s:.3f}"),
        *("unshare", *namespaces, "--fork", "--kill-child", "--", "/bin/sh", "-c", _ENTER, "jail"),
        *(str(root), workdir, *(f"{name}={value}" for name, value in shown.items())),
        *("/bin/sh", "-c", command),
    ]


def _lay_out(root: Path) -> None:
    """Makes the folders and files that things are mounted on, while nobody else is there."""
    root.chmod(0o755)
    for name in OWN:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in SYSTEM:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(os.readlink(host))
        elif host.is_dir():
            (root / name).mkdir()
    for name in DEVICES:
        (root / "dev" / name).touch()
    (root / "dev" / "fd").symlink_to("/proc/self/fd")
    for name, text in _FILES.items():
        (root / "etc" / name).write_text(text)
    for name in HOST_ETC:
        host = Path("/etc", name)
        if host.is_dir():
            (root / "etc" / name).mkdir()
        elif host.exists():
            (root / "etc" / name).touch()


def _packed(files: Sequence[tuple[Path, str]]) -> bytes:
    """Returns a tar archive of files and folders by their names in it. A link is what it leads to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for path, name in files:
            archive.add(path, arcname=name, recursive=False)
    return buffer.getvalue()


def _packed_folder(folder: Path) -> bytes:
    return _packed([(path, str(path.relative_to(folder))) for path in sorted(folder.rglob("*"))])


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    output = CutOutput()
    while part := await process.stdout.read(1 << 16):
        output.add(part)
    return output.text()


async def _write(process: asyncio.subprocess.Process, given: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _ending(done: CommandResult) -> str:
    return "did not end in time" if done.timed_out else f"ended with status {done.code}"
