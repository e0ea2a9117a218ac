"""`art serve` as a process, several of them over one data folder and one database."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from homes import Home
from private_postgres import PASSWORD, free_port

from waiting import DEADLINE_S, eventually

KEY = "key-of-these-tests"


class ArtServers:
    """One serves at `port`, another waits there for its turn; gateways have ports of their own."""

    def __init__(self, home: Home) -> None:
        self.home, self.port = home, free_port()
        home.folder.mkdir(exist_ok=True)
        self.log = home.folder / "servers.log"
        self.log.touch()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, port: int | None = None) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("art")), "serve", *options]
        words = ["--port", str(self.port if port is None else port), "--data-dir", str(self.home.folder)]
        assert self.home.url is not None
        database = ["--database", self.home.url.replace(f":{PASSWORD}", "")]
        environment = {**os.environ, "PGPASSWORD": PASSWORD, "ART_API_KEY": KEY}
        with self.log.open("ab") as log:
            child = subprocess.Popen([*command, *words, *database], env=environment, stdout=log, stderr=log)
        self.running.append(child)
        return child

    def count(self, text: str) -> int:
        return len(re.findall(text, self.log.read_text()))

    async def wait_for(self, text: str, count: int) -> None:
        await asyncio.to_thread(eventually, lambda: self.count(text) == count)

    def urls(self) -> list[str]:
        """The addresses that serve; that of the controller first."""
        found = re.findall(r"ART serves (http://\S+)", self.log.read_text())
        return sorted(dict.fromkeys(found), key=lambda url: not url.endswith(f":{self.port}"))

    def stop(self) -> None:
        for child in self.running:
            child.kill()
            child.wait(DEADLINE_S)
