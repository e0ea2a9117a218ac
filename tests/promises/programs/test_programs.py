"""Programs as users of each era wrote them run to their end, unedited, and train."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from art.engine.nano_models import resolve
from art.trajectories import Trajectory
from art.utils.trajectory_logging import read_trajectory_groups_parquet

PROGRAMS = Path(__file__).parent
FRESH_PROGRAM = PROGRAMS.parents[1] / "fresh_program.py"

pytestmark = pytest.mark.slow


def run(program: str, folder: Path, *arguments: object) -> str:
    """What the program printed. It must end by itself, without an error, with nothing left behind."""
    strict = ["-X", "dev", "-W", "ignore::ResourceWarning", str(PROGRAMS / f"{program}.py")]
    done = subprocess.run(
        [sys.executable, str(FRESH_PROGRAM), str(PROGRAMS.parent / "watched_imports"), *strict]
        + [str(argument) for argument in arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BACKUP_BUCKET": (folder / "bucket").as_uri()},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    complaints = ("never awaited", "never retrieved", "Traceback", "was destroyed but it is pending")
    for complaint in (*complaints, "stalled by"):
        assert complaint not in done.stderr, done.stderr[-4000:]
    return done.stdout


def rows(folder: Path, model: str) -> list[dict[str, float]]:
    """The rows of `history.jsonl`, whose sheets must add up."""
    (path,) = folder.glob(f".art/*/models/{model}/history.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        for unit in ("rollouts", "tokens"):
            sheet = {
                name: value for name, value in row.items() if re.fullmatch(f"data/sheet/.*_{unit}", name)
            }
            assert sheet.pop(f"data/sheet/started_{unit}", 0) == sum(sheet.values())
        assert not [name for name in row if "tinker_" in name], "nothing was billed"
    return found


def steps(found: list[dict[str, float]], split: str) -> list[float]:
    return [row["step"] for row in found if f"{split}/reward" in row]


def logged(folder: Path, split: str, step: int) -> list[Trajectory]:
    (path,) = folder.glob(f".art/*/models/*/trajectories/{split}/{step:04d}.parquet")
    return [trajectory for group in read_trajectory_groups_parquet(path) for trajectory in group]


def test_0_3_tic_tac_toe(tmp_path: Path) -> None:
    printed = run("v03_tic_tac_toe", tmp_path, 2, 12)
    assert re.findall(r"step (\d): .* of 12 games", printed) == ["0", "1"]
    assert printed.endswith("trained to step 2\n")
    found = rows(tmp_path, "001-script")
    assert steps(found, "train") == [1, 2]
    assert all(row["data/sheet/started_rollouts"] == 12 for row in found)
    assert all(row["data/sheet/trained_tokens"] > 0 for row in found)

    shutil.rmtree(tmp_path / ".art")
    printed = run("v03_tic_tac_toe", tmp_path, 3, 12)  # goes on where it was, from what is in the bucket
    assert re.findall(r"step (\d):", printed) == ["2"] and printed.endswith("trained to step 3\n")
    assert steps(rows(tmp_path, "001-script"), "train") == [1, 2, 3]
    checkpoints = sorted(path.name for path in tmp_path.glob(".art/*/models/001-script/checkpoints/*"))
    assert checkpoints == ["0002", "0003"]  # deleted before each step but the newest
    assert answered_by(tmp_path, checkpoints[-1])


def answered_by(folder: Path, step: str) -> str:
    """What a notebook's last cell does: the newest checkpoint over its base, without us."""
    import peft
    import torch
    import transformers

    (checkpoint,) = folder.glob(f".art/*/models/*/checkpoints/{step}")
    named = peft.PeftConfig.from_pretrained(checkpoint).base_model_name_or_path
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    base = transformers.AutoModelForCausalLM.from_pretrained(resolve(named))
    model = peft.PeftModel.from_pretrained(base, checkpoint)
    messages = [{"role": "user", "content": "Your move?"}]
    asked = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        said = model.generate(**asked, max_new_tokens=4, do_sample=False)
    return str(tokenizer.decode(said[0][asked["input_ids"].shape[1] :]))


