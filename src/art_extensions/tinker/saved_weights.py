"""Saved weights by their paths: tinker://RUN/weights/NAME to train on, .../sampler_weights/NAME to sample,
.../external_weights/NAME to download.
"""

from __future__ import annotations

import re

from art.errors import NotFoundError
from art.wire.models import Manifest
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.store import Sampler, SavedCheckpoint, Tables, now

EXTERNAL = "external_weights"
KINDS = {"weights": "training", "sampler_weights": "sampler", EXTERNAL: "external"}
"""The middle of a path -> Tinker's word for it."""
KEPT_SAMPLERS = 8
"""A run's newest samplers without a name, whose steps stay."""
_TRAINERS = ("manifest.json", "optimizer.safetensors", "trainer_state.json")
"""The files of a step that only a trainer reads."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PATH = re.compile(rf"tinker://([A-Za-z0-9:-]{{1,200}})/(\w+)/({_NAME.pattern})")


def save_path(run_id: str, kind: str, name: str) -> str:
    """The path of a name. Raises RequestError for one that could be no file's."""
    if not _NAME.fullmatch(name):
        raise refusal(
            f"{name!r} cannot be a checkpoint's name: use up to 200 letters, digits, '.', '_' and '-'",
            param="path",
        )
    return f"tinker://{run_id}/{kind}/{name}"


def find_weights(tables: Tables, path: str, owner: str) -> SavedCheckpoint:
    """Saved weights of an owner, or published ones. Raises RequestError (no path), NotFoundError."""
    if _PATH.fullmatch(path) is None:
        raise refusal(f"{path!r} is no path of the form tinker://RUN/weights/NAME")
    found = tables.find(SavedCheckpoint, path=path)
    if found is None or not (found.owner == owner or found.public) or is_over(found):
        raise NotFoundError(f"there are no weights at {path!r} for this key", status=404)
    return found


def find_sampler(tables: Tables, sampler_id: str | None, owner: str) -> Sampler:
    """The sampler of an owner. Raises NotFoundError."""
    found = tables.find(Sampler, sampler_id=sampler_id, owner=owner)
    if found is None:
        raise NotFoundError(f"no sampling session {sampler_id!r} of this key", status=404)
    return found


def find_own(tables: Tables, path: str, owner: str) -> SavedCheckpoint:
    """`find_weights`, for what needs their bytes. Raises RequestError for those of another key, too: the
    server keeps the models of each key apart.
    """
    found = find_weights(tables, path, owner)
    if found.owner != owner:
        raise refusal(f"{path!r} is published, but here only the key that it is of can load or copy weights")
    return found


def find_usable(tables: Tables, path: str, owner: str) -> SavedCheckpoint:
    """`find_own`, to train on or to sample from. Raises RequestError for external ones, too."""
    found = find_own(tables, path, owner)
    if found.kind == EXTERNAL:
        raise refusal(f"{path!r} is external: its files can be downloaded, not loaded here")
    return found


def adapter_files(manifest: Manifest) -> dict[str, int]:
    """The files of the adapter among those of a step, and their sizes."""
    return {name: one.size for name, one in manifest.files.items() if name not in _TRAINERS}


def is_over(saved: SavedCheckpoint) -> bool:
    """Returns whether its time to live has passed."""
    return saved.expires_at is not None and saved.expires_at <= now()


def stored_until(ttl_seconds: int | None) -> float | None:
    """Unix seconds; None: for ever. Raises RequestError for a time that is none."""
    if ttl_seconds is None:
        return None
    if ttl_seconds <= 0:
        raise refusal(f"ttl_seconds={ttl_seconds} is no time to live", param="ttl_seconds")
    return now() + ttl_seconds


def keep_saved_steps(tables: Tables, model: str) -> list[int]:
    """The steps of a model that saved weights or its newest samplers without a name still need."""
    saved = {one.step for one in tables.select(SavedCheckpoint, model=model) if not is_over(one)}
    return sorted(saved | tables.newest_sampled(model, KEPT_SAMPLERS))


def model_of(asked: str) -> str:
    """The name of the model in what a server is asked for: `NAME@STEP`, or with its project before."""
    return asked.partition("@")[0].rpartition("/")[2]
