"""Attacks on the machine from inside a limited process. Each is real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError, VerifierError
from art_extensions.sandbox.limited_process import LimitedProcess, ProcessEnding, module_folders
from art_extensions.sandbox.limits import MB, Limits
from starting import StartedProgram
from waiting import eventually

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="walls are of Linux")
SECRET = "sk-this-is-a-secret"


def run(
    source: str, *, given: bytes = b"", wall_s: float = 60.0, **limits: Any
) -> tuple[str, str, ProcessEnding, LimitedProcess]:
    places = module_folders(packages=False)
    with LimitedProcess(
        "program", Limits(wall_s=wall_s, **limits), wall_s=wall_s, source=source, **places
    ) as child:
        said = child.talk(given).decode(errors="replace")
        ending = child.finish()
        return said, child.errors.decode(errors="replace"), ending, child


@pytest.fixture(scope="module")
def namespaces() -> None:
    _, _, _, child = run("pass")
    if not child.walls.is_complete:
        pytest.skip(f"this kernel refuses namespaces: {child.walls.refused}")


def test_a_program_has_its_streams_and_its_end_is_told() -> None:
    said, errors, ending, child = run(
        "import sys\nprint(sys.stdin.read().upper())\nprint('so', file=sys.stderr)\nsys.exit(3)",
        given=b"hello",
    )
    assert (said, errors, ending.fate, ending.code) == ("HELLO\n", "so\n", "ended", 3)
    assert 0 < ending.cpu_s < 30 and ending.memory_bytes > MB
    assert not Path(child.base).exists()


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    said, *_ = run("import os; print(set(os.environ) - {'LC_CTYPE'})")
    assert said == "set()\n"  # Python itself sets LC_CTYPE


READ_PARENTS = """
import os
seen = ""
for name in ["self", *map(str, range(1, {last}))]:
    for part in ("environ", "cmdline", "mem", "maps"):
        try:
            seen += open(f"/proc/{{name}}/{{part}}", errors="replace").read(100000)
        except OSError:
            pass
print({secret!r} in seen, bool(seen))
"""


@linux
def test_the_environment_of_others_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with StartedProgram([sys.executable, "-c", "import time; time.sleep(60)"]) as another:
        last = another.pid + 50
        said, *_ = run(READ_PARENTS.format(last=last, secret=SECRET), cpu_s=30)
        another.kill()
    assert said == "False False\n"


@linux
def test_nobody_outside_can_be_signalled() -> None:
    with StartedProgram([sys.executable, "-c", "import time; time.sleep(60)"]) as another:
        source = """
import os, signal
for number in (int(input()), int(input()), os.getppid()):
    try:
        os.kill(number, signal.SIGTERM)
        print("hit", number)
    except OSError as error:
        print(type(error).__name__)
os.kill(-1, signal.SIGKILL)
"""
        said, *_ = run(source, given=f"{os.getpid()}\n{another.pid}\n".encode())
        assert "hit" not in said.replace("hit 0", "")  # 0 is its own group
        assert another.poll() is None
        another.kill()


@linux
@pytest.mark.parametrize("call", ["os.kill(0, 9)", "os.killpg(0, signal.SIGSTOP)"])
def test_a_signal_to_its_whole_group_reaches_itself_alone(call: str) -> None:
    """A process group crosses the walls: were the supervisor in it, wrong code would become unscored."""
    source = f"import os, signal\nassert os.getpgrp() == os.getpid()\n{call}"
    _, errors, ending, _ = run(source, wall_s=3.0)
    # The first process of a namespace cannot kill itself; elsewhere it does, or stops until its deadline.
    assert not errors and (ending.fate, ending.code) in {("ended", 0), ("ended", -9), ("deadline", -9)}


def test_an_endless_loop_ends_by_its_cpu_time() -> None:
    _, _, ending, _ = run("while True: pass", cpu_s=1)
    assert ending.fate == "cpu" and ending.code == -9


def test_one_that_sleeps_ends_by_the_clock() -> None:
    _, _, ending, _ = run("import time\nwhile True: time.sleep(1)", wall_s=0.5)
    assert ending.fate == "deadline"


@linux
def test_what_a_program_left_behind_dies_with_it() -> None:
    mark = f"left-{os.getpid()}-{time.monotonic_ns()}"
    said, *_ = run(f"""
