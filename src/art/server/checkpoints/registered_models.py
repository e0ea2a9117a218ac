"""The registered models, one small file each: the base, the shape of the adapter, the checkpoints."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from art.engine.base_models import is_folder
from art.errors import CheckpointError, ConfigurationError, NotFoundError, RequestError
from art.process.files import flush, make_private_folder, write_whole
from art.process.foreign_files import parse_json, read_foreign
from art.server.checkpoints.checkpoints import Checkpoints, leaves_open
from art.server.data_folder import DataLayout
from art.wire.models import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    ModelInfo,
    ModelSummary,
    RegisterRequest,
)
from art.wire.records import Strict
from art.wire.training import LoraSpec


def adapter_folder(name: str) -> Path | None:
    """The folder, where a base model's name is that of a LoRA to begin with and not of a whole model."""
    if not is_folder(name):
        return None
    folder = Path(name).expanduser()
    if not (folder / ADAPTER_CONFIG_FILE).is_file() or (folder / "config.json").is_file():
        return None
    return folder.resolve()


def base_of_adapter(folder: Path) -> str:
    """The base model that a LoRA's `adapter_config.json` names.

    Raises ConfigurationError when it names none, or the folder holds no weights in safetensors.
    """
    if not (folder / ADAPTER_FILE).is_file():
        raise ConfigurationError(
            f"the LoRA {folder} has no {ADAPTER_FILE}: save it with safe_serialization=True"
        )
    try:
        name = parse_json(read_foreign(folder / ADAPTER_CONFIG_FILE))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{folder / ADAPTER_CONFIG_FILE} names no base model ({error!r:.99}): set base_model_name_or_path"
        ) from error
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"{folder / ADAPTER_CONFIG_FILE} has base_model_name_or_path {name!r}: set it to the base model"
        )
    beside = folder.parent / name
    return str(beside) if not is_folder(name) and beside.is_dir() else name


SERVING = (
    "max_context",
    "chat_template",
    "chat_template_kwargs",
    "special_tokens_in_text",
    "tool_format",
)
"""How a model is served: the newest registration says it."""


class Registration(Strict):
    """`registration.json`: written when the model is first registered, and when it is served otherwise."""

    project: str
    name: str
    base_model: str
    lora: LoraSpec | None
    """None: all weights are trained."""
    seed: int = 0
    max_context: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    special_tokens_in_text: Literal["text", "parse"] = "text"
    tool_format: Literal["auto", "template"] = "auto"
    removals: int = 0
    """How many models of this name were removed before: their adapters' names are not used again."""
    origin: str | None = None
    """`project/name@step` of the checkpoint that the model was forked from."""

    @property
    def key(self) -> str:
        """`project/name`: the model's name towards trainer and engine."""
        return f"{self.project}/{self.name}"


