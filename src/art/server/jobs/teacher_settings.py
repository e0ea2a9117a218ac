"""Which endpoints may be asked as a teacher, and how patiently. Times in seconds."""

from __future__ import annotations

from pydantic import Field

from art.wire.strict import Strict


class TeacherSettings(Strict):
    """A training job names its teacher's URL: one on this machine, or one of those listed here."""

    urls: list[str] = Field(default_factory=list)
    """Endpoints such as "https://teacher.example.org/v1". The key is sent to these alone."""
    key: str | None = Field(default=None, repr=False)
    concurrency: int = Field(default=8, ge=1)
    """Requests at once."""
    request: float = Field(default=300.0, gt=0)
    """Deadline of one request."""
    total: float = Field(default=3600.0, gt=0)
    """Deadline of a whole batch."""
    attempts: int = Field(default=5, ge=1)
    """How often a request is tried when the teacher is full (429), fails (5xx) or does not answer."""
    retry_wait: float = Field(default=1.0, ge=0)
    """Before the second attempt; doubles from then on, unless the teacher says how long."""