import os, subprocess, sys
kept = [sys.executable, "-c", "import time; time.sleep(300)", {mark!r}]
subprocess.Popen(kept, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(kept[0], kept)
    os._exit(0)
print("started")
""")
    assert said == "started\n"
    assert mark.encode() not in b"".join(_command_lines())


def _command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


def test_a_fork_bomb_is_bounded(namespaces: None) -> None:
    counted = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(300)
        count += 1
except OSError as error:
    print(count, type(error).__name__)
"""
    said, *_ = run(counted, processes=6)
    assert said == "5 BlockingIOError\n"


def test_a_fork_bomb_without_end_ends(namespaces: None) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    _, _, ending, _ = run(bomb, processes=3, cpu_s=1, wall_s=30)
    assert ending.fate in ("cpu", "deadline")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("kept = bytearray(10 ** 10)", "MemoryError"),
        ("kept = []\nwhile True: kept.append(bytearray(10 ** 6))", "MemoryError"),
        ("with open('big', 'wb') as file:\n    while True: file.write(bytes(10 ** 6))", "File too large"),
        ("kept = []\nwhile True: kept.append(open('/dev/null'))", "Too many open files"),
    ],
)
def test_memory_files_and_descriptors_are_limited(source: str, reason: str) -> None:
    _, errors, ending, _ = run(source, memory_bytes=128 * MB, file_bytes=4 * MB, open_files=20)
    assert ending.code == 1 and reason in errors


def test_many_files_together_are_limited(namespaces: None) -> None:
    source = "for n in range(100):\n    with open(f'{n}', 'wb') as file: file.write(bytes(10 ** 6))"
    _, errors, _, _ = run(source, disk_bytes=8 * MB)
    assert "No space left on device" in errors


def test_empty_files_are_limited(namespaces: None) -> None:
    """Each costs the kernel about 1 kB that no limit on bytes counts: 5 s of CPU make 1 GB."""
    source = """
import os
made = 0
try:
    while made < 20000:
        os.close(os.open(f"{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(made < 4096, error.strerror)
"""
    said, *_ = run(source)
    assert said == "True No space left on device\n"


def test_what_it_writes_is_cut_and_ends_it() -> None:
    said, _, ending, _ = run("while True: print('x' * 1000)", output_bytes=50_000)
    assert len(said) == 50_000 and ending.fate == "output"
    _, errors, ending, _ = run(
        "import sys\nfor _ in range(100): print('x' * 1000, file=sys.stderr)", output_bytes=50_000
    )
    assert len(errors) == 50_000 and ending.fate == "ended"
    *_, ending, _ = run("import sys\nwhile True: print('x' * 1000, file=sys.stderr)", output_bytes=50_000)
    assert ending.fate == "output"


def test_there_is_no_network(namespaces: None) -> None:
    source = """
import socket
for address in (("127.0.0.1", int(input())), ("192.0.2.1", 80)):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(socket.AF_INET, kind) as client:
                client.settimeout(5)
                client.connect(address)
                client.send(b"x")
            print("sent")
        except OSError as error:
            print("refused")
"""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        said, *_ = run(source, given=f"{server.getsockname()[1]}\n".encode())
    assert said == "refused\n" * 4


def test_only_the_interpreter_can_be_read_and_one_folder_written(namespaces: None, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    tmp_path.chmod(0o755)
    source = """
import os
def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__
path = input()
print(attempt(lambda: open(path)))
print(attempt(lambda: open("/etc/passwd")))
print(attempt(lambda: open("/usr/written", "w")))
print(attempt(lambda: open("/written", "w")))
print(attempt(lambda: open("mine", "w")), attempt(lambda: open("/tmp/mine", "w")))
print(sorted(os.listdir("/dev")))
"""
    said, errors, *_ = run(source, given=f"{tmp_path}/key\n".encode())
    lines = said.splitlines()
    assert lines[:2] == ["FileNotFoundError", "FileNotFoundError"], errors
    assert "done" not in lines[2:4]
    assert lines[4:] == ["done done", "['null', 'urandom', 'zero']"]


def test_privileges_cannot_be_had_again(namespaces: None) -> None:
    source = """
import ctypes, os
libc = ctypes.CDLL(None)
print([libc.unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)])
print(libc.mount(b"tmpfs", b"/box", b"tmpfs", 0, None), libc.setuid(0) if os.getuid() else -1)
"""
    said, *_ = run(source)
    assert said == "[-1, -1, -1]\n-1 -1\n"


def test_a_child_that_nobody_wants_any_more_ends() -> None:
    child = LimitedProcess(
        "program",
        Limits(),
        wall_s=None,
        source="import time; time.sleep(300)",
        **module_folders(packages=False),
    )
    process = child._process
    child.close()
    assert process.returncode is not None
    child.close()


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = f"orphan-{time.monotonic_ns()}"
    program = (
        "from art_extensions.sandbox.limited_process import *\nimport time\n"
        "child = LimitedProcess('program', Limits(), wall_s=None, source='import time; time.sleep(300)', "
        f"library=[], readable=[sys.base_prefix], note={mark!r})\n"
        "print(child._process.pid, child.base, flush=True)\ntime.sleep(300)"
    )
    with StartedProgram([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        supervisor, base = parent.stdout.readline().split()
        parent.kill()
    eventually(lambda: not _is_running(int(supervisor)) and not Path(base).exists())


def _is_running(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_child_that_cannot_start_says_why() -> None:
    with pytest.raises(VerifierError, match="KeyError: 'readable'"):
        LimitedProcess("program", Limits(), wall_s=5.0, source="", library=[])


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "processes"])
def test_limits_are_above_0(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Limits\\({field}=0\\)"):
        Limits(**{field: 0})
