"""The planted faults: each can be planted, each fuzz target has one, and the command says what is found."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from bench.faults import planted
from bench.faults.page import PAGE
from bench.faults.planted import (
    ROOT,
    PlantedFault,
    PlantedRuns,
    finding_of,
    main,
    read_table,
    wanted,
)
from bench.faults.planted_records import RECORDS, read_records
from bench.faults.records import append_record
from bench.faults.table import read_table as read_matrix

OUTSIDE = ROOT / "tests" / "promises" / "hostile" / "outside.toml"


def test_each_fault_can_be_planted_and_has_words_of_its_own() -> None:
    faults = read_table()
    assert len({one.what for one in faults}) == len(faults)
    for fault in faults:
        assert (ROOT / "src" / fault.file).read_text().count(fault.old) == 1, fault.by
        assert fault.old != fault.new


def test_each_fuzz_target_has_a_planted_fault_and_what_is_named_is_there() -> None:
    faults = read_table()
    targets = {row["target"] for row in tomllib.loads(OUTSIDE.read_text())["outside"]}
    named = {kind: {one.by.partition("/")[2] for one in faults if one.kind == kind} for kind in KINDS}
    assert named["fuzz"] == targets
    assert sum(map(len, named.values())) == len({one.by for one in faults}), "another kind"
    assert named["cell"] <= {cell.name for cell in read_matrix().runnable}
    assert all((ROOT / name.partition("::")[0]).is_file() for name in named["test"])


KINDS = ("fuzz", "test", "cell")


def test_each_fault_was_found_and_the_page_says_so() -> None:
    faults, records = read_table(), read_records(RECORDS)
    page = PAGE.read_text()
    for fault in faults:
        record = records[fault.what]
        assert record.found and record.is_of(fault.digest()), fault.by
        assert f"| {fault.what} | `{fault.file}` | `{fault.by}` | yes: " in page


def test_each_phase_and_each_fault_of_the_matrix_has_found_a_planted_fault() -> None:
    cells = [one.by.split("/")[1:] for one in read_table() if one.kind == "cell"]
    runnable = read_matrix().runnable
    assert {cell.phase for cell in runnable} == {phase for _, phase, _ in cells}
    assert {cell.fault for cell in runnable} == {fault for _, _, fault in cells}


def test_a_fault_that_has_a_record_is_run_again_when_it_is_another(tmp_path: Path) -> None:
    faults, records = read_table()[:3], tmp_path / "records.jsonl"
    known = read_records(RECORDS)
    append_record(records, known[faults[0].what])
    append_record(records, replace(known[faults[1].what], new="something else"))
    assert wanted(faults, [], read_records(records)) == faults[1:]
    assert wanted(faults, [faults[0].by], read_records(records)) == faults[:1]
    with pytest.raises(ValueError, match="names no planted fault"):
        wanted(faults, ["fuzz/nothing"], {})


def test_a_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    fault = replace(read_table()[0], file="one.py")
    for text, times in (("", 0), (fault.old * 2, 2)):
        (tmp_path / "one.py").write_text(text)
        with pytest.raises(ValueError, match=f"has its text {times} times"):
            fault.plant(tmp_path)


TRACE = "Traceback\n  File x\nKeyError: 'a'\n  10  x  found\n  10  inputs, 1 found\n"
FLAW = "FAILS: a flaw; no end, 3 s (cell 9 s)"


@pytest.mark.parametrize(
    ("by", "status", "output", "found", "report"),
    [
        (
            "fuzz/x",
            1,
            TRACE,
            True,
            "KeyError: 'a'",
        ),
        ("fuzz/x", 0, "      10  x\n      10  inputs, 0 found\n", False, "10 inputs"),
        (
            "test/t.py",
            1,
            "E   AssertionError: no\nFAILED t.py::test_a - AssertionError: no\n",
            True,
            "AssertionError: no",
        ),
        ("test/t.py", 0, "1 passed", False, "passed"),
        (
            "cell/a/b/c",
            1,
            "[1/1] a/b/c: FAILS: a flaw; no end, 3 s (cell 9 s)\n",
            True,
            "FAILS: a flaw; no end, 3 s (cell 9 s)",
        ),
        ("fuzz/x", None, "", False, "no end within 300 s"),
    ],
)
def test_what_a_run_says_is_read(by: str, status: int | None, output: str, found: bool, report: str) -> None:
    fault = replace(read_table()[0], by=by)
    seen = finding_of(fault, status, output)
    assert (seen.found, seen.report) == (found, report)


@pytest.mark.parametrize(("by", "status"), [("fuzz/x", 1), ("test/t.py", 2), ("cell/a/b/c", 1)])
def test_what_could_not_run_found_nothing(by: str, status: int) -> None:
    with pytest.raises(RuntimeError, match="ImportError: no such module"):
        finding_of(replace(read_table()[0], by=by), status, "ImportError: no such module")


@pytest.mark.slow
def test_a_fault_is_planted_in_a_copy_and_found_by_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted, "CALM_S", 2.0)
    monkeypatch.setattr(planted, "FUZZ_S", 4.0)
    (fault,) = (one for one in read_table() if one.by == "fuzz/json_text")
    before = (ROOT / "src" / fault.file).read_bytes()
    record = PlantedRuns(tmp_path).run(fault)
    assert record.found and "RecursionError" in record.report and record.calm.endswith(" inputs")
    assert (ROOT / "src" / fault.file).read_bytes() == before and not (tmp_path / "src").exists()
    harmless = replace(fault, new=fault.old + " ")
    assert not PlantedRuns(tmp_path).run(harmless).found


def test_the_table_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--list", "--records", str(tmp_path / "none.jsonl")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(read_table()) and all(line.endswith("not run yet") for line in lines)
    assert main(["--only", "fuzz/nothing"]) == 2
    assert isinstance(read_table()[0], PlantedFault)
