"""`art audit-model`: what holds for one real model, measured; a table of verdicts and an exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from art.errors import ARTError
from art.process.imports import import_lock
from art_extensions.audit.audit_computation import AuditSubject, computation_verdicts, refused
from art_extensions.audit.audit_conversation import AuditVerdict, renderer_verdicts, template_verdicts

VERDICT_MARKS = {"pass": "[green]pass[/green]", "note": "[yellow]note[/yellow]", "fail": "[red]fail[/red]"}


def audit(name: str, *, device: str, dtype: str, json_file: Path | None) -> int:
    """Print each verdict as it is found. Returns 0 when nothing failed, else 1."""
    console = Console(soft_wrap=True)
    with _silence_libraries():
        verdicts = asyncio.run(_audit(console, name, device, dtype))
    failed = [verdict for verdict in verdicts if verdict.level == "fail"]
    if json_file is not None:
        report = {"model": name, "passed": not failed, "verdicts": [v.to_json() for v in verdicts]}
        json_file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(verdicts)} checks failed.[/bold red]")
        return 1
    console.print(f"[bold green]All {len(verdicts)} checks hold.[/bold green]")
    return 0


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Libraries' notices are verdicts here, and their progress bars would run through the table."""
    with import_lock:
        from transformers.utils import logging as transformers_logging

    art_log = logging.getLogger("art")
    levels = art_log.level, transformers_logging.get_verbosity()
    art_log.setLevel(logging.ERROR)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        art_log.setLevel(levels[0])
        transformers_logging.set_verbosity(levels[1])
        transformers_logging.enable_progress_bar()


async def _audit(console: Console, name: str, device: str, dtype: str) -> list[AuditVerdict]:
    verdicts = []

    def show_phase(phase: str) -> None:
        console.print(f"...   {escape(phase)}", style="dim", highlight=False)

    async for verdict in all_verdicts(name, device=device, dtype=dtype, tell=show_phase):
        verdicts.append(verdict)
        remedy = f"\n      -> {escape(verdict.remedy)}" if verdict.remedy else ""
        line = f"{VERDICT_MARKS[verdict.level]}  {verdict.check:<24} {escape(verdict.what)}{remedy}"
        console.print(line, highlight=False)
    return verdicts


async def all_verdicts(
    name: str, *, device: str = "auto", dtype: str = "auto", tell: Callable[[str], None] = lambda phase: None
) -> AsyncIterator[AuditVerdict]:
    """The chat format first, for it needs no weights. tell: called with the phases of a conversion."""
    from art.engine.base_models import resolve_base, with_folder

    try:
        base = await with_folder(resolve_base(name), tell)
    except ARTError as error:
        yield refused("model", error)
        return
    for verdict in await asyncio.to_thread(conversation_verdicts, base.source, base.name):
        yield verdict
    yield await asyncio.to_thread(length_verdict, base.source)
    subject = AuditSubject(name=base.name, source=base.source, device=device, dtype=dtype, bits=base.bits)
    async for verdict in computation_verdicts(subject):
        yield verdict


def conversation_verdicts(source: str, name: str) -> list[AuditVerdict]:
    """Yields the verdicts on the chat template, then on the renderer that the server would use."""
    with import_lock:
        from art.rendering.registry import create_chat_renderer

    try:
        renderer = create_chat_renderer(source, name=name)
        tokenizer = _tokenizer(source)
    except (ARTError, OSError, ValueError) as error:
        return [refused("renderer", error)]
    return [*template_verdicts(tokenizer), *renderer_verdicts(renderer)]


def length_verdict(source: str) -> AuditVerdict:
    """The longest conversation for which positions mean the same in every pass."""
    with import_lock:
        from transformers import AutoConfig

    from art.engine.limits import longest_fixed

    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        return refused("configuration", error)
    context = getattr(config, "max_position_embeddings", None)
    fixed = longest_fixed(config)
    if fixed is None or (context is not None and fixed >= context):
        return AuditVerdict(
            level="pass", check="configuration", what=f"{config.model_type}, context {context}"
        )
    return AuditVerdict(
        level="note",
        check="configuration",
        what=f"{config.model_type}, context {context}; beyond {fixed} tokens its rotary embedding depends on "
        "the longest row of a pass, so longer conversations are refused",
    )


def _tokenizer(source: str) -> Any:
    with import_lock:
        from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(source, local_files_only=Path(source).is_dir())
