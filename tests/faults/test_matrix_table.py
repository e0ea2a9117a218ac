"""The table of the matrix of faults has the whole product, and its page says what the records say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.faults.__main__ import Matrix, read_options, run_cells, wanted_cells
from bench.faults.page import PAGE, tables
from bench.faults.records import RANDOM_RECORDS, RECORDS, CellRecord, append_record, read_random, read_records
from bench.faults.table import TABLE, Cell, read_table

RECORD = CellRecord(
    cell="trainer/save/kill-9",
    ending="equal",
    flaws=(),
    seconds=3.2,
    when="2026-11-29",
    machine="2 cores",
    revision="abc",
)


def test_every_combination_is_run_or_has_its_reason() -> None:
    table = read_table()
    names = ["/".join(one) for one in product(table.components, table.phases, table.faults)]
    assert [cell.name for cell in table.cells] == names and len(set(names)) == len(names)
    used = {cell.why for cell in table.cells if cell.why}
    assert used == {rule.why for rule in table.rules}, "a rule that leaves out nothing"
    assert len(table.runnable) + sum(bool(cell.why) for cell in table.cells) == len(names)


def test_a_rule_about_an_unknown_name_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "table.toml"
    wrong.write_text(TABLE.read_text() + '\n[[left_out]]\nfault = ["kill-8"]\nwhy = "?"\n')
    with pytest.raises(ValueError, match="the fault 'kill-8'; known: kill-9"):
        read_table(wrong)


def test_cells_are_found_by_name_and_shards_are_all_of_them(tmp_path: Path) -> None:
    table, path = read_table(), tmp_path / "faults.jsonl"

    def wanted(*arguments: str) -> list[str]:
        return [cell.name for cell in wanted_cells(table, read_options(arguments), path)]

    assert wanted("--only", "trainer/save/kill-9") == ["trainer/save/kill-9"]
    assert wanted("--only", "server/*/kill-9") == [
        f"server/{phase}/kill-9" for phase in table.phases if phase != "replay"
    ]
    shards = [wanted("--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == sorted(cell.name for cell in table.runnable)
    for wrong, said in (
        ("trainer/save", "is not COMPONENT/PHASE/FAULT"),
        ("trainer/save/kill-8", "'kill-8' of"),
        ("judge/train/kill-9", "is left out: it works in"),
    ):
        with pytest.raises(ValueError, match=said):
            wanted("--only", wrong)
    with pytest.raises(ValueError, match="is not I/N"):
        wanted("--shard", "4/3")


def test_a_command_that_was_stopped_goes_on(tmp_path: Path) -> None:
    table, path = read_table(), tmp_path / "faults.jsonl"
    append_record(path, replace(RECORD, flaws=("it hangs",)))
    append_record(path, RECORD)
    assert read_records(path) == {RECORD.cell: RECORD}, "the newest counts"
    left = [cell.name for cell in wanted_cells(table, read_options([]), path)]
    assert len(left) == len(table.runnable) - 1 and RECORD.cell not in left
    again = [cell.name for cell in wanted_cells(table, read_options(["--again"]), path)]
    assert len(again) == len(table.runnable)


def test_the_page_is_what_the_records_say() -> None:
    written = PAGE.read_text(encoding="utf-8").split("<!-- results -->\n")[1].split("<!-- /results -->")[0]
    table, records, kills = read_table(), read_records(RECORDS), read_random(RANDOM_RECORDS)
    assert written == tables(table, records, kills), "run python -m bench.faults --page"
    cell = table.runnable[0]
    failing = replace(RECORD, cell=cell.name, flaws=("weights | differ",))
    shown = tables(table, {**records, cell.name: failing}, kills)
    assert f"- {cell.name}: `weights differ`" in shown and "**fails**, 3 s" in shown


def test_a_new_record_has_the_seconds_that_its_cell_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PlayedMatrix(Matrix):
        def __init__(self) -> None:
            """Runs nothing."""

        def run(self, cell: Cell) -> CellRecord:
            return replace(RECORD, cell=cell.name)

    table, path = read_table(), tmp_path / "faults.jsonl"
    cells = table.runnable[:2]
    clock = iter((100.0, 142.04, 150.0, 153.0))
    monkeypatch.setattr("bench.faults.__main__.time", SimpleNamespace(monotonic=clock.__next__))
    assert run_cells(cells, path, PlayedMatrix()) == 0
    assert [read_records(path)[cell.name].took for cell in cells] == [42.0, 3.0]
    told = "One after another they took"
    assert told not in tables(table, read_records(path), []), "some cells have no figure yet"
    whole = {cell.name: replace(RECORD, cell=cell.name, took=36.0) for cell in table.runnable}
    assert f"{told} {len(whole) / 100:.1f} hours, the longest 36 seconds" in tables(table, whole, [])
    assert {one.took for one in read_records(RECORDS).values()} >= {None}, "older records are read"


def test_every_record_is_of_a_cell_that_is_run() -> None:
    runnable = {cell.name for cell in read_table().runnable}
    assert set(read_records(RECORDS)) <= runnable
    for line in RECORDS.read_text().splitlines():
        assert json.loads(line)["seconds"] >= 0
