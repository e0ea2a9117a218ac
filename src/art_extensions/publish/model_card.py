"""The model card of an export: what was trained on what, its reward curve, its settings, and how to load it.

All facts but the task's words come from the files of the project. The reward curve is a table, and a picture
where matplotlib is installed.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

from art.errors import CheckpointError, is_installed
from art.process.imports import import_lock
from art.tracking.folders import NamedModel
from art.tracking.model_files import read_history, read_json
from art.wire.models import ADAPTER_CONFIG_FILE, JOB_FILE, STATE_FILE
from art.wire.records import split_bits

BUILT_IN = "art/"
CURVE_ROWS = 21
CURVE_METRICS = ("train/reward", "val/reward")
CURVE_FILE = "reward_curve.png"
HUB_S = 10.0
"""How long the hub may take to tell a license."""
_LICENSE = re.compile(r"^license:\s*(\S+)\s*$", re.M)
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """The facts that a project's files tell of one checkpoint."""

    project: str
    name: str
    step: int
    base_model: str
    license: str | None
    """The base model's license; None: not known."""
    lora: dict[str, Any] | None
    """The settings of the LoRA adapter; None: all weights were trained."""
    settings: dict[str, Any]
    """The resolved settings of the last training job."""
    task: str | None = None
    """What the model was trained to do, in the words of its owner."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """One row a step, with `step` and means of the metrics of `CURVE_METRICS` that were logged."""
    chat_template: str | None = None

    @property
    def base_name(self) -> str:
        """The base without the path of a folder, which means nothing elsewhere."""
        return self.base_model if not self.is_folder else Path(self.base_model).name

    @property
    def is_folder(self) -> bool:
        return Path(self.base_model).is_absolute()


def read_facts(
    model: NamedModel, step: int, *, license: str | None = None, task: str | None = None
) -> CardFacts:
    """Raises CheckpointError when the checkpoint names no base model."""
    checkpoint = model.files.checkpoints / f"{step:04d}"
    state = read_json(checkpoint / STATE_FILE) or {}
    adapter = read_json(checkpoint / ADAPTER_CONFIG_FILE)
    registration = read_json(model.files.path / "registration.json") or {}
    named = (
        state.get("base_model"),
        (adapter or {}).get("base_model_name_or_path"),
        registration.get("base_model"),
    )
    base = next(filter(None, named), None)
    if base is None:
        raise CheckpointError(
            f"{checkpoint} names no base model: {STATE_FILE} and {ADAPTER_CONFIG_FILE} are missing"
        )
    base, bits = split_bits(base)
    job = (read_json(checkpoint / JOB_FILE) or {}).get("job_id")
    trained = {} if job is None else job_settings(model.files.path.parents[2], job)
    trained = trained or ({"optimizer": state["optimizer"]} if state.get("optimizer") else {})
    return CardFacts(
        project=model.project,
        name=model.name,
        step=step,
        base_model=base,
        license=license or known_license(base),
        lora=lora_of(state, adapter),
        settings={"base_bits": bits if bits < 16 else None, "seed": registration.get("seed"), **trained},
        task=task,
        curve=read_curve(model.files.history, step),
        chat_template=registration.get("chat_template"),
    )


def lora_of(state: Mapping[str, Any], adapter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns rank, alpha and so on, from the trainer's state, or from PEFT's file of another program."""
    if state.get("lora") is not None or adapter is None:
        return state.get("lora")
    names = {"r": "r", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "targets"}
    return {ours: adapter.get(theirs) for theirs, ours in names.items()}


