"""What each method of Tinker's SDK did, as the tables of `docs/reference/tinker.md`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tinker.md"
AS_THE_SERVICE = {
    "RestClient.get_audit_log": "it is for administrators",
    "RestClient.get_billing_usage": "it is for administrators",
    "RestClient.get_current_checkpoint_storage_usage": "it is for administrators",
    "RestClient.whoami": "it needs an account, not a plain key",
}
"""What the hosted service refuses to a plain key, too, and why."""
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}")
_AROUND = re.compile(r"^Request failed: | for self\.request_id=.*$", re.DOTALL)
_ERROR = "error: "
_MARK = "<!-- {} of {}: `python tests/extensions/tinker/make_method_table.py` -->"


def tables(told: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the table of each part: of a client by its name, and of "errors"."""
    parts: dict[str, list[str]] = {}
    seen = {one["method"]: one for one in told}
    for method, one in sorted(seen.items()):
        if method.startswith(_ERROR):
            said = _IDS.sub("ID", _AROUND.sub("", one["detail"]))
            row = f"| {method.removeprefix(_ERROR)} | `{one['outcome']}` | {_cell(said)} |"
            parts.setdefault("errors", ["| Request | Error | It says |", "|---|---|---|", row]).append(row)
            continue
        client, _, name = method.partition(".")
        if name.endswith("_async") and _outcome(one) == _outcome(seen.get(method.removesuffix("_async"))):
            continue
        other = seen.get(f"{method}_async")
        both = f"`{name}`, `{name}_async`" if _outcome(other) == _outcome(one) else f"`{name}`"
        row = f"| {both} | {_outcome(one)} |"
        parts.setdefault(client, ["| Method | Outcome |", "|---|---|", row]).append(row)
    return {part: "\n".join(rows[:2] + rows[3:]) for part, rows in parts.items()}


def _outcome(one: dict[str, Any] | None) -> str:
    if one is None:
        return "missing"
    if one["outcome"] != "refused":
        return f"{one['outcome']}: {_cell(one['detail'])}"
    if why := AS_THE_SERVICE.get(one["method"].removesuffix("_async")):
        return f"refused, as the service does: {why}"
    return f"refused, because {_cell(one['detail'].partition(': ')[2])}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def written(page: str, part: str) -> str:
    """The table of a part that stands in the page."""
    before, after = (_MARK.format(word, part) for word in ("Begin", "End"))
    return page.partition(before)[2].partition(after)[0].strip()


def replaced(page: str, part: str, table: str) -> str:
    """The page with another table for a part."""
    before, after = (_MARK.format(word, part) for word in ("Begin", "End"))
    assert before in page, f"no {before} in the page"
    head, tail = page.partition(before)[0], page.partition(after)[2]
    return f"{head}{before}\n{table}\n{after}{tail}"