class RegisteredModels:
    """The registered models of a data folder."""

    def __init__(self, layout: DataLayout) -> None:
        self.layout = layout
        self._models: dict[tuple[str, str], Registration] = {}
        for path in layout.registration_files():
            found = _read(path)
            self._models[found.project, found.name] = found

    def list_models(self) -> list[Registration]:
        return [self._models[key] for key in sorted(self._models)]

    def find(self, project: str, name: str) -> Registration | None:
        """The model, or None when it is not registered here."""
        return self._models.get((project, name))

    def get(self, project: str, name: str) -> Registration:
        """Raises NotFoundError that says what to do."""
        found = self._models.get((project, name))
        if found is None:
            raise NotFoundError(
                f"model {project}/{name} is not registered here: call `await model.register(backend)`, or "
                "POST /art/models",
                status=404,
                code="model_not_found",
            )
        return found

    def register(self, request: RegisterRequest, base_model: str) -> Registration:
        """Remember a model; asking again with the same base and adapter shape is allowed.

        `base_model` is the resolved name. Raises RequestError: 400 for an unfit name, 409 for another base
        model or another adapter under the same name.
        """
        wanted = Registration(
            project=request.project,
            name=request.name,
            base_model=base_model,
            lora=request.lora,
            seed=request.seed,
            **{name: getattr(request, name) for name in SERVING},
            removals=_count(self.layout.removals_file(request.project, request.name)),
            origin=_text(self.layout.origin_file(request.project, request.name)),
        )
        path = self.layout.registration_file(request.project, request.name)
        known = self._models.get((request.project, request.name))
        if known is None:
            write_whole(path, wanted.model_dump_json(indent=2))
            self._models[request.project, request.name] = wanted
            return wanted
        for what in ("base_model", "lora"):
            old, new = getattr(known, what), getattr(wanted, what)
            if old != new and not (what == "lora" and leaves_open(old, new)):
                raise RequestError(
                    f"model {known.key} was registered with {what} {_shown(old)}, not {_shown(new)}; "
                    "use another name, or the same setting as before",
                    status=409,
                    code="model_conflict",
                    param=what,
                )
        return self._served_otherwise(known, wanted, path)

    def _served_otherwise(self, known: Registration, wanted: Registration, path: Path) -> Registration:
        changes = {
            name: getattr(wanted, name) for name in SERVING if getattr(known, name) != getattr(wanted, name)
        }
        if changes:
            known = known.model_copy(update=changes)
            write_whole(path, known.model_dump_json(indent=2))
            self._models[known.project, known.name] = known
        return known

    def note_origin(self, project: str, name: str, origin: str) -> None:
        """Keep where a model's first checkpoint was forked from, also of one that is registered later."""
        write_whole(self.layout.origin_file(project, name), origin)
        known = self._models.get((project, name))
        if known is not None and known.origin != origin:
            known = known.model_copy(update={"origin": origin})
            write_whole(self.layout.registration_file(project, name), known.model_dump_json(indent=2))
            self._models[project, name] = known

    def forget(self, model: Registration) -> Path | None:
        """The model is known no more. Returns the folder with what were its checkpoints, to be removed.

        The record of its steps goes with them, a client's files beside them stay. A crash in the middle
        leaves a model without checkpoints.
        """
        folder = self.layout.checkpoints_dir(model.project, model.name)
        doomed = self.layout.removed_dir(model.project, model.name)
        write_whole(self.layout.removals_file(model.project, model.name), str(model.removals + 1))
        self.layout.origin_file(model.project, model.name).unlink(missing_ok=True)
        if folder.exists():
            folder.rename(doomed)
        records = self.checkpoints(model).records
        if records.exists():
            make_private_folder(doomed)
            records.rename(doomed / records.name)
        self.layout.registration_file(model.project, model.name).unlink()
        flush(folder.parent)
        del self._models[model.project, model.name]
        return doomed if doomed.exists() else None

    def checkpoints(self, model: Registration) -> Checkpoints:
        return self.checkpoints_of(model.project, model.name)

    def checkpoints_of(self, project: str, name: str) -> Checkpoints:
        """Returns the checkpoints of a model that need not be registered. Raises RequestError (400) for an
        invalid name.
        """
        return Checkpoints(self.layout.checkpoints_dir(project, name))

    def describe(self, model: Registration, inference_name: str) -> ModelInfo:
        """Returns the description of a model that is served as `inference_name`."""
        checkpoints = self.checkpoints(model)
        steps = checkpoints.steps()
        return ModelInfo(
            project=model.project,
            name=model.name,
            base_model=model.base_model,
            inference_name=inference_name,
            step=max(steps, default=0),
            checkpoints=steps,
            checkpoint_dir=str(checkpoints.folder),
        )

    def summarize(self, info: ModelInfo) -> ModelSummary:
        """Adds what the checkpoints hold. Blocks for a few file operations a step."""
        checkpoints = self.checkpoints_of(info.project, info.name)
        size, made, rewards = 0, list[float](), dict[int, float]()
        for step in info.checkpoints:
            # One that is being deleted, or whose note is damaged, keeps no other from being told.
            with contextlib.suppress(FileNotFoundError, CheckpointError):
                folder = checkpoints.path(step)
                size += sum(file.stat().st_size for file in folder.iterdir())
                made.append(folder.stat().st_mtime)
                note = checkpoints.note(step)
                if note is not None and note.reward is not None:
                    rewards[step] = note.reward
        return ModelSummary(
            **info.model_dump(), rewards=rewards, size_bytes=size, updated_at=max(made, default=None)
        )


def _read(path: Path) -> Registration:
    try:
        return Registration.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); restore it, or move this one file away and register the model "
            "again as it was: its checkpoints stay"
        ) from error


def _count(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _shown(value: object) -> str:
    if value is None:
        return "null (all weights are trained)"
    return value.model_dump_json() if isinstance(value, LoraSpec) else repr(value)