def test_0_4_2048(tmp_path: Path) -> None:
    printed = run("v04_2048", tmp_path, 2, 12)
    assert "last game: reward" in printed and printed.endswith("trained to step 2\n")
    found = rows(tmp_path, "agent-002")
    assert steps(found, "train") == [1, 2] and steps(found, "val") == [2]
    games = logged(tmp_path, "train", 1)
    assert len(games) == 12 and max(game.metrics["num_moves"] for game in games) > 1
    for row in (row for row in found if "train/reward" in row):
        rewards = {game.reward for game in logged(tmp_path, "train", row["step"])}
        trained = row.get("data/sheet/trained_rollouts", 0.0) > 0
        assert trained == (len(rewards) > 1), "equal games teach nothing; nobody gave a seed"


def test_0_5_9_mail_agent(tmp_path: Path) -> None:
    printed = run("v059_mail_agent", tmp_path, 2)
    assert re.findall(r"step (\d): \d+ of 24 right", printed) == ["1", "2"]
    found = rows(tmp_path, "mail-agent-001")
    assert steps(found, "train") == [1, 2] and steps(found, "val") == [0]
    trained = [row for row in found if "train/reward" in row]
    assert all(0 <= row["train/group_judge/answered"] <= 1 for row in trained)
    for row in trained:  # four judged groups each
        assert row["costs/train/llm_judge/politeness"] == pytest.approx(4 * 0.0028)
        assert row["costs/train/llm_judge/correctness"] == pytest.approx(4 * (1000 * 1.1 + 100 * 4.4) / 1e6)
    assert all(row["train/llm_duration"] > 0 and row["train/completion_tokens"] > 0 for row in trained)
    assert {
        message["role"] for rollout in logged(tmp_path, "train", 1) for message in rollout.messages()
    } == {
        "system",
        "user",
        "assistant",
        "tool",
    }


def test_0_5_18_self_play(tmp_path: Path) -> None:
    printed = run("v0518_self_play", tmp_path, 2, 8)
    assert "self-play-001:step2 opens with" in printed and "sampled at step 2\n" in printed
    assert re.findall(r"step (\d): won \d+ of 8 games against art/nano-games", printed) == ["1", "2"]
    assert printed.count("8 games, 16 trajectories") == 2
    found = rows(tmp_path, "self-play-001")
    assert [steps(found, split) for split in ("versus-self", "versus-base", "train")] == [
        [0, 1],
        [0, 1],
        [1, 2],
    ]
    assert all(row["data/sheet/started_rollouts"] == 24 for row in found if "train/reward" in row)
    assert steps(rows(tmp_path, "base-model"), "versus-self-play") == [0, 1]
    seats = [trajectory.metadata["seat"] for trajectory in logged(tmp_path, "versus-self", 0)]
    assert seats == ["X"] * 8 + ["O"] * 8


def test_0_5_20_captured_agent(tmp_path: Path) -> None:
    printed = run("v0520_captured_agent", tmp_path, 2)
    assert re.findall(r"step (\d): \d+ of \d+ tokens sampled, exact: (\w+)", printed) == [
        ("1", "True"),
        ("2", "True"),
    ]
    assert printed.endswith("2 calls, 4 messages\n")
    found = rows(tmp_path, "agent-001")
    assert steps(found, "train") == [1, 2]
    assert all(row["data/sheet/started_rollouts"] == 24 for row in found)
    assert all(row["data/sheet/trained_tokens"] > 0 and row["train/known"] > 0 for row in found)
    (config,) = tmp_path.glob(".art/captured/models/agent-001/checkpoints/0002/adapter_config.json")
    assert json.loads(config.read_text())["r"] == 4
    captured = logged(tmp_path, "train", 1)
    assert all(len(one.exchanges.chat_completions) == 2 for one in captured)
    assert {len(one.messages()) for one in captured} == {4}

    # Another run of the same model begins at step 0, beside the first.
    printed = run("v0520_captured_agent", tmp_path, 1, "agent-002")
    assert re.findall(r"step (\d):", printed) == ["1"]
    assert sorted(path.name for path in tmp_path.glob(".art/captured/models/*")) == ["agent-001", "agent-002"]


