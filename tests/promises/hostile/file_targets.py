"""Targets: files that somebody else wrote, each read by what reads it in the product."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import typer
from places import Place

from art.errors import ARTError
from art.process.foreign_files import open_foreign, parse_json, read_lines

JOINT = b"\n==8<==\n"
"""Between the two files of one input."""


def each(*reads: Callable[[], object]) -> list[object]:
    """Returns what all readers return. Raises the first refusal, but not before the others had their turn."""
    found, refused = [], None
    for read in reads:
        try:
            found.append(read())
        except ARTError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return found


def json_text(content: bytes, place: Place) -> object:
    return parse_json(content)


def packed_lines(content: bytes, place: Place) -> object:
    with open_foreign(place.file("log.jsonl.gz", content)) as file:
        return sum(len(line or b"") for _, line in read_lines(file))


def trajectory_lines(content: bytes, place: Place) -> object:
    from art.tracking import trajectory_lines

    return trajectory_lines.read_lines(place.file("0001.jsonl", content))


def trajectory_parquet(content: bytes, place: Place) -> object:
    from art.tracking.trajectory_log import read_parquet

    return read_parquet(place.file("0001.parquet", content))


def history(content: bytes, place: Place) -> object:
    from art.tracking.model_files import best_step, read_history

    path = place.file("history.jsonl", content)
    return list(read_history(path)), best_step(path, "train/reward")


def state(content: bytes, place: Place) -> object:
    from art.tracking.model_files import read_state, read_sums

    place.file("state.json", content)
    return read_state(place.folder), read_sums(place.folder)


def rollout_record(content: bytes, place: Place) -> object:
    from art.tracking.model_files import ModelPaths
    from art.tracking.step_record import read_rollouts

    path = ModelPaths(place.folder).rollouts(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return read_rollouts(place.folder, 1)


def token_table(content: bytes, place: Place) -> object:
    from art.tracking.step_record import read_tokens

    found = read_tokens(place.file("tokens.safetensors", content))
    return found and [found.of_sample(sample) for sample in found.header.samples]


def imported_log(content: bytes, place: Place) -> object:
    from art_extensions.logs.request_logs import LogImport

    path = place.file("log.jsonl", content)
    made = [list(LogImport([path], to=to).rows()) for to in ("sft", "scenarios")]
    return made


def examples(content: bytes, place: Place) -> object:
    from art_extensions.sft_data.datasets import iterate_file

    files = [place.file(f"rows.{kind}", content) for kind in ("jsonl", "json")]
    return each(*(lambda file=file: list(iterate_file(file)) for file in files))  # type: ignore[misc]


def examples_parquet(content: bytes, place: Place) -> object:
    from art_extensions.sft_data.datasets import iterate_file

    return list(iterate_file(place.file("rows.parquet", content)))


def preferences(content: bytes, place: Place) -> object:
    from art_extensions.preferences.pairs import pair_conversations, read_pairs

    pairs = read_pairs(place.file("pairs.jsonl", content))
    return [pair_conversations(number, pair) for number, pair in enumerate(pairs)]


def labelled(content: bytes, place: Place) -> object:
    from art_extensions.preferences.pairs import read_labelled, reply_conversation

    replies = read_labelled(place.file("labelled.jsonl", content))
    return [reply_conversation(number, reply) for number, reply in enumerate(replies)]


def config(content: bytes, place: Place) -> object:
    from art.cli.config_file import read_options

    def command(steps: int = 1, model: str = "", tag: list[str] | None = None, dry: bool = False) -> None:
        """Takes options."""

    app = typer.Typer()
    app.command()(command)
    parameters: Any = typer.main.get_command(app).params
    return read_options(place.file("run.yaml", content), parameters)


def atif(content: bytes, place: Place) -> object:
    from art_extensions.atif.documents import check_document, from_atif, sft_rows

    document = parse_json(content)
    check_document(document)
    return list(sft_rows(document)), from_atif(document)


def harbor_task(content: bytes, place: Place) -> object:
    from art_extensions.harbor.task_folders import HarborTask

    place.file("instruction.md", b"Do it.")
    place.file("tests/test.sh", b"true")
    place.file("task.toml", content)
    return HarborTask.read(place.folder)


def harbor_registry(content: bytes, place: Place) -> object:
    from art_extensions.harbor.task_folders import find_tasks

    return find_tasks("small@1", place.file("registry.json", content))


def dockerfile(content: bytes, place: Place) -> object:
    from art_extensions.harbor.dockerfile import read_build

    place.file("Dockerfile", content)
    return read_build(place.folder)


def gguf(content: bytes, place: Place) -> object:
    from art_extensions.gguf.header import read_config, read_header

    header = read_header(place.file("model.gguf", content))
    return read_config(header), header.memory_needed


def adapter(content: bytes, place: Place) -> object:
    """The two files of an adapter: from a folder that a program registers, and as the engine loads it."""
    from art.engine.builtin.peft_folder import read_adapter
    from art.server.checkpoints.checkpoints import read_shape
    from art.server.checkpoints.registered_models import base_of_adapter

    settings, _, tensors = content.partition(JOINT)
    place.file("adapter_config.json", settings)
    place.file("adapter_model.safetensors", tensors)
    readers = (base_of_adapter, read_shape, read_adapter)
    return each(*(partial(read, place.folder) for read in readers))


def adapter_for_vllm(content: bytes, place: Place) -> object:
    from art_extensions.vllm.adapters import check_folder
    from art_extensions.vllm.options import VllmOptions

    settings, _, tensors = content.partition(JOINT)
    place.file("adapter_config.json", settings)
    place.file("adapter_model.safetensors", tensors)
    check_folder(place.folder, VllmOptions())
    return None


def pulled_weights(content: bytes, place: Place) -> object:
    from art_extensions.buckets.bucket_pull import check_safetensors

    check_safetensors(place.file("adapter_model.safetensors", content))
    return None


def checkpoint(content: bytes, place: Place) -> object:
    """State and manifest of a checkpoint that is adopted, forked or carried on."""
    from art.server.checkpoints.checkpoints import Checkpoints, manifest_of, read_shape

    place.empty("checkpoints")
    kept = Checkpoints(place.folder / "checkpoints")
    folder = kept.path(3)
    folder.mkdir(parents=True)
    state, _, manifest = content.partition(JOINT)
    (folder / "trainer_state.json").write_bytes(state)
    (folder / "manifest.json").write_bytes(manifest)
    return each(partial(read_shape, folder), partial(manifest_of, kept, 3), partial(kept.carry_forward, 3))


def scenarios(content: bytes, place: Place) -> object:
    from art_extensions.evaluation.checkpoint_scores import read_scenarios

    files = [place.file(f"s.{kind}", content) for kind in ("jsonl", "json")]
    return each(*(partial(read_scenarios, str(file)) for file in files))


def mcp_scenarios(content: bytes, place: Place) -> object:
    from art_extensions.scenarios.mcp_commands import read_scenarios_file

    return read_scenarios_file(place.file("scenarios.json", content))


def autorl_inputs(content: bytes, place: Place) -> object:
    from art_extensions.scenarios.autorl_command import read_inputs

    files = [place.file(f"inputs.{kind}", content) for kind in ("txt", "json")]
    return each(*(partial(read_inputs, file) for file in files))


def cassette(content: bytes, place: Place) -> object:
    from art_extensions.scenarios.mcp.cassette import Cassette

    return Cassette(place.file("tape.jsonl", content), mode="replay").offer


def environment_rows(content: bytes, place: Place) -> object:
    from art_extensions.environments.dataset_rows import read_rows

    kind = "json" if content.lstrip().startswith(b"[") else "jsonl"
    return read_rows("skyrl-gym:x", place.file(f"rows.{kind}", content))


def verifiers_results(content: bytes, place: Place) -> object:
    from art_extensions.environments.verifiers import sft_rows

    return sft_rows(place.file("results.jsonl", content))


def judge_record(content: bytes, place: Place) -> object:
    from art_extensions.judge_checks.judge_record import JudgeRecord

    return JudgeRecord(4, place.file("record.jsonl", content), judge="judge").mean("mean")


def compact_dump(content: bytes, place: Place) -> object:
    from art_extensions.token_views.compact import compact_validate_json

    return compact_validate_json(content)


def tokenizer_files(content: bytes, place: Place) -> object:
    """The configuration of a base model's tokenizer, with its template; the vocabulary is sound."""
    from chat_folder import write_chat_folder

    from art.rendering.registry import create_chat_renderer

    folder = write_chat_folder(place.folder / "tiny")
    settings, _, ends = content.partition(JOINT)
    (folder / "tokenizer_config.json").write_bytes(settings)
    (folder / "generation_config.json").write_bytes(ends)
    return create_chat_renderer(folder, name="tiny")


