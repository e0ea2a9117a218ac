from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType

import pytest

from art.tracking.progress import ProgressBar, open_progress


@pytest.fixture
def notebook(monkeypatch):
    """As in a notebook's kernel: its modules are loaded, its stderr is no terminal."""
    for name in ("ipykernel", "ipywidgets"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)


def test_nobody_watches_a_pipe(capsys):
    with open_progress("train", 2) as progress:
        progress.advance(2, {})
    assert not isinstance(progress, ProgressBar) and not capsys.readouterr().err


def test_a_notebook_is_watched(notebook, capsys):
    with open_progress("train", 2) as progress:
        progress.advance(2, {"reward": 0.5})
    assert isinstance(progress, ProgressBar) and "reward=0.5" in capsys.readouterr().err


def test_no_description_no_bar_in_a_notebook_too(notebook, capsys):
    with open_progress(None, 2) as progress:
        progress.advance(2, {})
    assert not isinstance(progress, ProgressBar)
