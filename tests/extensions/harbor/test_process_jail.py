"""The jail: what is in it works, what is outside cannot be seen, and it ends in time with all it started."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from harbor_tasks import make_task

from art.errors import EnvironmentFailedError
from art_extensions.harbor.jail import ProcessJail
from art_extensions.harbor.sandbox import OUTPUT_BYTES
from art_extensions.harbor.task_folders import HarborTask
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow


@pytest.fixture
async def jail(tmp_path):
    made = ProcessJail(HarborTask.read(make_task(tmp_path / "hello")))
    await made.start()
    yield made
    await made.close()
    assert not made._root.exists()


async def test_one_that_is_checked_and_not_started_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    await ProcessJail(HarborTask.read(make_task(tmp_path / "hello"))).close()
    ProcessJail(HarborTask.read(tmp_path / "hello"))
    assert not list((tmp_path / "temporary").iterdir())


async def is_running(pattern):
    found = await asyncio.create_subprocess_exec("pgrep", "-f", pattern, stdout=asyncio.subprocess.PIPE)
    return (await found.communicate())[0] != b""


async def test_the_dockerfile_is_followed(jail):
    done = await jail.run("pwd; cat data.txt size.txt; echo $GREETING", timeout_s=20)
    assert (done.code, done.output.split()) == (0, ["/app", "some4", "hello"])


async def test_commands_share_files_and_not_processes(jail):
    await jail.run("mkdir /new && echo kept > /new/file; sleep 300 &", timeout_s=20)
    done = await jail.run("cat /new/file; pgrep sleep || echo none", timeout_s=20)
    assert done.output.split() == ["kept", "none"]


async def test_the_machine_cannot_be_seen_or_changed(jail, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    commands = {
        f"cat {secret}": "No such file",
        f"ls {Path.home()}/.. /work /mnt": "",
        "touch /usr/bin/art-was-here": "Read-only file system",
        "mount -o remount,rw /usr": "denied",
        "unshare --user --map-root-user true": "not permitted",
        "cat /proc/self/status | grep CapEff": "0000000000000000",
        "exec 3<>/dev/tcp/1.1.1.1/53": "",
    }
    for command, shown in commands.items():
        done = await jail.run(f"exec 2>&1; {command}; true", timeout_s=20)
        assert shown in done.output and "secret\n" not in done.output, (command, done)
    assert shutil.which("art-was-here", path="/usr/bin") is None
    names = (await jail.run("ls /; ls /proc | grep -c '^[0-9]'", timeout_s=20)).output.split()
    assert "work" not in names and int(names[-1]) < 10


async def test_links_that_an_agent_plants_lead_nowhere(jail, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    await jail.run(f"rm -rf /tests; ln -s {outside} /tests; ln -s {outside} /logs/verifier/x", timeout_s=20)
    with pytest.raises(EnvironmentFailedError, match="cannot be copied"):
        await jail.upload(jail._task.folder / "tests", "/tests")
    assert list(outside.iterdir()) == []


async def test_a_command_that_does_not_end_is_ended_with_all_it_started(jail):
    async with asyncio.timeout(DEADLINE_S):
        done = await jail.run("echo first; (setsid sleep 4711 &) ; sleep 4712", timeout_s=5.0)
    assert done.timed_out and done.output == "first\n"
    assert not await is_running("sleep 471[12]")


async def test_a_flood_of_output_is_cut_in_the_middle(jail):
    done = await jail.run("echo begin; yes | head -c 20000000; echo end", timeout_s=60)
    assert done.code == 0 and len(done.output) < OUTPUT_BYTES + 100
    assert (
        done.output.startswith("begin\n") and done.output.endswith("end\n") and "are left out" in done.output
    )


async def test_a_command_that_is_too_long_is_told_so(jail):
    done = await jail.run("x" * 200_000, timeout_s=20)
    assert done.code == 126 and "at most" in done.output
    assert (await jail.run("a\0b", timeout_s=20)).code == 126


async def test_a_cancelled_command_leaves_nothing_behind(jail):
    running = asyncio.create_task(jail.run("sleep 4713", timeout_s=60))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await is_running("sleep 471[3]")


async def test_a_run_that_fails_ends_the_setup_by_its_line_unless_it_may(tmp_path):
    lines = "FROM x\nWORKDIR /app\nRUN apt-get install -y nothing-of-that-name && touch no\n"
    task = HarborTask.read(make_task(tmp_path, {"environment/Dockerfile": lines}))
    made = ProcessJail(task)
    with pytest.raises(EnvironmentFailedError, match="Dockerfile, line 3"):
        await made.start()
    await made.close()
    lenient = ProcessJail(task, keep_going=True)
    await lenient.start()
    assert (await lenient.run("ls", timeout_s=20)).output == ""
    await lenient.close()
