"""Messages of the real tinker SDK, in an environment of its own (`make test-all` makes it)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tinker_service import PYTHON, ROOT, with_sdk

PROGRAM = Path(__file__).parent / "programs" / "tinker_messages.py"

pytestmark = with_sdk


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    variables = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [str(PYTHON), str(PROGRAM)], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_each_field_is_the_same_on_the_wire(found: dict[str, Any]) -> None:
    assert found["differing_fields"] == []


def test_its_request_is_read(found: dict[str, Any]) -> None:
    config = {"clip_low_threshold": 0.75, "clip_high_threshold": 1.5}
    columns = {
        "advantages": [0.0, 1.0, -1.0],
        "logprobs": [0.0, -1.5, -2.0],
        "sequence_ratio_mask": [0.0, 1.0, 1.0],
    }
    assert found["dense"]["call"] == ["m1", 3, "gspo", False, config]
    assert found["dense"]["data"] == [[[5, 6, 7], [6, 9, 8], columns]] * 2


def test_its_compressed_request_is_read(found: dict[str, Any]) -> None:
    assert found["packed"]["data"] == found["dense"]["data"]
    assert found["packed"]["call"][3] is True


def test_its_sparse_tensors_are_read(found: dict[str, Any]) -> None:
    (one,) = found["sparse"]["data"]
    assert one == [[5, 6], [[9, 0, 8], [0, 7, 0]], {"weights": [[0.25, 0.0, 0.75], [0.0, -1.0, 0.0]]}]


def test_it_reads_the_result(found: dict[str, Any]) -> None:
    assert found["returned"] == {
        "type": "scalar",
        "metrics": {"loss:sum": 2.5},
        "logprobs": [["float32", [2, 3], [[0.0, -1.0, -2.0], [-3.0, -4.0, -5.0]]]],
    }


def test_it_reads_samples(found: dict[str, Any]) -> None:
    assert found["sampled"] == {
        "sequence": [[7, 8], [-0.5, -1.0], "length", [[[7, -0.5]], None]],
        "prompt": [None, -2.0],
        "top": [None, [[3, -0.5], [4, -1.0]], [[5, -0.25]]],
        "targets": [[-0.5, -1.5], [2, 3], [0, 1, 2], [2, 0]],
        "alternatives": [[[9, 8]], [[-3.0, -4.0]]],
        "cached": 4,
        "first_is_nan": True,
    }