def job_settings(data_dir: Path, job_id: str) -> dict[str, Any]:
    """Returns the settings of a training job, as resolved; empty where the table of jobs is not here."""
    table = data_dir / "server" / "jobs.sqlite"
    if not table.is_file():
        return {}
    try:
        with closing(sqlite3.connect(f"{table.absolute().as_uri()}?mode=ro", uri=True)) as jobs:
            row = jobs.execute("SELECT request FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    except sqlite3.Error as error:
        _log.warning("%s cannot be read, so the card lacks the job's settings: %s", table, error)
        return {}
    request: dict[str, Any] = json.loads(row[0]) if row else {}
    names = ("algorithm", "optimizer", "rate", "learning_rates", "batch_size")
    return {name: request[name] for name in names if request.get(name) is not None}


def read_curve(history: Path, last: int) -> list[dict[str, float]]:
    """Returns the means of the metrics of each step up to the last."""
    found: dict[int, dict[str, list[float]]] = {}
    for row in read_history(history):
        for metric in CURVE_METRICS:
            if metric in row and int(row["step"]) <= last:
                found.setdefault(int(row["step"]), {}).setdefault(metric, []).append(float(row[metric]))
    return [
        {"step": step, **{metric: fmean(values) for metric, values in found[step].items()}}
        for step in sorted(found)
    ]


def known_license(base: str) -> str | None:
    """Returns the license of a base model as the files on this machine tell it, or None."""
    if base.startswith(BUILT_IN):
        return "apache-2.0"  # they are part of this package
    card = Path(base) / "README.md" if Path(base).is_dir() else cached_card(base)
    if card is None or not card.is_file():
        return None
    front = _FRONT.match(card.read_text(encoding="utf-8", errors="replace"))
    said = _LICENSE.search(front[1]) if front else None
    return said[1].strip("'\"") if said else None


def cached_card(base: str) -> Path | None:
    """Returns the base's card in the hub's cache on this machine."""
    if not is_installed("huggingface_hub") or not _HUB_NAME.fullmatch(base):
        return None
    with import_lock:
        from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(base, "README.md")
    return Path(found) if isinstance(found, str) else None


def ask_license(facts: CardFacts) -> CardFacts:
    """Returns the facts with the license that the hub names; without one where it does not answer."""
    if not _HUB_NAME.fullmatch(facts.base_model):
        return facts
    import httpx

    with import_lock:
        from huggingface_hub import HfApi

    try:
        card = HfApi(library_name="art").model_info(facts.base_model, timeout=HUB_S).card_data
    except (httpx.HTTPError, OSError, ValueError) as error:
        _log.warning("the hub tells no license of %s: %s", facts.base_model, error)
        return facts
    license = None if card is None else card.get("license")
    return replace(facts, license=license if isinstance(license, str) else None)


def model_card(facts: CardFacts, format: str, where: str, *, picture: bool = False) -> str:
    """Returns the text of README.md, with the header that the hub reads. where: a repository or folder.
    picture: whether `CURVE_FILE` is beside it.
    """
    training = "supervised fine-tuning" if "batch_size" in facts.settings else "reinforcement learning"
    parts = [
        front_matter(facts, format),
        f"# {facts.name}\n",
        f"`{facts.project}/{facts.name}`, step {facts.step}, trained with ART (Agent Reinforcement Trainer) "
        f"by {training} from **{facts.base_name}**.\n",
        base_text(facts),
        *([f"## Task\n\n{facts.task}\n"] if facts.task else []),
        f"## How to load it\n\n{loading(facts, format, where)}",
        "## Rewards\n",
        *([f"![Mean reward by step]({CURVE_FILE})\n"] if picture else []),
        curve_table(facts.curve),
        f"## Settings\n\n{settings_text(facts)}",
    ]
    return "\n".join(parts)


def front_matter(facts: CardFacts, format: str) -> str:
    """Returns the header in YAML. Values are JSON, which is YAML too."""
    header: dict[str, Any] = {}
    if facts.license is not None:
        header["license"] = facts.license
    if _HUB_NAME.fullmatch(facts.base_model) and not facts.base_model.startswith(BUILT_IN):
        header["base_model"] = facts.base_model
        header["base_model_relation"] = "adapter" if format == "peft" else "finetune"
    header["library_name"] = {"peft": "peft", "merged": "transformers", "gguf": "gguf"}[format]
    header["pipeline_tag"] = "text-generation"
    header["tags"] = ["art", "reinforcement-learning", *(["lora"] if facts.lora is not None else [])]
    lines = [f"{name}: {json.dumps(value)}" for name, value in header.items()]
    return "\n".join(["---", *lines, "---", ""])


def base_text(facts: CardFacts) -> str:
    """Returns what is known of the base model."""
    license = facts.license or "not known here: see the base model's own card"
    lines = [f"- Base model: `{facts.base_name}`", f"- License of the base model: {license}"]
    if facts.base_model.startswith(BUILT_IN):
        lines.append(
            "- The base comes with the Python package `agent-reinforcement-trainer`: "
            f'`art.engine.base_models.local_folder("{facts.base_model}")` is its folder.'
        )
    return "\n".join(lines) + "\n"


def loading(facts: CardFacts, format: str, where: str) -> str:
    """Returns programs and commands that load the export."""
    if format == "gguf":
        return f"```sh\nllama-cli --model {facts.name}.gguf --jinja\n```\n"
    ask = (
        'messages = [{"role": "user", "content": "Hello."}]\n'
        "inputs = tokenizer.apply_chat_template(\n"
        '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"\n'
        ")\n"
        "reply = model.generate(**inputs, max_new_tokens=64)\n"
        'print(tokenizer.decode(reply[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))\n'
    )
    if format == "merged":
        return (
            "With transformers:\n\n```python\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{where}")\n'
            f'model = AutoModelForCausalLM.from_pretrained("{where}")\n{ask}```\n\n'
            f"With vLLM:\n\n```sh\nvllm serve {quote(where)}\n```\n"
        )
    base, rank = facts.base_name, (facts.lora or {}).get("r")
    imports, source = "", f'"{base}"'
    if facts.base_model.startswith(BUILT_IN):
        imports, source = "from art.engine.base_models import local_folder\n", f'local_folder("{base}")'
        base = "FOLDER_OF_THE_BASE"
    return (
        f"With PEFT:\n\n```python\n{imports}from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{where}")\n'
        f"base = AutoModelForCausalLM.from_pretrained({source})\n"
        f'model = PeftModel.from_pretrained(base, "{where}")\n{ask}```\n\n'
        f"With vLLM:\n\n```sh\nvllm serve {base} --enable-lora --max-lora-rank {rank} "
        f"--lora-modules {quote(f'{facts.name}={where}')}\n```\n"
    )


