"""Each public method of the real tinker SDK's clients at a real `art tinker`: it does what
`docs/reference/tinker.md` says of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from method_table import PAGE, tables, written
from tinker_fixtures import TORCH, run_program, started
from tinker_service import with_sdk

pytestmark = with_sdk
CLIENTS = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HUB_OFFLINE", "1")  # an unknown model is looked for nowhere else
        with started(tmp_path_factory.mktemp("tinker")) as service:
            return run_program(service, "every_method.py", TORCH)


def test_every_method_has_a_check(told: list[dict[str, Any]]) -> None:
    assert [one["method"] for one in told if one["outcome"] in ("no check", "gone")] == []


def test_no_check_fails(told: list[dict[str, Any]]) -> None:
    assert [one for one in told if one["outcome"] == "fails"] == []


@pytest.mark.parametrize("part", [*CLIENTS, "errors"])
def test_the_page_says_what_happens(told: list[dict[str, Any]], part: str) -> None:
    assert written(Path(PAGE).read_text(encoding="utf-8"), part) == tables(told)[part]
