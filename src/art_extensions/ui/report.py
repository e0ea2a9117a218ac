"""`art report`: a file for a bug report, without keys, texts and names of people.

What is taken is listed (`_parts`), what is in it is redacted (`Redactor`), and how much of it is bounded. A
text of the run, which may say what only its owner should know, is replaced by its length.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from art.errors import ARTError, ConfigurationError
from art.extensions import INSTALLATION, load_extensions
from art.process.files import write_whole
from art.process.running_server import ADDRESS_FILE
from art.tracking.folders import ModelPaths
from art.tracking.model_files import read_history, read_json
from art.tracking.step_record import read_rollouts, recorded_steps
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.explain import explain_model, model_folder
from art_extensions.ui.run_files import RunFiles

MOST_BYTES = 2_000_000
"""The most bytes of one part, uncompressed: the file stays far below what issue trackers take."""
MOST_LINES, LONGEST_LINE, LONGEST_SETTING = 400, 400, 80
"""The most lines of a log, characters of its line, and of a setting: longer texts are left out."""
MOST_STEPS, MOST_JOBS, MOST_ROWS = 20, 50, 500
REMOVED = "[removed]"
AWS_LENGTH = 40

_FORMS = (
    ("private keys", re.compile(r"-----BEGIN [A-Z ]*KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.S)),
    ("passwords in URLs", re.compile(r"(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)")),
    ("headers", re.compile(r"\b(?:authorization|(?:set-)?cookie)[\"']?\s*[:=][^\n]+", re.I)),
    ("headers", re.compile(r"\b(?:bearer|basic)\s+[\w.~+/=-]{8,}", re.I)),
    ("keys", re.compile(r"\b(?:sk|pk|rk)[-_][\w-]{12,}|\b(?:hf|gh[a-z]|github_pat|gsk|pypi)_[\w-]{16,}")),
    ("keys", re.compile(r"\b(?:art|tml|wandb_v\d|lsv2|nvapi|r8|xai|api_org|glpat|xox[a-z])[-_][\w-]{20,}")),
    ("keys", re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}")),
    ("keys", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|\b[0-9a-f]{40}\b")),
    (
        "named keys",
        re.compile(
            r"((?:key|token|secret|passwd|password|passphrase|pwd|credential|signature)[\"']?\s*[:=]\s*[\"']?)"
            r"(?!none\b|null\b|true\b|false\b|\[removed\])[^\s\"',;&<>]{4,}",
            re.I,
        ),
    ),
)
"""What is removed wherever it stands, and what the summary calls it. A group is kept."""
_LONG_WORDS = (re.compile(r"[\w-]{24,}"), re.compile(rf"(?<![\w/+])[\w/+]{{{AWS_LENGTH}}}(?![\w/+=])"))
"""Words that may be keys of a form nobody has listed. AWS secrets are 40 characters with `/` and `+`."""
_KEY_NAMES = re.compile(
    r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|cookie)$", re.I
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_HOMES = re.compile(r"(?<![\w.])(/home/|/Users/|[A-Za-z]:\\Users\\)([^/\\\s\"':]+)")
_COMMON_NAMES = frozenset({"root", "user", "admin", "runner", "ubuntu", "debian", "jovyan", "nobody"})
"""Names of accounts that say nothing of a person, and which other words contain."""


def _looks_random(word: str) -> bool:
    """Returns whether small letters, large letters and digits change as often as they do in keys.

    In a random word 6 of 10 neighbours differ in kind, in the name of a model or a class 3 or 4 of 10. A word
    of the length of an AWS secret needs only letters of both kinds and digits.
    """
    kinds = ["A" if one.isupper() else "0" if one.isdigit() else "a" for one in word if one.isalnum()]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len(set(kinds)) == 3 and (len(word) == AWS_LENGTH or changes >= 0.45 * len(kinds))


@dataclass
class Redactor:
    """Removes keys, passwords, mail addresses, the home folder and names of people; counts what it removed.

    known: texts to replace wherever they stand, such as this server's key, and what stands for each.
    """

    known: Mapping[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_this_machine(cls, secrets: Iterable[str] = ()) -> Redactor:
        known = {secret: REMOVED for secret in secrets if len(secret) >= 6}
        known |= {str(Path.home()): "~", str(Path.home().resolve()): "~"}
        names = {platform.node(): "HOST"}
        with suppress(KeyError, OSError, ImportError):  # an account without a name
            names[getpass.getuser()] = "USER"
        known |= {name: word for name, word in names.items() if len(name) > 2 and name not in _COMMON_NAMES}
        return cls(dict(sorted(known.items(), key=lambda pair: -len(pair[0]))))

    def text(self, text: str) -> str:
        """Returns the text without them."""
        for known, word in self.known.items():
            if known not in ("", "/") and known in text:
                self.counts["keys of this server" if word == REMOVED else "names"] += 1
                text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])", word, text)
        for kind, form in _FORMS:
            text, count = form.subn(rf"\1{REMOVED}" if form.groups else REMOVED, text)
            self.counts[kind] += count
        for long_words in _LONG_WORDS:
            text = long_words.sub(self._without_long_word, text)
        text, count = _MAIL.subn("[mail]", text)
        self.counts["mail addresses"] += count
        text, count = _HOMES.subn(r"\1USER", text)
        self.counts["names"] += count
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """Returns a JSON value without them. name: under which it stands; a key's value is removed whole."""
        if isinstance(value, Mapping):
            return {self._name(str(key)): self.value(part, str(key)) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(part, name) for part in value]
        if not isinstance(value, str):
            return value
        if value and _KEY_NAMES.search(name):
            self.counts["named keys"] += 1
            return REMOVED
        return self.text(value)

    def _name(self, name: str) -> str:
        """The name of a value: the same ones stand in every row."""
        if name not in self._names:
            self._names[name] = self.text(name)
        return self._names[name]

    def _without_long_word(self, found: re.Match[str]) -> str:
        if not _looks_random(found[0]):
            return found[0]
        self.counts["words that look like keys"] += 1
        return REMOVED