def draw_curve(curve: Sequence[Mapping[str, float]], folder: Path) -> bool:
    """Draws the picture of the card where matplotlib is installed and two steps have rewards. Returns whether
    it is there.
    """
    if len(curve) < 2 or not is_installed("matplotlib"):
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name in CURVE_METRICS:
        rows = [row for row in curve if name in row]
        if rows:
            axes.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".", label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / CURVE_FILE, dpi=120)
    return True


def curve_table(curve: Sequence[Mapping[str, float]]) -> str:
    """Returns at most `CURVE_ROWS` steps, the first and the last among them."""
    if not curve:
        return "No rewards were logged.\n"
    metrics = [name for name in CURVE_METRICS if any(name in row for row in curve)]
    most = CURVE_ROWS - 1
    places = (
        range(len(curve))
        if len(curve) <= CURVE_ROWS
        else [round(index * (len(curve) - 1) / most) for index in range(CURVE_ROWS)]
    )
    lines = [f"| step | {' | '.join(metrics)} |", f"|---|{'---|' * len(metrics)}"]
    for place in places:
        row = curve[place]
        cells = [f"{row[name]:.3f}" if name in row else "" for name in metrics]
        lines.append(f"| {row['step']:.0f} | {' | '.join(cells)} |")
    return "\n".join(["Mean reward of the rollouts of a step:", "", *lines, ""])


def settings_text(facts: CardFacts) -> str:
    """Returns the settings as JSON, as they were resolved."""
    adapter = {"trained": "all weights"} if facts.lora is None else {"lora": facts.lora}
    known = {name: value for name, value in {**adapter, **facts.settings}.items() if value is not None}
    return f"As resolved for step {facts.step}:\n\n```json\n{json.dumps(known, indent=2)}\n```\n"
