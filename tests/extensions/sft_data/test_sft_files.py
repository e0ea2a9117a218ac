"""Files of rows for supervised training, and the chunks of a run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import polars
import pytest

from art.errors import ConfigurationError
from art.utils.sft import create_sft_dataset_iterator, get_file_row_count, iterate_file

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")

ASKED = {"role": "user", "content": "2 + 2?"}
TOLD = {"role": "assistant", "content": "4"}


def test_the_chunks_of_a_run_take_rows() -> None:
    rows = [{"messages": [ASKED, TOLD], "id": 7}, {"prompt": "2 + 2?", "completion": "4"}]
    (chunk,) = create_sft_dataset_iterator(rows, batch_size=100, show_progress=False)
    assert [one.messages_and_choices for one in chunk.trajectories] == [[ASKED, TOLD]] * 2


def test_files_of_each_kind_have_the_same_rows(tmp_path: Path) -> None:
    rows = [{"messages": [ASKED, {**TOLD, "content": str(n)}]} for n in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "b.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    polars.DataFrame(rows).write_parquet(tmp_path / "d.parquet")
    for path in sorted(tmp_path.iterdir()):
        read = list(iterate_file(path, shuffle_buffer_size=1))
        assert get_file_row_count(path) == 3
        assert [{"messages": one.messages_and_choices} for one in read] == rows, path


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", "[{}, ]", r"a\.json is not valid JSON"),
        ("b.json", '[{"messages": [], "x": 1}]', r"b\.json, row 0: the last message is of role None"),
        ("c.json", '{"text": "once"}', r"c\.json, line 1 has the keys 'text'"),
    ],
)
def test_a_bad_row_of_a_file_is_told_with_its_place(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        list(iterate_file(tmp_path / name))


def test_columns_that_are_filled_up_with_nulls(tmp_path: Path) -> None:
    """Parquet gives every message the keys of all."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = [ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "4"}, TOLD]
    polars.DataFrame([{"messages": said}, {"messages": [ASKED, TOLD]}]).write_parquet(tmp_path / "d.parquet")
    first, second = iterate_file(tmp_path / "d.parquet", shuffle_buffer_size=1)
    assert first.messages_and_choices == [*said[:2], {**said[2], "tool_call_id": "c"}, TOLD]
    assert second.messages_and_choices == [ASKED, TOLD]


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(MISSING, reason=f"no {PYTHON.parents[1].name}: `make .venv-frameworks/.installed`")
def test_a_dataset_of_the_real_library(tmp_path: Path) -> None:
    """The environment has pyarrow and no polars: its Parquet file is read by the one that is there."""
    program = Path(__file__).parent / "programs" / "datasets_rows.py"
    done = subprocess.run(
        [str(PYTHON), str(program), str(tmp_path / "data.parquet")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    talk, short = [[ASKED, TOLD], [{**ASKED, "content": "a"}, {**TOLD, "content": "b"}]]
    assert told["rows"] == [talk, short] == told["parquet"]
    assert told["stream"] == told["chunk"] == told["rows"]
    assert told["map"] == [short]
    assert "a DatasetDict holds splits: give one of them, such as data['train']" in told["splits"]
    assert "a Table gives its columns: give its rows, data.to_pylist()" in told["table"]
    assert 'a DataFrame gives its columns: give its rows, data.to_dict("records")' in told["pandas"]
