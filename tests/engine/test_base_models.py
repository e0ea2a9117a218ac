"""What the name of a base model means, without what extensions add."""

from __future__ import annotations

from pathlib import Path

import pytest

from art.engine import base_models
from art.engine.base_models import resolve_base
from art.errors import ConfigurationError


def test_a_folder_has_one_name_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_base("model") == resolve_base("./model/") == resolve_base(str(folder))
    assert resolve_base("model").name == str(folder)


@pytest.mark.parametrize("name", ["weights.bin", "hf://owner/repository/weights.bin"])
def test_a_file_that_no_extension_reads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"0")
    monkeypatch.setattr(base_models, "model_sources", dict)
    with pytest.raises(ConfigurationError, match=r"is one file, and a model is a folder.*none is installed"):
        resolve_base(name)


def test_an_unknown_name_of_ours_is_refused_with_the_closest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'art/nano-words'"):
        resolve_base("art/nano-word")
