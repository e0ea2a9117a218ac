"""Limited processes where the kernel refuses namespaces, as in many containers: Landlock stands in.

The kernel really refuses: the program below sets the number of user namespaces that
it may make to 0, then runs the verifiers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REFUSE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()
if libc.unshare(0x10000000):
    sys.exit(77)
for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
"""

ATTACK = """
import asyncio, logging, os, socket, sys
from art.errors import VerifierError
from art.rewards.verifiers import CodeTests
from art_extensions.sandbox.limited_process import *

logging.basicConfig(format="%(message)s", stream=sys.stdout)
CODE = '''
import os, socket, signal
def attempt(act):
    try:
        act()
        return "done"
    except OSError as error:
        return type(error).__name__
def attack(parent, port, secret):
    return [
        attempt(lambda: open(secret)),
        attempt(lambda: open(f"/proc/{parent}/environ")),
        attempt(lambda: os.kill(parent, signal.SIGTERM)),
        attempt(lambda: socket.create_connection(("127.0.0.1", port), 5)),
        attempt(lambda: open("/usr/written", "w")),
        attempt(lambda: open("mine", "w")),
    ]
'''
async def main():
    with socket.create_server(("127.0.0.1", 0)) as server:
        expected = ["PermissionError"] * 5 + ["done"]
        call = f"attack({os.getpid()}, {server.getsockname()[1]}, {sys.argv[1]!r})"
        tests = f"assert {call} == {expected}"
        best = CodeTests(tests)
        for _ in range(2):
            print(await best.verify(CODE, tests))
        try:
            await CodeTests(tests, isolation="required").verify(CODE, tests)
        except VerifierError as error:
            print("refused:", error)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")
def test_landlock_stands_in_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, ATTACK, str(tmp_path / "secret")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OPENAI_API_KEY": "sk-secret"},
    )
    if done.returncode == 77:
        pytest.skip("this kernel lets nobody make a user namespace, so none can be set up to refuse them")
    assert done.returncode == 0, done.stderr
    if "files: open" in done.stdout:
        pytest.skip("this kernel has no Landlock: " + done.stdout)
    lines = done.stdout.splitlines()
    warnings = [line for line in lines if line.startswith("code: no namespaces here (")]
    assert len(warnings) == 1 and "files: landlock, network: landlock (TCP only)" in warnings[0]
    assert 'isolation="required" refuses to run so' in warnings[0]
    assert [line[:16] for line in lines if "explanation" in line] == ["Score(value=1.0,"] * 2, done.stdout
    assert lines[-1].startswith("refused: code: no namespaces here") and 'isolation="best"' in lines[-1]
