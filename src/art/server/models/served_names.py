"""What a served model is called: bare where that is unambiguous among one's own, else with its project."""

from __future__ import annotations

from art.errors import NotFoundError
from art.server.tenants.tenancy import Tenant, inside, outside, tenant_of

Key = tuple[str, str]
"""Project, as it is inside, and name."""


_STEP = ":step"


class ServedNames:
    """The names of the served models, by whose they are."""

    def __init__(self) -> None:
        self._projects: dict[tuple[Tenant, str], list[str]] = {}

    def add(self, project: str, name: str) -> None:
        self._projects.setdefault((tenant_of(project), name), []).append(project)

    def remove(self, project: str, name: str) -> None:
        spelled = tenant_of(project), name
        self._projects[spelled].remove(project)
        if not self._projects[spelled]:
            del self._projects[spelled]

    def shown(self, project: str, name: str, tenant: Tenant = None) -> str:
        """What this asker sends as `model`. The model need not be served yet."""
        own = tenant_of(project) == tenant
        if own and self._projects.get((tenant, name)) in (None, [project]):
            return name
        return f"{outside(tenant, project)}/{name}"

    def find(self, asked: str, tenant: Tenant) -> tuple[Key, int | None] | None:
        """The model, and the step if one is named; None when it is not served to this asker.

        Raises NotFoundError for a bare name that is in several projects.
        """
        plain, step = _split(asked)
        projects = self._projects.get((tenant, plain))
        if projects:
            if len(projects) > 1:
                choices = ", ".join(f"{outside(tenant, project)}/{plain}" for project in projects)
                raise NotFoundError(
                    f"model {asked!r} is in several projects; ask for one of: {choices}",
                    status=404,
                    code="model_not_found",
                )
            return (projects[0], plain), step
        spelled, slash, name = plain.partition("/")
        project = inside(tenant, spelled)
        if slash and project in self._projects.get((tenant_of(project), name), ()):
            return (project, name), step
        return None


def at_step(asked: str) -> str:
    """The name in our own spelling: upstream's servers call `name@3` `name:step3`."""
    plain, mark, digits = asked.rpartition(_STEP)
    return f"{plain}@{digits}" if mark and digits.isdigit() and "@" not in plain else asked


def _split(asked: str) -> tuple[str, int | None]:
    plain, at, digits = at_step(asked).rpartition("@")
    if at and digits.isascii() and digits.isdigit() and len(digits) <= 12:
        return plain, int(digits)
    return asked, None
