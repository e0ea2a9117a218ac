"""A replay whose temporary folder cannot be written says so, by the name of that error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from art.errors import ConfigurationError, DiskError

pytestmark = [pytest.mark.slow, pytest.mark.extension]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_closed_disk_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from art_extensions.replay.replayed_step import _temporary_folder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = "the disk is full" if number == errno.ENOSPC else "cannot be written"
    with pytest.raises(DiskError, match=rf"could not be done again .*{tmp_path}.* {said}|{said}.*{tmp_path}"):
        with _temporary_folder() as folder:
            raise OSError(number, os.strerror(number), str(folder / "checkpoints"))
    assert not list(tmp_path.iterdir())


def test_other_errors_keep_their_names() -> None:
    from art_extensions.replay.replayed_step import _temporary_folder

    missing = FileNotFoundError(errno.ENOENT, "no", "missing")
    for error in (ConfigurationError("no"), missing, ValueError("no")):
        with pytest.raises(type(error)) as raised, _temporary_folder():
            raise error
        assert raised.value is error
