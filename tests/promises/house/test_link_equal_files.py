"""Environments of the tests store a file once, and stay apart."""

from pathlib import Path

import link_equal_files

LARGE = b"x" * link_equal_files.SMALLEST


def test_equal_files_are_stored_once_and_a_replaced_one_leaves_the_other(tmp_path: Path) -> None:
    store = tmp_path / "files"
    for name in ("first", "second"):
        folder = tmp_path / name / "library"
        folder.mkdir(parents=True)
        (folder / "large.so").write_bytes(LARGE)
        (folder / "small.py").write_bytes(b"x")
        (folder / "program").write_bytes(LARGE)
        (folder / "program").chmod(0o755)
    assert link_equal_files.link_equal_files(tmp_path / "first", store) == 0
    assert link_equal_files.link_equal_files(tmp_path / "second", store) == 2 * len(LARGE)
    first, second = tmp_path / "first" / "library", tmp_path / "second" / "library"
    assert (first / "large.so").samefile(second / "large.so")
    assert not (first / "small.py").samefile(second / "small.py")
    assert (second / "program").stat().st_mode & 0o777 == 0o755
    assert not (second / "program").samefile(second / "large.so")
    (second / "large.so").unlink()
    (second / "large.so").write_bytes(b"newer")
    assert (first / "large.so").read_bytes() == LARGE
    assert link_equal_files.link_equal_files(tmp_path / "second", store) == 0
