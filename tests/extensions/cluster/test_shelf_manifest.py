"""A folder's digest: the same for the same content, another for any other; manifests from strangers."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shelves import write_folder

from art.errors import StorageError
from art.wire.models import Manifest, ManifestEntry
from art_extensions.cluster.folder_manifest import (
    FileDigests,
    canonical_json,
    check_manifest,
    digest_of_manifest,
    find_damage,
    list_files,
    open_beneath,
    read_manifest,
)

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=20).filter(
    lambda part: part not in (".", "..")
)
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
FOLDERS = st.dictionaries(NAMES, st.binary(max_size=50), min_size=1, max_size=6).filter(
    lambda files: not any(other.startswith(name + "/") for name in files for other in files)
)
QUICKLY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@QUICKLY
@given(FOLDERS)
def test_the_digest_is_of_the_content_alone(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        write_folder(Path(one), files)
        write_folder(Path(two), dict(reversed(files.items())))
        Path(two, "an empty folder").mkdir(exist_ok=True)
        manifest = FileDigests().manifest(Path(one))
        assert manifest.files.keys() == files.keys()
        assert digest_of_manifest(manifest) == digest_of_manifest(FileDigests().manifest(Path(two)))
        assert read_manifest(canonical_json(manifest), digest_of_manifest(manifest)) == manifest
        assert find_damage(Path(one), manifest) is None


@pytest.mark.slow
@QUICKLY
@given(FOLDERS, st.data())
def test_any_change_changes_the_digest_and_is_found(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    content = files[name]
    changed = data.draw(st.binary(max_size=50).filter(lambda other: other != content))
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), files)
        manifest = FileDigests().manifest(Path(folder))
        Path(folder, name).write_bytes(changed)
        assert digest_of_manifest(FileDigests().manifest(Path(folder))) != digest_of_manifest(manifest)
        assert name in (find_damage(Path(folder), manifest) or "")


EVIL = [
    "", ".", "..", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b", "\ud800",
    "x" * 256, "/".join(["x" * 200] * 6),
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    manifest = Manifest.model_construct(files={name: ManifestEntry(sha256="0" * 64, size=0)})
    with pytest.raises(StorageError, match="which is no path in a folder"):
        check_manifest(manifest)


@given(st.text(max_size=30))
def test_a_name_that_is_accepted_stays_in_the_folder(name: str) -> None:
    try:
        check_manifest(Manifest.model_construct(files={name: ManifestEntry(sha256="0" * 64, size=0)}))
    except StorageError:
        return
    assert Path("/folder", name).is_relative_to("/folder") and ".." not in Path(name).parts
    assert Path(os.path.normpath(f"/folder/{name}")) == Path("/folder", name) != Path("/folder")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "cannot be read"),
        (b'{"files":{}}', "names 0 files"),
        (b'{"files":{"a":{"sha256":"00","size":1}}}', "impossible digest or size"),
        (b'{"files":{"a":{"sha256":"%s","size":-1}}}' % (b"0" * 64), "impossible digest or size"),
        (b'{"files":{"a":{"sha256":"%s","size":1}}}' % (b"0" * 64), "has the digest"),
        (b'{"files":{"../a":{"sha256":"%s","size":1}}}' % (b"0" * 64), "no path in a folder"),
        (
            b'{"files":{"a":{"sha256":"%s","size":1},"a/b":{"sha256":"%s","size":1}}}' % ((b"0" * 64,) * 2),
            "'a', which is no path",
        ),
        (b" " * (5 << 20), "at most"),
    ],
)
def test_a_manifest_of_a_stranger_is_checked(content: bytes, told: str) -> None:
    with pytest.raises(StorageError, match=told):
        read_manifest(content, "0" * 64)


def test_too_many_files_are_refused() -> None:
    files = {f"f{number}": {"sha256": "0" * 64, "size": 0} for number in range(10_001)}
    with pytest.raises(StorageError, match="10001 files"):
        read_manifest(json.dumps({"files": files}).encode(), "0" * 64)


def test_links_count_only_where_they_may(tmp_path: Path) -> None:
    """A base model in the hub's cache is links to files; a checkpoint has none."""
    blob = write_folder(tmp_path / "blobs", {"b1": b"weights"}) / "b1"
    folder = write_folder(tmp_path / "snapshot", {"config.json": b"{}"})
    (folder / "model.safetensors").symlink_to(blob)
    with pytest.raises(StorageError, match=r"model.safetensors is no plain file: remove it"):
        list_files(folder)
    followed = FileDigests().manifest(folder, follow_links=True)
    plain = write_folder(tmp_path / "plain", {"config.json": b"{}", "model.safetensors": b"weights"})
    assert digest_of_manifest(followed) == digest_of_manifest(FileDigests().manifest(plain))
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="is no plain file"):
        list_files(folder, follow_links=True)
    os.mkfifo(plain / "pipe")
    with pytest.raises(StorageError, match="is no plain file"):
        list_files(plain)
    with pytest.raises(StorageError, match="is no folder"):
        list_files(tmp_path / "nothing")


def test_no_link_on_the_way_is_opened(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", {"sub/a": b"a"})
    secret = write_folder(tmp_path / "secret", {"a": b"secret"})
    os.close(open_beneath(folder, "sub/a"))
    (folder / "sub" / "a").unlink()
    (folder / "sub" / "a").symlink_to(secret / "a")
    with pytest.raises(OSError):
        open_beneath(folder, "sub/a")
    os.close(open_beneath(folder, "sub/a", follow_links=True))
    (folder / "sub").rename(folder / "old")
    (folder / "sub").symlink_to(secret)
    with pytest.raises(OSError):
        open_beneath(folder, "sub/a", follow_links=True)