def test_0_5_23_pipeline(tmp_path: Path) -> None:
    assert run("v0523_pipeline", tmp_path, 3) == "at step 3\n"
    found = rows(tmp_path, "piped-001")
    assert steps(found, "train") == [1, 2, 3]
    assert all("loss/kl_policy_ref" in row for row in found if "train/reward" in row)


def test_0_5_21_last_turn(tmp_path: Path) -> None:
    printed = run("v0521_sft_last_turn", tmp_path)
    first, second = map(float, re.findall(r"loss (\S+) -> (\S+)", printed)[0])
    assert printed.startswith("step 2, ") and second < first
    assert [row["step"] for row in rows(tmp_path, "taught-001")] == [1], "the second call wrote no row"
    (row,) = rows(tmp_path, "taught-001")
    assert row["data/step_trainer_tokens"] == 24 * 2, "the answer and its end, of the last turn alone"


def test_0_5_22_two_agents(tmp_path: Path) -> None:
    printed = run("v0522_two_agents", tmp_path, 2)
    seen = re.findall(r"step (\d): histories of \[2, 4\] messages, (\d+) ids exact .*, of (\d+)", printed)
    assert [step for step, _, _ in seen] == ["0", "1"] and printed.endswith("trained to step 2\n")
    assert all(0 < int(exact) <= int(known) for _, exact, known in seen)
    found = rows(tmp_path, "agents-001")
    assert steps(found, "train") == [1, 2]
    for row in found:
        assert row["data/sheet/started_rollouts"] == 21 and row["data/sheet/failed_rollouts"] == 3
        assert row["data/sheet/trained_tokens"] > 0 and "train/critic_agrees" in row
    captured = logged(tmp_path, "train", 1)
    assert len(captured) == 18 and {len(one.exchanges.chat_completions) for one in captured} == {3}
    assert all(len(one.additional_histories) == 1 and one.metadata["task"]["words"] for one in captured)
    dumped = json.loads((tmp_path / "groups-0.json").read_text())
    assert (dumped["format"], dumped["version"]) == ("art.trajectories", 1)
    (config,) = tmp_path.glob(".art/*/models/agents-001/checkpoints/0002/adapter_config.json")
    assert json.loads(config.read_text())["lora_alpha"] == 16


def test_0_5_23_leased_steps(tmp_path: Path) -> None:
    assert re.search(r"step 1: \d\.\d\d, step 3: \d\.\d\d\n$", run("v0523_leased_steps", tmp_path, 3))
    found = rows(tmp_path, "leased-001")
    assert steps(found, "train") == steps(found, "val") == [1, 2, 3]
    trained = [row for row in found if "train/reward" in row]
    for row in trained:
        assert row["time/step_rollout_s"] > 0 and row["throughput/avg_rollout_tok_per_s"] > 0
        assert not [name for name in row if "actor" in name]
    assert trained[2]["data/cum/rollout_tokens"] == sum(row["data/step_rollout_tokens"] for row in trained)
    assert trained[0]["loss/kl_policy_ref"] == pytest.approx(0, abs=1e-5), "the reference is the first step"
    assert all("loss/kl_policy_ref" in row for row in trained)
    best = max(found, key=lambda row: (row.get("val/reward", -1.0), row["step"]))["step"]
    kept = {int(path.name) for path in tmp_path.glob(".art/*/models/leased-001/checkpoints/*")}
    assert kept == {1, best, 3}, "the leased, the best and the newest"
    (config,) = tmp_path.glob(".art/*/models/leased-001/checkpoints/0003/adapter_config.json")
    adapter = json.loads(config.read_text())
    assert adapter["r"] == 4 and sorted(adapter["target_modules"]) == ["q_proj", "v_proj"]