@dataclass
class Bundle:
    """The parts of a report, each redacted and bounded when it is added."""

    redactor: Redactor
    parts: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @contextmanager
    def tried(self, name: str) -> Iterator[None]:
        """The block that adds a part; where it fails, the part is left out with the reason."""
        try:
            yield
        except (ARTError, OSError, ValueError, ArithmeticError) as error:
            self.left_out.append(self.redactor.text(f"{name}: {type(error).__name__}: {error}"))

    def add_value(self, name: str, value: Any) -> None:
        """Adds indented JSON."""
        self._add(name, json.dumps(self.redactor.value(value), indent=1, default=str).splitlines())

    def add_rows(self, name: str, rows: Iterable[Any]) -> None:
        """Adds a JSON value a line."""
        self._add(name, (json.dumps(self.redactor.value(row), default=str) for row in rows))

    def add_log(self, name: str, lines: Sequence[str]) -> None:
        """Adds the end of a log."""
        if len(lines) > MOST_LINES:
            self.left_out.append(f"{name}: {len(lines) - MOST_LINES} earlier lines")
        text = self.redactor.text("\n".join(lines[-MOST_LINES:]))
        self._add(name, (line[:LONGEST_LINE] for line in text.splitlines()))

    def _add(self, name: str, lines: Iterable[str]) -> None:
        """Adds lines; where they are too many, those of the beginning and more of the end."""
        encoded = [f"{line}\n".encode("utf-8", "backslashreplace") for line in lines]
        first = _fitting(encoded, MOST_BYTES // 10)
        last = _fitting(encoded[first:][::-1], MOST_BYTES - MOST_BYTES // 10)
        if dropped := len(encoded) - first - last:
            self.left_out.append(f"{name}: {dropped} lines in the middle, beyond {MOST_BYTES:,} bytes")
        self.parts[name] = b"".join(encoded[:first] + encoded[len(encoded) - last :])

    def packed(self) -> bytes:
        """Returns the zip file."""
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {"README.txt": self.summary().encode(), **self.parts}.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    def summary(self) -> str:
        """Returns what is inside and what is not."""
        inside = [f"  {len(content):>9,} bytes  {name}" for name, content in self.parts.items()]
        removed = [f"{count} {kind}" for kind, count in sorted(self.redactor.counts.items()) if count]
        lines = ["Inside:", *inside, "Left out:", *(f"  {one}" for one in self.left_out)]
        lines += [f"Replaced: {', '.join(removed) or 'nothing'}."]
        return "\n".join(lines) + "\n"


def _fitting(lines: Sequence[bytes], most: int) -> int:
    """Returns how many lines have at most so many bytes together."""
    return sum(size <= most for size in accumulate(map(len, lines)))


def report_run(run: str, data_dir: Path, output: Path | None, *, with_texts: bool) -> tuple[Path, str]:
    """Writes the report of a run. Returns its file and what is inside.

    Raises ConfigurationError for a run that is not there, and for an output that is or cannot be written.
    """
    folder = model_folder(run, data_dir).absolute()
    files = RunFiles("-", folder.parents[1].name, folder.name, folder.parents[2], ModelPaths(folder))
    path = output or Path(f"art-report-{files.project}-{files.name}.zip")
    if path.exists():
        raise ConfigurationError(f"{str(path)!r} exists: name another file with --output")
    bundle = Bundle(Redactor.of_this_machine(_server_secrets(files.data_dir)))
    bundle.left_out.append(
        "weights, checkpoints, the ledger of samples, logs of trajectories, tokens of steps"
    )
    if not with_texts:
        bundle.left_out.append("texts of rollouts, judges, exceptions and settings: --with-texts adds them")
    add_parts(bundle, files, run, with_texts=with_texts)
    try:
        write_whole(path, bundle.packed())
    except OSError as error:
        message = f"{str(path)!r} cannot be written ({error.strerror}): name another file with --output"
        raise ConfigurationError(message) from error
    return path, bundle.summary()


def add_parts(bundle: Bundle, run: RunFiles, name: str, *, with_texts: bool) -> None:
    """Adds all parts of a run's report. What cannot be read is left out: a run that is reported is broken."""
    with bundle.tried("environment.json"):
        bundle.add_value("environment.json", _environment(run.data_dir))
    with bundle.tried("settings.json"):
        settings = run.settings()
        bundle.add_value("settings.json", settings if with_texts else _short_settings(settings))
    with bundle.tried("history.jsonl"):
        rows = list(read_history(run.files.history))
        if len(rows) > 2 * MOST_ROWS:
            bundle.left_out.append(f"history.jsonl: {len(rows) - 2 * MOST_ROWS} rows in the middle")
            rows = rows[:MOST_ROWS] + rows[-MOST_ROWS:]
        bundle.add_rows("history.jsonl", rows)
    steps: set[int] = set()
    with bundle.tried("findings.json"):
        explanation = explain_model(run.files.path, name)
        found = explanation.as_json()
        for one in found["findings"]:
            one["quote"] = one["quote"] if with_texts else _length_of(one["quote"])
        bundle.add_value("findings.json", found)
        steps.update(step for one in explanation.findings for step in one.steps)
    with bundle.tried("reported.jsonl"):
        bundle.add_rows("reported.jsonl", read_history(run.files.findings))
    with bundle.tried("jobs.jsonl"):
        bundle.add_rows("jobs.jsonl", _jobs(run))
    with bundle.tried("rollouts.jsonl"):
        recorded = recorded_steps(run.files.path)
        shown = sorted({*recorded[:1], *recorded[-MOST_STEPS:], *(steps & set(recorded))})
        if len(shown) < len(recorded):
            bundle.left_out.append(f"records of {len(recorded) - len(shown)} of {len(recorded)} steps")
        texts = _whole_record if with_texts else _without_texts
        records = ((step, one) for step in shown for one in read_rollouts(run.files.path, step))
        bundle.add_rows("rollouts.jsonl", ({"step": step} | texts(one) for step, one in records))
    for log in sorted((run.data_dir / "server" / "logs").glob("*.log")):
        with bundle.tried(f"logs/{log.name}"):
            bundle.add_log(f"logs/{log.name}", _last_lines(log))


def _last_lines(log: Path) -> list[str]:
    """The lines of the last `MOST_BYTES` of a file."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_BYTES))
        return file.read().decode("utf-8", "backslashreplace").splitlines()


def _environment(data_dir: Path) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "art": version("agent-reinforcement-trainer"),
        "platform": platform.platform(),
        "installation": [
            f"{one.level}: {one.subject}: {one.what}"
            for look in load_extensions(INSTALLATION).values()
            for one in look(data_dir)
        ],
    }


def _jobs(run: RunFiles) -> Iterator[dict[str, Any]]:
    """The newest training jobs with the options that they ran with, without their data."""
    query = (
        "SELECT job_id, state, phase, error, error_code, created_at, ended_at, request FROM jobs "
        f"WHERE project = ? AND name = ? ORDER BY number DESC LIMIT {MOST_JOBS}"
    )
    names = ("job_id", "state", "phase", "error", "error_code", "created_at", "ended_at")
    for *facts, request in run.read_stored("jobs", query, (run.project, run.name)):
        asked = json.loads(request) if request else {}
        options = {key: value for key, value in asked.items() if not isinstance(value, list)}
        yield dict(zip(names, facts, strict=True)) | {"options": _short_settings(options)}


def _short_settings(value: Any, *, own: bool = False) -> Any:
    """The settings without texts. own: of the program itself, which may say anything."""
    if isinstance(value, Mapping):
        return {key: _short_settings(part, own=own or key == "config") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_short_settings(part, own=own) for part in value]
    is_text = isinstance(value, str) and (own or len(value) > LONGEST_SETTING or "\n" in value)
    return _length_of(value) if is_text else value


def _length_of(text: str | None) -> str | None:
    return None if text is None else f"({len(text)} characters)"


def _whole_record(record: RolloutRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude_defaults=True)


def _without_texts(record: RolloutRecord) -> dict[str, Any]:
    """The record with lengths for its texts. A scenario keeps a name, so that equal ones are seen."""
    found = _whole_record(record)
    if record.scenario is not None:
        found["scenario"] = hashlib.sha256(record.scenario.encode()).hexdigest()[:8]
    if record.unscored_reason is not None:
        found["unscored_reason"] = _length_of(record.unscored_reason)
    if record.failure is not None:
        found["failure"]["message"] = _length_of(record.failure.message)
    if record.judge is not None:
        found["judge"]["words"] = _length_of(record.judge.words)
    return found


def _server_secrets(data_dir: Path) -> Iterator[str]:
    """The keys of the folder's server, which have no form of their own if their owner chose them."""
    server = data_dir / "server"
    with suppress(OSError):
        yield (server / "key").read_text(encoding="utf-8", errors="replace").strip()
    with suppress(OSError, ValueError):
        yield str((read_json(server / ADDRESS_FILE) or {}).get("key", ""))
