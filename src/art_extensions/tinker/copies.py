"""`POST /api/v1/copy_weights`: saved weights once more, under a path and with a time to live of their own.

A copy is a row that names the same step. The step's files stay until no row names it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import uuid4

from art.errors import NotFoundError
from art_extensions.tinker.records import CopyWeights
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.runs import require_open
from art_extensions.tinker.saved_weights import find_own, save_path, stored_until
from art_extensions.tinker.store import COPY, Run, SavedCheckpoint, Tables, TinkerSession, now


def copy_weights(tables: Tables, owner: str, asked: CopyWeights, idempotency_key: str | None) -> str:
    """Returns the path of the copy: the same for the same idempotency key, or the same place of a session.

    It is in a run that holds it alone, of the session that is named, or of a new one, which has ended.

    Raises NotFoundError, and RequestError: for a session that has ended, a wrong time to live, a run that is
    there already, and weights of another key.
    """
    if asked.weights_access_token is not None:
        raise refusal("weights_access_token is not supported: copy with the key that the weights are of")
    source = find_own(tables, asked.source_path, owner)
    origin = tables.find(Run, run_id=source.run_id)
    if origin is None:
        raise NotFoundError(f"the run of {asked.source_path!r} is gone", status=404)
    run = _run_of_copy(tables, origin, asked, idempotency_key)
    known = tables.find(Run, run_id=run.run_id)
    path = save_path(run.run_id, source.kind, source.name)
    if known is not None and tables.find(SavedCheckpoint, path=path, owner=owner) is None:
        raise refusal(f"{run.run_id} is there already: take another model_seq_id", param="model_seq_id")
    tables.add(run)
    until = stored_until(asked.ttl_seconds)
    copy = replace(source, path=path, run_id=run.run_id, created_at=now(), expires_at=until, public=False)
    tables.add(copy)
    return path


def _run_of_copy(tables: Tables, origin: Run, asked: CopyWeights, idempotency_key: str | None) -> Run:
    if asked.session_id is not None:
        session_id, number = (
            require_open(tables, asked.session_id, origin.owner).session_id,
            asked.model_seq_id,
        )
        if number is None:
            raise refusal("copy_weights with session_id needs model_seq_id", param="model_seq_id")
    else:
        number = 0
        session_id = str(uuid4())
        if idempotency_key:
            session_id = hashlib.sha256(f"{origin.owner} {idempotency_key}".encode()).hexdigest()[:32]
        tables.add(_session(session_id, origin.owner, asked.destination_project_id))
    run_id = f"{session_id}:train:{number}"
    return replace(
        origin,
        run_id=run_id,
        session_id=session_id,
        name=f"{session_id}-{number}",
        created_at=now(),
        used_at=now(),
        next_seq=COPY,
    )


def _session(session_id: str, owner: str, project_id: str | None) -> TinkerSession:
    return TinkerSession(
        session_id=session_id,
        owner=owner,
        created_at=now(),
        seen_at=now(),
        ended="success",
        detail="holds a copy of weights",
        project_id=project_id,
        metadata={},
    )
