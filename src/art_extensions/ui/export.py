"""Writes the pages as files that open without a server, from a folder, an attachment or a static host.

Each page is asked of the application once, from the list of runs on, link by link. Names of files are the
quoted names of addresses, so no name of a run leaves the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
from starlette.types import ASGIApp

from art.errors import ConfigurationError
from art.process.files import write_whole
from art_extensions.ui.access import POLICY

EXPORTED = "x-art-exported"
"""The header of a request for a page that is to be kept: its lists have all their rows."""
_LINK = re.compile(r'\b(href|src|action|data-run|data-picker)="(/[^"]*)"')
_LEFT_OUT = re.compile(r"^/compare$|^/live(\.json)?$|/rollouts(\.json)?$|/version$|/metric\.json$")
"""Addresses that only a server can answer."""
_LONGEST = 120


def export_pages(app: ASGIApp, folder: Path) -> int:
    """Writes all pages into an empty or new folder. Returns how many there are.

    Raises: ConfigurationError when the folder has files, OSError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{str(folder)!r} is not an empty folder: name a new one")
    return asyncio.run(_export(app, folder))


async def _export(app: ASGIApp, folder: Path) -> int:
    transport = httpx.ASGITransport(app=app)
    waiting, known, pages = ["/"], {"/"}, 0
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        while waiting:
            address = waiting.pop()
            found = await client.get(address, headers={EXPORTED: "1"})
            body = found.content
            if found.headers["content-type"].startswith("text/html"):
                pages += 1
                links = [one for one in dict.fromkeys(_links(found.text)) if one not in known]
                waiting += links
                known.update(links)
                body = _relative(found.text, address).encode()
            write_whole(folder / file_name(address), body, mode=0o666, durable=False)
    return pages


def _links(page: str) -> Iterator[str]:
    """The addresses that a page leads to, of those that are kept."""
    for name, raw in _LINK.findall(page):
        address = html.unescape(raw).partition("#")[0]
        if name in ("href", "src") and not _LEFT_OUT.search(urlsplit(address).path):
            yield address


def file_name(address: str) -> str:
    """Returns the file of an address, relative to the folder.

    >>> file_name("/"), file_name("/runs/-/a/b"), file_name("/static/keys.js")
    ('index.html', 'runs/-/a/b/index.html', 'static/keys.js')
    """
    parts = urlsplit(address)
    names = [_safe(name) for name in parts.path.split("/") if name]
    if parts.query:
        return "/".join([*names, _safe(parts.query) + ".txt"])
    return "/".join(names) if names[:1] == ["static"] else "/".join([*names, "index.html"])


def _safe(name: str) -> str:
    """A name that every file system takes; dots alone are spelt out."""
    plain = quote(name, safe="%-_.~=&") if name.strip(".") else name.replace(".", "%2E")
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[:_LONGEST]}~{hashlib.sha256(plain.encode()).hexdigest()[:12]}"


def _relative(page: str, address: str) -> str:
    """The page with links from file to file, marked as kept, with its policy in it."""
    start = posixpath.dirname(file_name(address)) or "."

    def rewrite(found: re.Match[str]) -> str:
        name, target = found[1], html.unescape(found[2])
        path, hash_mark, place = target.partition("#")
        if _LEFT_OUT.search(urlsplit(path).path):
            return f'data-{name}-left-out=""'
        file = file_name(path) if name != "data-run" else posixpath.dirname(file_name(path))
        link = quote(posixpath.relpath(file, start), safe="/-_.~=&")
        return f'{name}="{html.escape(link + hash_mark + place)}"'

    policy = "; ".join(part for part in POLICY.split("; ") if not part.startswith("frame-ancestors"))
    page = _LINK.sub(rewrite, page).replace('<html lang="en">', '<html lang="en" data-exported="">', 1)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}', 1)
