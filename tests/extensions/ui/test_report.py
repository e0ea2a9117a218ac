"""`art report`: what is in the file, and that no key, no text and no name of a person is."""

from __future__ import annotations

import getpass
import json
import platform
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import art
from art.cli import app
from art.tracking.folders import ModelPaths
from art.tracking.model_files import append_history_row
from art.wire.rollout_record import JudgeNote, RolloutFailure, RolloutRecord
from art_extensions.ui.report import MOST_BYTES, MOST_LINES, Bundle, Redactor

LETTERS = "Zx8Qw3Er7Ty2Ui9Op4As6Df1Gh5Jk0Lz"
KEYS = (
    f"sk-{LETTERS}",
    f"sk-proj-{LETTERS}_{LETTERS}",
    f"sk-ant-api03-{LETTERS}-{LETTERS}AA",
    f"hf_{LETTERS}ab",
    "0123456789abcdef0123456789abcdef01234567",  # W&B's older form
    f"wandb_v1_{LETTERS}",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    f"ghp_{LETTERS}abcd",
    f"github_pat_11ABCDEFG_{LETTERS}",
    f"AIza{LETTERS}xyz",
    "xoxb-123456789012-abcdefghijklmnop",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{LETTERS}",
    f"sk-lf-{LETTERS}",
    f"art-tenant-{LETTERS}abcdefghijk",
    f"art-{LETTERS}abcdefghijk",
    LETTERS,
)
SECRETS = (
    *((key, key) for key in KEYS),
    (f"Authorization: Bearer {LETTERS.lower()}", LETTERS.lower()),
    ("bearer abcdefgh12345", "abcdefgh12345"),
    ("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy"),
    ("Cookie: session=oatmeal; other=raisin", "raisin"),
    ("https://anna:hunter22@example.org/v1", "hunter22"),
    ("postgres://svc:tr0ub4dor@db:5432/x", "tr0ub4dor"),
    ("OPENAI_API_KEY=opensesame", "opensesame"),
    ("password: correcthorse", "correcthorse"),
    ('{"client_secret": "batterystaple"}', "batterystaple"),
    ("GET /v1?api_key=swordfish&x=1", "swordfish"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabcd\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ("mail anna.b@example.org about it", "anna.b@example.org"),
    ("/home/annabell/project", "annabell"),
    ("/Users/annabell/project", "annabell"),
    (f"{Path.home()}/project/x.py", f"{Path.home()}/"),
)
"""A text that somebody may log, and the part of it that nobody may send."""
HARMLESS = (
    "Qwen/Qwen2.5-7B-Instruct",
    "Meta-Llama-3-8B-Instruct-GGUF-Q4",
    "33ea0b1edf924f15af72e48cf5c44d75",
    "smp_2f7b1721514393fcb917f3be",
    "train/completion_tokens_p50",
    "step 12 of p/m: reward 0.52 ± 0.04, 5 of 6 groups trained",
    "test_a_rollout_with_a_long_name_of_2026",
    "https://example.org:8000/v1/models",
)
PROMPT = "the prompt that nobody else may read"


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_is_removed_wherever_it_stands(text: str, secret: str) -> None:
    redactor = Redactor.of_this_machine()
    for around in ("{}", "before {} after", "x={}", '"{}"', "({})", "a\n{}\nb"):
        assert secret not in redactor.text(around.format(text)), around
    assert secret not in json.dumps(redactor.value({"a": [{"note": text}], text: 1}))
    assert redactor.counts.total()


@pytest.mark.parametrize("text", HARMLESS)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert Redactor().text(text) == text
    assert Redactor().value({"reward": 0.5, "tokens": 3}) == {"reward": 0.5, "tokens": 3}


def test_a_value_is_removed_by_its_name_and_a_known_key_by_what_it_is() -> None:
    redactor = Redactor.of_this_machine(["plain-words"])
    found = redactor.value({"api_key": "a", "hf_token": "b", "key": None, "note": "it is plain-words, see"})
    assert found == {
        "api_key": "[removed]",
        "hf_token": "[removed]",
        "key": None,
        "note": "it is [removed], see",
    }


def test_the_parts_are_bounded_at_their_middle() -> None:
    bundle = Bundle(Redactor())
    bundle.add_rows("rows.jsonl", ({"number": number, "text": "x" * 1000} for number in range(2400)))
    bundle.add_log("some.log", [f"line {number}" for number in range(MOST_LINES + 5)])
    kept = [json.loads(line)["number"] for line in bundle.parts["rows.jsonl"].splitlines()]
    assert len(bundle.parts["rows.jsonl"]) <= MOST_BYTES and kept[0] == 0 and kept[-1] == 2399
    assert kept == sorted(kept) and len(kept) < 2000
    assert bundle.parts["some.log"].startswith(b"line 5\n")
    assert len([one for one in bundle.left_out if one.startswith(("rows.jsonl", "some.log"))]) == 2


async def broken_run(root: Path, secrets: str) -> ModelPaths:
    """A run with secrets and prompts wherever a text can be."""
    model = art.Model(name="m", project="p", base_path=str(root))
    asked: list[Any] = [{"role": "user", "content": f"{PROMPT} {secrets}"}]
    group = art.TrajectoryGroup([art.Trajectory(reward=1.0, messages_and_choices=asked, logs=[secrets])])
    for step in range(1, 6):
        await model.log([group], split="train", step=step, metrics={"train/exception_rate": 0.5})
    files = ModelPaths(root / "p" / "models" / "m")
    append_history_row(files.history, {"step": 5, "note": secrets, secrets: 1.0})
    config = {"system": PROMPT, "judge": {"api_key": "swordfish", "base_url": secrets}}
    files.description.write_text(json.dumps({"name": "m", "inference_api_key": LETTERS, "config": config}))
    (files.path / "registration.json").write_text(json.dumps({"base_model": "art/nano", "note": secrets}))
    record = RolloutRecord(
        rollout="r-1", group=0, place=0, fate="failed", scenario=PROMPT,
        unscored_reason=f"{PROMPT} {secrets}",
        failure=RolloutFailure(type="TimeoutError", message=f"{PROMPT} {secrets}"),
        judge=JudgeNote(name="judge-1", words=f"{PROMPT} {secrets}"),
    )  # fmt: skip
    for step in range(1, 6):
        files.rollouts(step).parent.mkdir(parents=True)
        files.rollouts(step).write_text(record.line())
    logs = root / "server" / "logs"
    logs.mkdir(parents=True)
    (logs / "server.log").write_text(f"12:00 art: it failed\n{secrets}\n")
    (root / "server" / "key").write_text("chosen-by-its-owner\n")
    (logs / "engine.log").write_text("the key chosen-by-its-owner was refused\n")
    return files


def unpacked(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.slow
async def test_the_file_has_what_a_maintainer_needs_and_no_secret_or_prompt(tmp_path: Path) -> None:
    await broken_run(tmp_path, "\n".join(text for text, _ in SECRETS))
    target = tmp_path / "report.zip"
    said = CliRunner().invoke(app, ["report", "p/m", "--data-dir", str(tmp_path), "--output", str(target)])
    assert said.exit_code == 0, said.output
    found = unpacked(target)
    for name, text in (*found.items(), ("output", said.output)):
        for _, secret in SECRETS:
            assert secret not in text, f"{secret} is in {name}"
        assert PROMPT not in text and "chosen-by-its-owner" not in text and "swordfish" not in text, name
        if len(user := getpass.getuser()) > 4:
            assert not re.search(rf"\b{re.escape(user)}\b", text), name
        assert not re.search(rf"\b{re.escape(platform.node())}\b", text), name
    assert json.loads(found["findings.json"])["first_broken_stage"] == "rollout"
    assert json.loads(found["environment.json"])["art"] and "torch" in found["environment.json"]
    assert json.loads(found["settings.json"])["registration"]["base_model"] == "art/nano"
    (first, *_) = map(json.loads, found["rollouts.jsonl"].splitlines())
    assert first["failure"]["type"] == "TimeoutError" and first["failure"]["message"].endswith("characters)")
    assert len(found["history.jsonl"].splitlines()) == 6 and "it failed" in found["logs/server.log"]
    assert "1 keys of this server" in found["README.txt"] and "--with-texts adds them" in said.output
    for name in found.keys() - {"README.txt"}:
        assert name in said.output and name in found["README.txt"]
    again = CliRunner().invoke(app, ["report", "p/m", "--data-dir", str(tmp_path), "--output", str(target)])
    assert again.exit_code == 2 and "exists: name another file with --output" in again.output


@pytest.mark.slow
async def test_texts_come_when_they_are_asked_for_and_keys_never(tmp_path: Path) -> None:
    await broken_run(tmp_path, " ".join(text for text, _ in SECRETS if "\n" not in text))
    target = tmp_path / "report.zip"
    options = ["--data-dir", str(tmp_path), "--output", str(target), "--with-texts"]
    assert CliRunner().invoke(app, ["report", "p/m", *options]).exit_code == 0
    found = unpacked(target)
    assert PROMPT in found["rollouts.jsonl"] and PROMPT in found["settings.json"]
    for name, text in found.items():
        assert not [secret for _, secret in SECRETS if secret in text], name


@pytest.mark.slow
async def test_what_is_damaged_is_left_out_with_the_reason(tmp_path: Path) -> None:
    files = await broken_run(tmp_path, "nothing")
    files.history.write_bytes(b'{"step": 1, "train/reward": \xff\xfe}\n')
    options = ["--data-dir", str(tmp_path), "--output"]
    said = CliRunner().invoke(app, ["report", "p/m", *options, str(tmp_path / "report.zip")])
    assert said.exit_code == 0 and "history.jsonl: UnreadableFileError" in said.output, said.output
    found = unpacked(tmp_path / "report.zip")
    assert "history.jsonl" not in found and "findings.json" not in found
    assert len(found["rollouts.jsonl"].splitlines()) == 5 and "it failed" in found["logs/server.log"]
    said = CliRunner().invoke(app, ["report", "p/m", *options, str(tmp_path / "report.zip" / "r.zip")])
    assert said.exit_code == 2 and "cannot be written" in said.output
