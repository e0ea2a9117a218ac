"""The folder of a run of AutoRL: with what was prepared for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from art.autorl.inputs import Inputs
from art.runs.folder import RunFolder

INPUTS, SYSTEM_PROMPT, RUBRIC = "inputs.json", "system_prompt.txt", "rubric.txt"
PREPARED = (INPUTS, SYSTEM_PROMPT, RUBRIC)


@dataclass(frozen=True)
class AutoRLFolder(RunFolder):
    """Texts may be edited before the training begins; `digests` says which ones it began with."""

    def inputs(self) -> Inputs | None:
        """The inputs, once there are any."""
        data = self.read(INPUTS)
        return None if data is None else Inputs.from_dict(data)

    def save_inputs(self, inputs: Inputs) -> None:
        self.write(INPUTS, inputs.to_dict())

    def text(self, name: str) -> str | None:
        """The system prompt or the rubric, once it is there."""
        path = self.path / name
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None

    def save_text(self, name: str, text: str) -> None:
        self.write_text(name, text + "\n")

    def digests(self) -> dict[str, str]:
        """By file: the first 12 digits of the sha256 of what was prepared."""
        return {name: hashlib.sha256((self.path / name).read_bytes()).hexdigest()[:12] for name in PREPARED}
