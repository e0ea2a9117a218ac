"""`POST /api/v1/sessions/search`: the sessions of a key that a search matches, newest first, page by page."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from art_extensions.tinker.records import Asked
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.store import Run, SavedCheckpoint, Tables, TinkerSession

NO_PROJECT = "default"
"""What a session without a project has."""


class CursorAsked(Asked):
    last_created_at: AwareDatetime
    last_session_id: str


class OwnerAsked(Asked):
    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: list[str] | None = None


class StatusAsked(Asked):
    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: list[str] | None = None


class SearchAsked(Asked):
    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = Field(default_factory=dict)
    display_name: str | None = None
    owner: OwnerAsked = OwnerAsked()
    statuses: list[StatusAsked] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: CursorAsked | None = None


def search_sessions(tables: Tables, owner: str, asked: SearchAsked) -> dict[str, Any]:
    """Returns a page. A key sees its own sessions, so `accessible` is `own`. Raises RequestError."""
    if asked.owner.type == "user":
        raise refusal("sessions of other owners cannot be searched: each key sees its own", param="owner")
    found = [one for one in tables.select(TinkerSession, owner=owner) if _matches(one, asked)]
    found.sort(key=_place, reverse=True)
    if asked.cursor is not None:
        last = (asked.cursor.last_created_at.timestamp(), asked.cursor.last_session_id)
        found = [one for one in found if _place(one) < last]
    page = found[: asked.limit]
    sessions = {one.run_id: one.session_id for one in tables.select(Run, owner=owner)}
    saved = Counter(sessions.get(one.run_id) for one in tables.select(SavedCheckpoint, owner=owner))
    cursor = None
    if len(found) > len(page):
        cursor = {"last_created_at": _time(page[-1]), "last_session_id": page[-1].session_id}
    summaries = [_summary(one, saved[one.session_id]) for one in page]
    return {"sessions": summaries, "next_cursor": cursor}


def _matches(session: TinkerSession, asked: SearchAsked) -> bool:
    if asked.session_id is not None or asked.display_name is not None:
        name = (session.display_name or "").lower()
        named = asked.display_name is not None and all(
            word in name for word in asked.display_name.lower().split()
        )
        if not named and session.session_id != asked.session_id:
            return False
    if asked.project_ids is not None and (session.project_id or NO_PROJECT) not in asked.project_ids:
        return False
    if any(session.metadata.get(name) != value for name, value in asked.user_metadata.items()):
        return False
    return asked.statuses is None or any(_has(session, status) for status in asked.statuses)


def _has(session: TinkerSession, status: StatusAsked) -> bool:
    known = _status(session)
    if known is None or known["type"] != status.type:
        return False
    return status.reasons is None or session.ended in status.reasons


def _status(session: TinkerSession) -> dict[str, Any] | None:
    """Returns None for a session that ended because its client was not heard."""
    if session.ended is None:
        return {"type": "active"}
    if session.ended == "expired":
        return None
    return {"type": "client_finished", "reason": {"type": session.ended}, "detail": session.detail}


def _summary(session: TinkerSession, checkpoints: int) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "created_at": _time(session),
        "owner": session.owner,
        "project_id": session.project_id or NO_PROJECT,
        "status": _status(session),
        "checkpoints_count": checkpoints,
        "display_name": session.display_name,
        "user_metadata": {name: str(value) for name, value in session.metadata.items()},
    }


def _place(session: TinkerSession) -> tuple[float, str]:
    """Times are told in microseconds, so they are compared in them."""
    return datetime.fromisoformat(_time(session)).timestamp(), session.session_id


def _time(session: TinkerSession) -> str:
    return datetime.fromtimestamp(session.created_at, UTC).isoformat()
