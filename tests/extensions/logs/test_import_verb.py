"""`art import` and `art export-logs`, as they are typed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import art
from art.cli.main import app


def run_art(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def write_calls(path: Path, *broken: str) -> Path:
    calls = [
        {
            "request": {"model": model, "messages": [{"role": "user", "content": f"question {model}"}]},
            "response": {"choices": [{"message": {"role": "assistant", "content": "answer"}}]},
            "tags": {"helpful": score},
        }
        for model, score in (("small", 0), ("large", 1))
    ]
    path.write_text("\n".join([*map(json.dumps, calls), *broken]))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_import_writes_rows_and_says_what_was_left_out(tmp_path: Path) -> None:
    log, output = write_calls(tmp_path / "calls.jsonl"), tmp_path / "rows.jsonl"
    done = run_art("import", log, "--output", output, "--min-score", "helpful=1", "--model", "*")
    assert done.exit_code == 0, done.output
    assert [row["messages"][0]["content"] for row in rows_of(output)] == ["question large"]
    assert done.stderr.splitlines() == [
        "calls read: 2, rows made: 1",
        "  left out 1: score too low or missing",
    ]
    done = run_art("import", log, "--to", "scenarios", "--model", "small", "--output", output)
    assert done.exit_code == 0 and [row["metadata"]["model"] for row in rows_of(output)] == ["small"]


def test_a_broken_line_is_told_and_the_exit_code_says_so(tmp_path: Path) -> None:
    log, output = write_calls(tmp_path / "calls.jsonl", '{"request": '), tmp_path / "rows.jsonl"
    done = run_art("import", log, "--output", output)
    assert done.exit_code == 1 and len(rows_of(output)) == 2
    assert f"{log}, line 3: not valid JSON" in done.stderr and "left out 1: broken line" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--to", "rows"], "to 'rows': it is one of sft, scenarios"),
        (["--since", "soon"], "--since 'soon' is no time"),
        (["--min-score", "helpful"], "write NAME=VALUE"),
        (["--format", "openapi"], "did you mean 'openai'"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, options: list[str], told: str) -> None:
    log, output = write_calls(tmp_path / "calls.jsonl"), tmp_path / "rows.jsonl"
    done = run_art("import", log, "--output", output, *options)
    assert done.exit_code == 2 and told in done.stderr and not output.exists()


def test_no_row_is_no_file(tmp_path: Path) -> None:
    log, output = write_calls(tmp_path / "calls.jsonl"), tmp_path / "rows.jsonl"
    done = run_art("import", log, "--output", output, "--model", "none")
    assert done.exit_code == 1 and not output.exists() and "No row was made" in done.stderr


async def test_a_log_is_exported_and_imported(tmp_path: Path) -> None:
    model = art.Model(name="agent", project="games", base_path=str(tmp_path), report_metrics=[])
    asked: Any = {"role": "user", "content": "Well?"}
    answer: Any = {"role": "assistant", "content": "Yes."}
    trajectory = art.Trajectory(messages_and_choices=[asked, answer], reward=1.0)
    await model.log([trajectory], split="val", step=2)
    calls, rows = tmp_path / "calls.jsonl", tmp_path / "rows.jsonl"
    done = run_art("export-logs", "games/agent@2", "--output", calls, "--data-dir", tmp_path)
    assert done.exit_code == 0 and done.output == f"rollouts in {calls}: 1\n"
    (told,) = rows_of(calls)
    assert told["tags"]["reward"] == "1.0" and told["output"]["choices"][0]["message"] == answer
    assert run_art("import", calls, "--output", rows).exit_code == 0
    assert rows_of(rows) == [{"messages": [asked, answer]}]
    done = run_art(
        "export-logs", "games/agent", "--split", "train", "--output", calls, "--data-dir", tmp_path
    )
    assert done.exit_code == 2 and "val 2" in done.stderr


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE = {
    "array.json": f"[{DEEP}]".encode(),
    "object.json": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "line.jsonl": b'{"a": 1}\n' + DEEP.encode() + b"\n",
    "no.jsonl.gz": b"{}",
    "cut.jsonl.gz": gzip.compress(b'{"a": 1}\n' * 1000)[:-12],
    "changed.jsonl.gz": gzip.compress(json.dumps(list(range(9999))).encode())[:-900] + b"x" * 900,
    "bomb.jsonl.gz": gzip.compress(b" " * (80 << 20), 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_log_holds_is_left_out_by_name(tmp_path: Path, name: str) -> None:
    """Beside it a good log, of which everything is read."""
    hostile, good = tmp_path / name, write_calls(tmp_path / "calls.jsonl")
    hostile.write_bytes(HOSTILE[name])
    done = run_art("import", good, hostile, "--output", tmp_path / "rows.jsonl", "--format", "openpipe")
    assert done.exit_code == 1 and done.exception.__class__ is SystemExit, done.output
    assert "left out" in done.stderr and str(hostile) in done.stderr
    assert len(rows_of(tmp_path / "rows.jsonl")) == 2


def test_a_text_that_is_deep_json_is_a_text(tmp_path: Path) -> None:
    deep = {"request": {"messages": DEEP}, "response": {"choices": []}}
    log = write_calls(tmp_path / "calls.jsonl", json.dumps(deep))
    done = run_art("import", log, "--output", tmp_path / "rows.jsonl", "--format", "openpipe")
    assert done.exit_code == 0, done.output
    assert len(rows_of(tmp_path / "rows.jsonl")) == 2
