"""Weights to begin with or to sample from, by their paths: those that a program saved, and checkpoints of
ART's own models.

    tinker://SESSION:train:N/weights/NAME          saved by a program of this key
    tinker://art:PROJECT:MODEL/weights/STEP        a step of a model that ART trained

The server itself keeps the models of tenants apart: a path reaches those that its key reaches there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from art.errors import NotFoundError
from art.wire.models import ADAPTER_CONFIG_FILE
from art.wire.records import NAME_PATTERN
from art.wire.training import LoraSpec
from art_extensions.tinker.art_server import PROJECT, ArtServer
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.saved_weights import find_usable
from art_extensions.tinker.store import Run, TinkerStore

ART = "art:"
"""The beginning of what takes a run's place in the path of a model of ART's own."""
_MODEL = re.compile(rf"{ART}({NAME_PATTERN}):({NAME_PATTERN})")
_PATH = re.compile(rf"tinker://({_MODEL.pattern})/(?:weights|sampler_weights)/([0-9]{{1,9}})")


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsSource:
    """A checkpoint of this server."""

    path: str
    project: str
    model: str
    step: int
    base_model: str
    lora: Mapping[str, Any]
    """The fields of a `LoraSpec`."""


def is_art_path(path: str) -> bool:
    """Returns whether it names a model of ART's own."""
    return path.startswith(f"tinker://{ART}")


def art_model(run_id: str) -> tuple[str, str] | None:
    """The project and the name of `art:PROJECT:MODEL`; None for what is the id of a run.

    Raises RequestError for what only begins so.
    """
    if not run_id.startswith(ART):
        return None
    found = _MODEL.fullmatch(run_id)
    if found is None:
        raise refusal(f"{run_id!r} is not of the form {ART}PROJECT:MODEL")
    return found[1], found[2]


def art_step(path: str) -> tuple[str, str, int]:
    """The project, the model and the step of a path. Raises RequestError for another form."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise refusal(f"{path!r} is no path of the form tinker://{ART}PROJECT:MODEL/weights/STEP")
    return found[2], found[3], int(found[4])


async def find_source(store: TinkerStore, server: ArtServer, path: str, owner: str) -> WeightsSource:
    """The weights at a path, for their owner, whose server it is.

    Raises RequestError (no such path, weights of another key, no adapter), NotFoundError, and what the server
    refuses with.
    """
    if is_art_path(path):
        return await _find_art(server, path)
    saved = await store.run(lambda tables: find_usable(tables, path, owner))
    run = await store.run(lambda tables: tables.find(Run, run_id=saved.run_id))
    return WeightsSource(
        path=path,
        project=PROJECT,
        model=saved.model,
        step=saved.step,
        base_model="" if run is None else run.base_model,
        lora={} if run is None else run.lora,
    )


async def _find_art(server: ArtServer, path: str) -> WeightsSource:
    project, name, step = art_step(path)
    info = await server.model(project, name)
    if step not in info.checkpoints:
        raise NotFoundError(
            f"{path!r}: model {project}/{name} has no step {step}; its steps: {info.checkpoints}", status=404
        )
    files = (await server.files(name, step, project)).files
    if ADAPTER_CONFIG_FILE not in files:
        raise refusal(
            f"{path!r} has no adapter: all weights of {project}/{name} are trained, this API's are LoRA"
        )
    config = await server.file(name, step, ADAPTER_CONFIG_FILE, project)
    return WeightsSource(
        path=path,
        project=project,
        model=name,
        step=step,
        base_model=info.base_model,
        lora=_lora(path, config),
    )


def _lora(path: str, config: bytes) -> Mapping[str, Any]:
    """The shape of an adapter. Its targets stay open: the server reads them from the tensors."""
    try:
        stored = json.loads(config)
        spec = LoraSpec(
            r=stored["r"],
            alpha=stored["lora_alpha"],
            dropout=stored.get("lora_dropout") or 0.0,
            use_rslora=bool(stored.get("use_rslora")),
        )
    except (ValueError, TypeError, KeyError, ValidationError) as error:
        raise refusal(f"{path!r}: {ADAPTER_CONFIG_FILE} says no LoRA: {error!r}") from error
    return spec.model_dump()