def run_pages(content: bytes, place: Place) -> object:
    """History, record of the rollouts and trajectories of a run: its pages answer, whatever is in them."""
    from art_extensions.ui.app import RunPages

    place.empty("data")
    folder = place.folder / "data" / "games" / "models" / "player"
    parts = content.split(JOINT)
    for name, part in zip(RUN_FILES, parts, strict=False):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(part)
    pages = RunPages(place.folder / "data")
    try:
        return asyncio.run(_show(pages.app()))
    finally:
        pages.reader.close()


RUN_FILES = ("history.jsonl", "steps/0001/rollouts.jsonl", "trajectories/train/0001.jsonl")
RUN_PAGES = ("", "/rollouts", "/rollouts.json", "/costs", "/version")
STEP_PAGES = ("/train/1", "/train/1/0", "/train/1/0/0", "/train/1/0/0/text?turn=0")


async def _show(app: Any) -> list[int]:
    """Returns the status of each page. Raises whatever a page raises."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pages") as client:
        pages = (RUN_PAGE + page for page in (*RUN_PAGES, *STEP_PAGES))
        replies = [await client.get(path) for path in ("/", "/live", *pages)]
    assert all(reply.status_code < 500 for reply in replies), [reply.text[:500] for reply in replies]
    return [reply.status_code for reply in replies]


RUN_PAGE = "/runs/-/games/player"
