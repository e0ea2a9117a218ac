"""What the name of a GGUF file means."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from art.engine.base_models import is_file_name, resolve_base
from art.errors import ConfigurationError
from art_extensions.gguf.cache import converted_name, digest_of, file_here, find_converted
from art_extensions.gguf.names import PACKAGED, hub_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_a_gguf_file_has_one_name_however_it_is_written(file: Path) -> None:
    found = resolve_base("model.gguf")
    assert found == resolve_base("./model.gguf") == resolve_base(str(file)) == resolve_base(str(file.parent))
    assert found.made_by == "gguf" and found.source == found.name == str(file) and found.label == "model.gguf"
    small = resolve_base("model.gguf#4bit")
    assert small.bits == 4 and small.source == str(file) and small.name == f"{file}#4bit"


def test_a_folder_of_transformers_stays_one_with_a_gguf_file_in_it(file: Path) -> None:
    (file.parent / "config.json").write_text("{}")
    found = resolve_base(str(file.parent))
    assert found.made_by is None and found.source == str(file.parent)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("other.gguf", "there is no file"),
        ("hf://owner/model.gguf", "write hf://OWNER/REPOSITORY/FILE.gguf"),
        ("hf://owner/repo/../../x.gguf", "write hf://"),
        ("hf://owner/repo/model.bin", "write hf://"),
        ("hf://owner/repo/m-00001-of-00003.gguf", "one of 3 parts"),
        ("art/smolm2", "did you mean 'art/smollm2'"),
    ],
)
def test_a_wrong_name_is_refused_with_the_remedy(file: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        resolve_base(name)


def test_of_several_files_in_a_folder_one_must_be_named(file: Path) -> None:
    (file.parent / "other.GGUF").write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"2 GGUF files: name one of them.*model\.gguf, other\.GGUF"):
        resolve_base(str(file.parent))


def test_a_part_of_a_model_is_refused(file: Path) -> None:
    part = file.rename(file.with_name("m-00001-of-00002.gguf"))
    with pytest.raises(ConfigurationError, match="one of 2 parts: join them"):
        resolve_base(str(part))


def test_a_file_of_the_hub_is_named_by_repository_and_path() -> None:
    assert hub_file("hf://owner/repo/q4/model.gguf") == ("owner/repo", "q4/model.gguf")
    assert resolve_base("hf://owner/repo/q4/model.gguf").made_by == "gguf"


def test_a_folder_is_found_by_the_content_of_the_file(file: Path) -> None:
    assert find_converted(str(file)) is None
    folder = file.parent / "home/.cache/art/gguf" / converted_name(digest_of(file))
    folder.mkdir(parents=True)
    assert find_converted(str(file)) == folder
    copy = file.rename(file.with_name("renamed.gguf"))
    assert find_converted(str(copy)) == folder
    copy.write_bytes(b"GGUF, another one")
    assert find_converted(str(copy)) is None


def test_the_packaged_file_is_found_without_its_packages_code(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = PACKAGED["art/smollm2"]
    place = file.parent / "site" / package.module
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise ImportError('the package was imported')")
    file.rename(place / package.file)
    monkeypatch.syspath_prepend(str(place.parent))
    assert file_here("art/smollm2") == place / package.file
    monkeypatch.setitem(sys.modules, package.module, ModuleType(package.module))  # a stand-in has no files
    assert file_here("art/smollm2") is None


def test_a_path_of_a_file_is_known_as_one_whether_or_not_it_is_there() -> None:
    assert is_file_name("nothing/here.GGUF")
    assert not is_file_name("owner/name")
