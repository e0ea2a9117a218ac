"""The GPU bench without a GPU: its runner, its kit's size, its luggage, the tables of its results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench.gpu import league, luggage
from bench.gpu.kit import MACHINE, check_size, normal_name, packed_versions, read_requirements
from bench.gpu.parts import INSTALL, KILL_SECONDS, LOG, PARTS, TOTAL, Part, Run, run_part, run_parts
from bench.gpu.results import MATMUL, Session, append_line, read_lines
from bench.gpu.tables import BEGIN, PAGES, RECORDS, benchmarks_text, measured_lines, printed

from waiting import eventually, gone


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(device="cpu", dry=True, out=tmp_path, work=tmp_path)


def shell(name: str, script: str, limit: float = 60.0) -> Part:
    return Part(name=name, limit=limit, command=("bash", "-c", script))


def session(folder: Path, part: str, *, dry: bool = False) -> Session:
    return Session(part=part, device="cpu", dry=dry, path=folder / "gpu.jsonl", work=folder, seconds=60.0)


@pytest.mark.slow
def test_a_part_that_overruns_is_cut_with_all_it_started(run: Run) -> None:
    pid = run.out / "pid"
    part = shell("long", f"echo begun; sleep 600 & echo $! > {pid}; wait")
    seconds = KILL_SECONDS + 1
    end = run_part(part, run, seconds)
    assert (end.status, end.said, end.limit) == ("cut", "its time was up", seconds)
    assert end.seconds < 60
    eventually(lambda: gone(int(pid.read_text())))
    assert "begun" in (run.out / LOG).read_text()


@pytest.mark.slow
def test_what_a_part_wrote_before_it_failed_is_kept_and_the_others_still_report(run: Run) -> None:
    line = json.dumps({"kind": "result", "part": "breaks", "name": "n", "value": 1.0, "unit": "s"})
    breaks = shell("breaks", f"echo '{line}' >> {run.results}; echo no such thing >&2; exit 3")
    ends = run_parts([breaks, shell("after", "echo 5 passed")], run, total=200.0)
    assert [(end.status, end.said) for end in ends] == [
        ("failed", "exit code 3: no such thing"),
        ("done", "5 passed"),
    ]
    assert [line["kind"] for line in read_lines(run.results)] == ["result", "part", "part"]


@pytest.mark.slow
def test_a_part_gets_what_the_later_ones_do_not_need_and_none_begins_without_time(run: Run) -> None:
    three = [shell(name, "true", limit=20.0) for name in ("a", "b", "c")]
    ends = run_parts(three, run, total=50.0)
    assert 9 <= ends[0].limit <= 20 and ends[2].limit == 40.0  # twice its own, of the 50 that are left
    (left_out,) = run_parts(three[:1], run, total=1.0)
    assert (left_out.status, left_out.said) == ("left out", "no time was left")


def test_all_parts_have_their_time_within_eight_minutes() -> None:
    assert sum(part.limit for part in PARTS) + INSTALL <= TOTAL == 480
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_a_kit_that_is_too_large_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    (tmp_path / "small.whl").write_bytes(b"1" * 2**18)
    (tmp_path / "large.whl").write_bytes(b"1" * 2**20)
    assert check_size(tmp_path, 2.0) == 1.25
    with pytest.raises(SystemExit, match=r"1\.2 MiB and may have 1\. The largest: large\.whl \(1\.0\)"):
        check_size(tmp_path, 1.0)


def test_the_kit_leaves_out_what_the_machine_has() -> None:
    machine = read_requirements(MACHINE)
    assert {"torch==2.11.0", "transformers==5.17.0"} <= set(machine)
    report = {
        "install": [
            {"metadata": {"name": name, "version": "1.0"}}
            for name in ("Torch", "huggingface_hub", "pydantic_core")
        ]
    }
    on_machine = {normal_name(line) for line in machine}
    assert list(packed_versions(json.dumps(report), on_machine)) == ["pydantic_core==1.0"]


def test_a_large_file_travels_in_parts(tmp_path: Path) -> None:
    file, here, kept = tmp_path / "model.whl", tmp_path / "here", tmp_path / "kept"
    file.write_bytes(bytes(range(256)) * 41)
    first, second = luggage.split(file, here, 2)
    assert max((part / "part").stat().st_size for part in (first, second)) <= 41 * 128
    second.rename(tmp_path / "later")
    assert luggage.keep(here, kept) == [".gpu-luggage-1"]
    with pytest.raises(SystemExit, match=r"model\.whl has 2 parts, and \.gpu-luggage-2 did not come along"):
        luggage.join(kept)
    (tmp_path / "later").rename(second)
    assert luggage.keep(here, kept) == [".gpu-luggage-1", ".gpu-luggage-2"]
    assert luggage.join(kept).read_bytes() == file.read_bytes()
    (kept / ".gpu-luggage-2" / "part").write_bytes(b"of another file")
    with pytest.raises(SystemExit, match="do not belong together"):
        luggage.join(kept)


def test_the_league_gives_the_program_its_own_options(run: Run) -> None:
    asked = ["--device", "cpu", "--seconds", "240", "--work", str(run.work)]
    session, own, others = league.read_options([*asked, "tic_tac_toe", "--model", "m", "--steps", "5"])
    assert (session.seconds, own.example, own.model, own.alone, others) == (
        240.0,
        "tic_tac_toe",
        "m",
        False,
        ["--steps", "5"],
    )
    part = league.program_part(session, own, others)
    _, again, last = league.read_options(part.arguments_in(run, part.limit))
    assert (again.example, again.model, again.alone, last) == ("tic_tac_toe", "m", True, ["--steps", "5"])
    assert league.find_example("tic_tac_toe").metric == "not_lost"
    with pytest.raises(SystemExit, match=r"no example 'chess'; known: .*tic_tac_toe"):
        league.find_example("chess")


def test_results_become_tables(tmp_path: Path) -> None:
    assert "Nothing has been measured yet" in benchmarks_text([])
    append_line(
        tmp_path / "gpu.jsonl", "machine", {"gpu": "NVIDIA H100", "torch": "2.11.0", "transformers": "5.17.0"}
    )
    ceilings = session(tmp_path, "ceilings")
    ceilings.record(MATMUL, 500.0, "TFLOP/s")
    ceilings.record(MATMUL, 790.0, "TFLOP/s")
    trainer = session(tmp_path, "trainer-4b")
    limit = trainer.tokens_limit(1e9)
    assert limit == 790_000
    trainer.record(
        "a row", 6000.0, "tokens/s", peer=None, published=6230.0, published_by="others", limit=limit
    )
    trainer.record("once", None, "tokens/s", note="out of memory")
    append_line(tmp_path / "gpu.jsonl", "part", {"part": "tree", "status": "cut", "said": "its time was up"})
    with (tmp_path / "gpu.jsonl").open("a") as stream:
        stream.write('{"kind": "result", "par')  # killed while it wrote
    text = benchmarks_text(measured_lines(tmp_path / "gpu.jsonl"))
    assert "Measured on one NVIDIA H100, torch 2.11.0" in text
    assert "| a row | 6,000 tokens/s | 6,230 (others) | 790,000 () |  |" in text
    assert "| once | not measured tokens/s |" in text and "out of memory" in text
    assert "500" not in text and "The part tree was cut: its time was up." in text


def test_figures_of_a_dry_run_reach_no_page(tmp_path: Path) -> None:
    session(tmp_path, "ceilings", dry=True).record(MATMUL, 1.0, "TFLOP/s")
    with pytest.raises(SystemExit, match="dry run"):
        measured_lines(tmp_path / "gpu.jsonl")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_say_what_the_committed_results_say(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    committed = measured_lines(RECORDS)
    assert printed(page, PAGES[path](committed)) == page, "run python -m bench.gpu.tables"
    assert committed or "computed" in page
    with pytest.raises(ValueError, match="lacks"):
        printed(page.replace(BEGIN, ""), "")


@pytest.mark.slow
def test_the_arithmetic_of_limits() -> None:
    """Against the parameters of the model itself, and the published arithmetic for rows of 16k on an H100."""
    import torch
    from bench.gpu.shapes import TINY, Shape, find_shape
    from transformers import AutoModelForCausalLM

    shape = Shape(name="tiny", architecture=replace(TINY, tie_word_embeddings=False))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape.config())
    linear = [one for one in model.modules() if isinstance(one, torch.nn.Linear)]
    assert shape.parameters == sum(one.weight.numel() for one in linear)
    real = find_shape("qwen3-0.6b", dry=False)
    assert 989e12 / real.flops_per_token(8192, twice=False) == pytest.approx(123e3, rel=0.05)
    assert 989e12 / real.flops_per_token(8192, twice=True) == pytest.approx(92e3, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "more"), [("trainer", ["--once"]), ("agreement", [])])
def test_a_part_runs_on_a_tiny_shape(part: str, more: list[str], tmp_path: Path) -> None:
    """The others are run by `make gpu-kit-check`."""
    from importlib import import_module

    results = tmp_path / "gpu.jsonl"
    asked = ["--dry", "--device", "cpu", "--results", str(results), "--work", str(tmp_path)]
    import_module(f"bench.gpu.{part}").main([*asked, *more])
    lines = list(read_lines(results))
    assert len(lines) >= 3 and all(line["dry"] and line["part"] == part for line in lines)
