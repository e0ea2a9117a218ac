from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import art
from art.errors import DeadlineError, UnreadableFileError
from art.tracking import model_files as state
from art.tracking.folders import lock_folder


def test_what_the_log_keeps_is_neither_seen_nor_lost(tmp_path):
    assert state.read_state(tmp_path) is None
    with lock_folder(tmp_path):
        state.write_sums(tmp_path, {"cum_state": {"costs/cum/all": 1.0}})
    assert state.read_state(tmp_path) is None  # the program has written nothing yet
    state.overwrite_state(tmp_path, {})
    assert state.merge_state(tmp_path, {"a": {"x": 1}}) == {"a": {"x": 1}}
    state.overwrite_state(tmp_path, {"b": 2})
    assert state.read_state(tmp_path) == {"b": 2}
    assert state.read_sums(tmp_path) == {"cum_state": {"costs/cum/all": 1.0}}
    restored = {"b": 3, state.METRIC_SUMS: {"cum_state": {}}}
    state.overwrite_state(tmp_path, restored)  # a state of another folder, as it stood in its file
    assert json.loads((tmp_path / "state.json").read_text()) == restored


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]"])
def test_a_state_that_is_damaged_is_named_with_the_remedy(tmp_path, content):
    """A power cut leaves files of no bytes."""
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(UnreadableFileError, match=r"state\.json (is no JSON .* move it away|holds no JSON)"):
        state.read_state(tmp_path)


@pytest.mark.slow
def test_writers_at_the_same_time_lose_nothing(tmp_path):
    program = "import sys; from pathlib import Path; from art.tracking.model_files import merge_state\n"
    program += "for i in range(20): merge_state(Path(sys.argv[1]), {f'other{i}': i})"
    other = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=os.getcwd())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: state.merge_state(tmp_path, {f"own{i}": i}), range(20)))
    assert other.wait(timeout=240) == 0
    expected = {f"{who}{i}": i for who in ("own", "other") for i in range(20)}
    assert state.read_state(tmp_path) == expected


def test_a_lock_that_is_never_given_back_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "_PATIENCE_S", 0.05)
    with lock_folder(tmp_path), pytest.raises(DeadlineError, match="another process has been writing"):
        state.merge_state(tmp_path, {"a": 1})
    assert state.merge_state(tmp_path, {"a": 1}) == {"a": 1}


async def test_a_model_can_be_sent_to_another_process(tmp_path):
    model = art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=[])
    await model.log(metrics={"costs/gpu": 1}, step=0)
    sent = pickle.loads(pickle.dumps(model))  # noqa: S301  # as multiprocessing does
    await sent.log(metrics={"costs/gpu": 1}, step=1)
    rows = (Path(model._get_output_dir()) / "history.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["costs/cum/gpu"] == 2
