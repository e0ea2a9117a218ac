"""What each page says of a made run, without a browser; and of runs that lack one file or another."""

from __future__ import annotations

import html
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from made_run import MadeRun, made_run, made_run_of_turns, trajectory
from starlette.testclient import TestClient

import art
import art_extensions.ui
from art.errors import ConfigurationError
from art.tracking.step_record import read_rollouts
from art.tracking.trajectory_log import append_groups
from art_extensions.ui.access import Viewer
from art_extensions.ui.app import RunPages, export_runs
from art_extensions.ui.conversation import ShownTurn, visible, with_credit
from art_extensions.ui.curves import smooth
from art_extensions.ui.export import EXPORTED, file_name
from art_extensions.ui.pages import FIRST_STEPS, run_page
from art_extensions.ui.run_history import Histories
from art_extensions.ui.run_list import runs_page
from art_extensions.ui.step_seconds import NESTED, nested_seconds

RUN = "/runs/-/games/player"
MOST_BYTES = 200_000
"""So much may the pages add to the wheel."""

Read = Callable[[str], str]


def test_the_pages_are_small_in_the_wheel() -> None:
    (folder,) = art_extensions.ui.__path__
    files = [path for path in Path(folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {".html", ".css", ".js"} <= {path.suffix for path in files}
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < MOST_BYTES


def test_no_page_has_an_inline_script_or_style() -> None:
    (folder,) = art_extensions.ui.__path__
    for path in (Path(folder) / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(
            r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)|\|\s*safe", text
        ), path


def test_runs_are_listed_with_state_and_reward(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read("/")
    assert "games/player" in said and "finished" in said and "art/nano" in said and "0.750" in said


def run_of(root: Path, name: str, reward: float, **config: object) -> None:
    made = MadeRun(root, name=name)
    (made.model / "model.json").write_text(json.dumps({"name": name, "config": config}))
    made.history(1, **{"train/reward": reward})


def test_runs_have_tags_and_words_to_search_and_seeds_of_one_experiment_are_one_row(
    tmp_path: Path, read: Read
) -> None:
    run_of(tmp_path, "walk-1", 0.2, seed=1, rate=0.5, tags=["long", "<b>"])
    run_of(tmp_path, "walk-2", 0.4, seed=2, rate=0.5, tags=["long"])
    run_of(tmp_path, "other", 0.9, seed=1, rate=0.7)
    run_of(tmp_path, "again", 0.9, seed=1, rate=0.7)
    run_of(tmp_path, "plain", 0.1)
    found = runs_page(list(RunPages(tmp_path).reader.runs().values()))
    together = [one for one in found["experiments"] if one["all"]]
    assert [[row["run"].name for row in one["runs"]] for one in together] == [["walk-1", "walk-2"]] or [
        [row["run"].name for row in one["runs"]] for one in together
    ] == [["walk-2", "walk-1"]], "runs of one seed, or of none, stay apart"
    whole = together[0]["all"]
    assert whole["name"] == "games/walk" and whole["seeds"] == "1, 2"
    assert whole["reward"] == (pytest.approx(0.3), pytest.approx(0.141421, rel=1e-4))
    assert found["count"] == 5 and found["tags"] == ["<b>", "long"]
    words = {row["run"].name: row["words"] for one in found["experiments"] for row in one["runs"]}
    assert "config.rate=0.7" in words["other"] and "art/nano" in words["plain"] and "long" in words["walk-2"]
    said = read("/")
    assert "games/walk 2 runs seeds 1, 2" in said and "0.300 ± 0.141" in said and "5 runs" in said


def test_an_empty_folder_says_what_to_do(read: Read) -> None:
    assert "No run is here yet" in read("/") and "art quickstart" in read("/")


def test_a_run_has_steps_checkpoints_and_settings(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(RUN)
    assert "4 of 5" in said and "Checkpoints" in said and "job job-2" in said
    assert "registration on the server base_model art/nano" in said


def test_a_long_run_shows_its_newest_steps_and_all_of_them_a_link_away(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    for step in range(3, FIRST_STEPS + 10):
        made.history(step, **{"loss/entropy": 1.0})
    said = read(RUN)
    assert f"The newest {FIRST_STEPS} of {FIRST_STEPS + 9} steps. Show all steps" in said
    assert "Step 2 Reward" in said, "the figures are of the newest step that has a reward"
    reader = RunPages(tmp_path).reader
    (run,) = reader.runs().values()
    assert [row["step"] for row in run_page(reader, run)["steps"]] == [*range(FIRST_STEPS + 9, 9, -1)]
    for whole in ({"all_steps": True}, {"exported": True}):
        assert [row["step"] for row in run_page(reader, run, **whole)["steps"]][-1] == 1
    assert "Show all steps" not in read(f"{RUN}?steps=all")


def test_a_step_says_which_scenarios_were_left_out(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    assert "no reward variance" not in read(f"{RUN}/train/1")
    drawn = {"known": 64.0, "settled": 12.0, "left_out": 3.0}
    made.history(1, **{f"train/scenarios/{name}": value for name, value in drawn.items()})
    said = read(f"{RUN}/train/1")
    assert "Of 64 scenarios 12 had no reward variance in their last groups. 3 of them were left out" in said


def test_a_run_and_its_steps_have_the_findings_of_explain_with_links(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    assert "Notes" not in read(RUN), "nothing is wrong with it"
    made.history(2, **{"train/exception_rate": 0.2})
    said = read(RUN)
    assert "rollout 20% of the rollouts failed, most often 'TimeoutError: too slow' step 2" in said
    assert "Read the exception and fix the rollout or its tools." in said
    assert "step 2, group 0, rollout 2" in said
    assert "20% of the rollouts failed" in read(f"{RUN}/train/2") and "Notes" not in read(f"{RUN}/train/1")
    assert "Notes" not in read(f"{RUN}/train/2/0")


def test_a_step_says_where_its_rollouts_went(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(f"{RUN}/train/2")
    assert "trained 4 36" in said and "failed 1 0" in said and "started 5 36" in said
    assert "5 in 2 groups" in said


def test_a_step_has_the_command_that_replays_it(tmp_path: Path, read: Read) -> None:
    """A tenant has no terminal on the server."""
    made_run(tmp_path)
    command = f"art replay games/player 2 --data-dir {tmp_path}"
    assert command in read(f"{RUN}/train/2") and "art replay" not in read(f"{RUN}/train/2/0")
    MadeRun(tmp_path, project="alice~games").history(1, **{"train/reward": 0.5})
    pages = RunPages(tmp_path, Viewer("alice", "alice~"))
    own = TestClient(pages.app()).get(f"{RUN}/train/1").text
    pages.reader.close()
    assert "Reward" in own and "art replay" not in own


def test_a_group_has_its_rollouts_side_by_side(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(f"{RUN}/train/2/0")
    assert "2 equal turns" in said and said.count("You answer.") == 1
    assert "word: tea" in said and "word: the" in said and "TimeoutError: too slow" in said


def test_a_run_has_its_costs_by_kind_and_step(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(f"{RUN}/costs")
    assert "Spent $0.010" in said or "Spent $0.01" in said
    assert "train judge ruler 0.008 80 %" in said and "gpu 0.002 20 %" in said
    assert "Trained tokens" in said and "9.0 s" in said and "2 0.004 0.001" in said
    assert "Costs" in read(RUN)


def test_a_run_without_prices_says_what_to_do(tmp_path: Path, read: Read) -> None:
    MadeRun(tmp_path).history(1, **{"train/reward": 0.5})
    said = read(f"{RUN}/costs")
    assert "No price is known" in said and "gpu_cost_per_hour_usd" in said


def test_a_group_has_its_judge_with_question_order_and_second_opinion(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(f"{RUN}/train/2/0")
    assert "judge-1 · $0.004 for the group" in said and "Prefer short answers." in said
    assert "1 1 0.250 0.250 It found it. 0 2 0.750 0.250 differs It found it." in said, "in the order shown"


def test_empty_sections_stay_away(tmp_path: Path, read: Read) -> None:
    made = MadeRun(tmp_path)
    (made.model / "registration.json").unlink()
    made.history(1, **{"train/reward": 0.5})
    said = read(RUN)
    assert "Checkpoints" not in said and "Settings" not in said and "Validation" not in said
    said = read(f"{RUN}/train/1")
    assert "Where the rollouts went" not in said and "Groups" not in said and "Time" not in said
    MadeRun(tmp_path, name="unjudged").step(1, [[trajectory("x", 1.0, "y")]], record=False)
    assert "Judge" not in read("/runs/-/games/unjudged/train/1/0")
    made_run(tmp_path / "full")
    said = read("/runs/full/games/player")
    assert (
        "Checkpoints" in said and "Settings" in said and "Judge" in read("/runs/full/games/player/train/1/0")
    )


def charts_of(root: Path, path: str) -> list[dict[str, Any]]:
    pages = RunPages(root)
    text = TestClient(pages.app()).get(path).text
    pages.reader.close()
    return [json.loads(html.unescape(one)) for one in re.findall(r'data-chart="([^"]*)"', text)]


def test_held_out_rewards_are_points_with_intervals_beside_the_training_curve(
    tmp_path: Path, read: Read
) -> None:
    made = made_run(tmp_path)
    made.history(0, **{"val/reward": 0.5, "val/reward_sem": 0.1})
    made.history(2, **{"val/reward": 0.99, "val/reward_sem": 0.1})
    chart = charts_of(tmp_path, RUN)[0]
    train, val = chart["curves"]
    assert chart["steps"] == [0, 1, 2] and not train["points"] and val["points"]
    assert val["label"] == "val reward" and val["values"] == [0.5, None, 0.99]
    assert val["low"] == [pytest.approx(0.304), None, pytest.approx(0.794)] and val["high"][2] == 1.0
    said = read(RUN)
    assert "Validation 0.990 step 2" in said and "points: held-out scenarios" in said
    made.history(3, **{"train/reward": 3.0, "train/reward_sem": 1.0})
    assert charts_of(tmp_path, RUN)[0]["curves"][0]["high"][3] == pytest.approx(4.96), "no score of 0 to 1"


def test_bands_stay_inside_the_range_of_their_score(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    for step, right in ((1, 0.0), (2, 1.0)):
        made.step(step, [[trajectory(f"{step}a", right, "tea")], [trajectory(f"{step}b", 1.0, "the")]])
        made.history(step, **{"train/reward_sem": 0.4})
    for path in (RUN, "/compare?run=-/games/player&smooth=0.9"):
        curve = charts_of(tmp_path, path)[0]["curves"][0]
        assert 0.0 <= min(curve["low"]) and max(curve["high"]) == 1.0, path


def test_times_of_a_step_nest_and_no_second_is_in_two_parts(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    made.history(1, **{"time/step_save_s": 0.25, "time/promote_s": 0.9, "time/step_wall_s": 5.0})
    row = made_row(made, 1)
    parts = nested_seconds(row)
    assert [(one.name, one.depth) for one in parts] == [
        ("step wall", 0), ("client", 1), ("sampling", 1), ("training job", 1), ("gradient", 2),
        ("promote", 2), ("save", 3), ("canary", 3), ("not measured", 1),
    ]  # fmt: skip
    for whole in parts:
        end = whole.start + whole.seconds + 1e-9
        inside = [
            one.seconds for one in parts if one.depth == whole.depth + 1 and whole.start <= one.start < end
        ]
        assert whole.name not in NESTED or sum(inside) == pytest.approx(whole.seconds), whole
    said = read(f"{RUN}/train/1")
    assert "step wall 5.0 s client 100 ms sampling 3.0 s training job 1.6 s gradient 800 ms" in said
    assert "overlapping them: promote 900 ms, step trainer 500 ms." in said


def test_any_metric_is_a_chart_with_its_held_out_twin(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    made.history(1, **{"train/right": 0.25, "val/right": 0.5, "a\u202eb": 1.0})
    pages = RunPages(tmp_path)
    client = TestClient(pages.app())
    assert '<option value="train/right">' in client.get(RUN).text
    found = client.get(f"{RUN}/metric.json", params={"name": "train/right"}).json()
    assert found["last"] == "0.250" and found["steps"] == [1, 2]
    assert [(one["label"], one["points"]) for one in found["curves"]] == [
        ("train/right", False),
        ("val/right", True),
    ]
    shown = visible("a\u202eb")
    assert client.get(f"{RUN}/metric.json", params={"name": shown}).json()["curves"][0]["label"] == shown
    assert client.get(f"{RUN}/metric.json?name=x").status_code == 404
    kept = client.get(RUN, headers={EXPORTED: "1"}).text
    assert "&#34;train/right&#34;:{&#34;last&#34;" in kept, "a page that is a file has all charts"
    pages.reader.close()


def made_row(made: MadeRun, step: int) -> dict[str, float]:
    return Histories().table(made.model / "history.jsonl").steps[step]


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({}, []),
        ({"time/step_wall_s": 3.0}, [("step wall", 3.0)]),
        ({"time/step_trainer_s": 2.0}, [("step wall", 2.0), ("training job", 2.0)]),
        (
            {"time/step_wall_s": 1.0, "time/step_load_s": 2.0},
            [("step wall", 2.0), ("training job", 2.0), ("promote", 2.0), ("load", 2.0)],
        ),
    ],
)
def test_a_part_is_never_longer_than_what_holds_it(
    row: dict[str, float], parts: list[tuple[str, float]]
) -> None:
    assert [(one.name, one.seconds) for one in nested_seconds(row)] == parts


def test_a_rollout_has_conversation_tokens_judge_and_forks(tmp_path: Path, read: Read) -> None:
    made_run(tmp_path)
    said = read(f"{RUN}/train/2/0/0")
    assert "It found it." in said and "judge-1" in said and "shown as number 2" in said
    assert "Task view word" in said and "show word" not in said
    assert 'plan {"words": [1, null]}' in said
    assert "fork: edited" in said and "completion 2 : its prompt does not extend" in said
    assert "+0.500" in said and "policy step 0" in said.lower()
    assert all(signal in said for signal in ("ratio", "advantage", "entropy", "mask"))
    assert "c a f é B <|im_end|>" in said


def test_what_is_missing_is_said(tmp_path: Path, read: Read) -> None:
    bare = MadeRun(tmp_path)
    group = art.TrajectoryGroup([trajectory("x", art.Unscored("no judge"), "y")])
    append_groups(bare.model / "trajectories" / "val" / "0003.parquet", [group])
    assert "No curve yet" in read(RUN)
    said = read(f"{RUN}/val/3/0/0")
    assert "not recorded" in said and "No reward: no judge" in said
    assert "The ledger of this folder no longer has its 2 completions" in said
    bare.history(4, **{"train/reward": 0.5})
    said = read(f"{RUN}/train/4")
    assert "No rollout of this step is logged or recorded" in said


def test_a_damaged_log_is_named(tmp_path: Path, read: Read) -> None:
    made = made_run(tmp_path)
    file = made.model / "trajectories" / "train" / "0002.parquet"
    file.write_bytes(b"PAR1")
    for page in (f"{RUN}/train/2/0/0", f"{RUN}/train/2/0"):
        assert "0002.parquet" in read(page) or "Its conversation is not logged" in read(page)
    (made.model / "steps" / "0002" / "rollouts.jsonl").unlink()
    assert "cannot be read" in read(f"{RUN}/train/2")


@pytest.mark.parametrize(
    "path", ["/runs/-/games/other", f"{RUN}/train/9", f"{RUN}/val/1", f"{RUN}/train/1/7"]
)
def test_what_is_not_there_is_named(tmp_path: Path, read: Read, path: str) -> None:
    made_run(tmp_path)
    assert "Not found" in read(path) and "All runs" in read(path)


def test_runs_are_compared_on_the_steps_of_all(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    made_run(tmp_path / "b").history(3, **{"train/reward": 0.75})
    pages = RunPages(tmp_path)
    text = TestClient(pages.app()).get("/compare?run=a/games/player&run=b/games/player&run=c").text
    (chart,) = re.findall(r'data-chart="([^"]*)"', text)
    drawn = html.unescape(chart)
    assert '"steps":[1,2,3]' in drawn and "There is no run c here" in text
    assert '"values":[0.625,0.75,null]' in drawn and '"values":[0.625,0.75,0.75]' in drawn
    pages.reader.close()


def test_a_smoothed_constant_is_the_constant_from_its_first_value_on() -> None:
    assert smooth([None, 2.0, None, 2.0], 0.9) == [None, pytest.approx(2.0), None, pytest.approx(2.0)]
    assert smooth([1.0, 0.0], 0.0) == [1.0, 0.0]


def test_a_long_text_is_cut_and_whole_a_link_away(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    text = "w" * 1_000_000
    made.step(1, [[trajectory("x", 1.0, "y", text=text), trajectory("z", 0.0, "y", text=text)]])
    pages = RunPages(tmp_path)
    client = TestClient(pages.app())
    page = client.get(f"{RUN}/train/1/0/0").text
    assert len(page) < 100_000 and "980,000 more characters" in page
    whole = client.get(f"{RUN}/train/1/0/0/text?history=0&turn=1")
    assert whole.text == text and whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert client.get(f"{RUN}/train/1/0/0/text?history=5&turn=1").status_code == 404
    pages.reader.close()


def test_an_export_keeps_every_page_and_every_link_leads_to_a_file(tmp_path: Path) -> None:
    made_run(tmp_path / "runs")
    kept = tmp_path / "kept"
    count = export_runs(tmp_path / "runs", kept)
    pages = list(kept.rglob("*.html"))
    assert len(pages) == count == 2 + 1 + 2 * (1 + 2 + 5), "costs of the run that has a history"
    for page in pages:
        for link in re.findall(r'(?:href|src)="([^"#][^"]*)"', page.read_text()):
            target = (page.parent / unquote(html.unescape(link).partition("#")[0])).resolve()
            assert target.is_file() and target.is_relative_to(kept), (page, link)
    with pytest.raises(ConfigurationError, match="not an empty folder"):
        export_runs(tmp_path / "runs", kept)


@pytest.mark.parametrize(
    "address", ["/runs/%2E%2E/a", "/runs/a/" + "x" * 900, "/runs/-/a%2Fb/c%00", "/a/../../b"]
)
def test_no_address_names_a_file_outside(address: str) -> None:
    parts = Path(file_name(address)).parts
    assert ".." not in parts and not Path(file_name(address)).is_absolute() and max(map(len, parts)) < 200


@pytest.mark.skipif(os.name != "posix", reason="it makes a pipe")
@pytest.mark.parametrize("damage", ["brackets", "pipe", "folder", "number"])
def test_a_run_that_cannot_be_read_is_a_row_that_says_so(
    tmp_path: Path, read: Callable[[str], str], damage: str
) -> None:
    made_run(tmp_path)
    bad = tmp_path / "games" / "models" / "broken"
    bad.mkdir()
    history = bad / "history.jsonl"
    if damage == "brackets":
        history.write_text('{"step": 1, "train/reward": 0.25}\n' + "[" * 100_000 + "\n")
    elif damage == "pipe":
        os.mkfifo(history)
    elif damage == "folder":
        history.mkdir()
    else:
        history.write_text('{"step": 1, "train/reward": 1' + "0" * 400 + "}\n")
    listed = read("/")
    assert "games/player" in listed and "games/broken" in listed
    assert "history.jsonl cannot be read" in listed
    assert "history.jsonl cannot be read" in read("/runs/-/games/broken")
    assert "unreadable" not in read("/runs/-/games/player")


def test_a_turn_shows_its_reward_and_its_advantage(tmp_path: Path, read: Read) -> None:
    made = made_run_of_turns(tmp_path)
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", read(f"{RUN}/train/1/0/0")))
    assert "reward 0.250 , counts as 1.250 advantage +0.750" in said
    assert "reward 0.000 , counts as 1.000 advantage -0.125" in said.replace("−", "-")
    assert said.count("advantage +0.750 reason: It looked first.") == 1 == said.count("reason: ")
    plain = read(f"{RUN}/train/1/0/1")
    assert "reason: " not in plain and "counts as" not in plain and plain.count("advantage <b>") == 0
    side_by_side = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", read(f"{RUN}/train/1/0")))
    assert side_by_side.count("advantage +0.750") == 1 and side_by_side.count("reward 0.250 ,") == 1
    # Without the trajectory the record alone knows; without the record, the trajectory.
    turn = ShownTurn(
        0, 0, "assistant", "", "", "the tea", 0, (), 0, sampled=True, sample="r-0", step=0, finish="stop"
    )
    (record, _, _) = read_rollouts(made.model, 1)
    (credited,) = with_credit([turn], None, record)
    assert (credited.reward, credited.reason) == (0.25, "It looked first.")
    (made.model / "steps" / "0001" / "rollouts.jsonl").unlink()
    again = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", read(f"{RUN}/train/1/0/0")))
    assert "reward 0.250" in again and "counts as" not in again
