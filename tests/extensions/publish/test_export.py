"""`art export`: files that other programs load, of a project whose server has ended."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from hub_stand_in import TOKEN, Hub
from trained_project import KEY, QUESTIONS, REPLY_TOKENS, STEPS, art_command, train

import art
from art.engine import nano_models
from art.errors import CheckpointError, ConfigurationError, StepMissingError
from art.tracking.folders import find_model
from art.tracking.model_files import choose_step
from art_extensions.publish.export import convert
from art_extensions.publish.model_card import BUILT_IN
from serving import serving_in_a_thread

pytestmark = pytest.mark.slow
TASK = "Says yes, no or maybe."


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """The data folder, and what the server said before it ended."""
    folder = tmp_path_factory.mktemp("trained") / "art"
    return folder, train(folder)


@pytest.fixture(scope="module")
def data_dir(trained: tuple[Path, list[list[int]]]) -> Path:
    return trained[0]


@pytest.fixture(scope="module")
def merged(data_dir: Path) -> Path:
    """The newest step, by the command as typed."""
    folder = data_dir.parent / "merged"
    arguments = ("export", KEY, "--output", str(folder), "--data-dir", str(data_dir), "--task", TASK)
    done = art_command(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "art_extensions.publish.export" in loaded and not loaded & {"torch", "transformers", "safetensors"}
    assert f"{KEY}@{STEPS}" in done.stdout and "model.safetensors" in done.stdout
    return folder


def transformers_replies(folder: Path | str, adapter: Path | None = None) -> list[list[int]]:
    """What a program with transformers alone samples greedily: ids."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(adapter or folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model.float(), adapter)
    replies = []
    for question in QUESTIONS:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=REPLY_TOKENS, do_sample=False)[0]
        replies.append(ids[inputs["input_ids"].shape[1] :].tolist())
    return replies


def test_the_merged_model_says_what_the_served_one_said(
    trained: tuple[Path, list[list[int]]], merged: Path
) -> None:
    served = trained[1]
    assert transformers_replies(merged) == served
    base = transformers_replies(str(nano_models.resolve("art/nano-games")))
    assert base != served, "the test shows nothing: training changed no greedy reply"


def test_the_adapter_folder_is_clean_and_says_the_same_through_peft(data_dir: Path, merged: Path) -> None:
    folder = data_dir.parent / "adapter"
    done = art_command(
        "export", KEY, "--format", "peft", "--output", str(folder), "--data-dir", str(data_dir), "--json"
    )
    told = json.loads(done.stdout)
    assert told["files"] == sorted(file.name for file in folder.iterdir())
    assert set(told["files"]) == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "reward_curve.png",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    base = str(nano_models.resolve("art/nano-games"))
    assert transformers_replies(base, folder) == transformers_replies(merged)


def test_the_card_tells_base_license_rewards_and_settings(data_dir: Path, merged: Path) -> None:
    import yaml

    text = (merged / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["license"] == "apache-2.0" and header["library_name"] == "transformers"
    assert f"`{KEY}`, step {STEPS}" in text and "art/nano-games" in text and f"## Task\n\n{TASK}" in text
    assert "](reward_curve.png)" in text and (merged / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    rows = re.findall(r"^\| (\d+) \| (-?[\d.]*) ?\| (-?[\d.]*) ?\|$", text, re.M)
    assert [row[0] for row in rows] == ["1", "2"] and rows[0][2] and not rows[1][2]
    history = [
        json.loads(line) for line in (data_dir / "games/models/player/history.jsonl").read_text().splitlines()
    ]
    first = next(row["train/reward"] for row in history if row["step"] == 1 and "train/reward" in row)
    assert float(rows[0][1]) == pytest.approx(first, abs=1e-3)
    settings = json.loads(text.split("```json\n")[1].split("```")[0])
    assert settings["optimizer"]["learning_rate"] == 2e-2 and settings["lora"]["r"] == 16
    assert settings["algorithm"]["loss"]["name"] == "cispo"


@pytest.mark.parametrize("format", ["merged", "peft"])
def test_the_program_of_the_card_runs_as_printed(
    data_dir: Path,
    merged: Path,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = merged if format == "merged" else data_dir.parent / "of_the_card"
    if format == "peft":
        art.export_model(f"{KEY}@1", folder, format="peft", data_dir=data_dir)
    program = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder.parent)
    exec(compile(program, "README.md", "exec"), {})  # the card's own program
    assert capsys.readouterr().out


@pytest.mark.parametrize("format", ["peft", "merged"])
def test_the_commands_of_the_card_are_quoted_for_a_shell(data_dir: Path, tmp_path: Path, format: str) -> None:
    exported = art.export_model(KEY, tmp_path / "my model", format=format, data_dir=data_dir)
    (command,) = re.findall(r"```sh\n(vllm .*)\n```", (exported.folder / "README.md").read_text())
    assert shlex.split(command)[-1].removeprefix("player=") == "my model"


def test_a_step_is_chosen_by_number_or_by_the_best_metric(data_dir: Path) -> None:
    model = find_model(KEY, data_dir)
    assert choose_step(model) == STEPS
    assert choose_step(find_model(f"{KEY}@1", data_dir)) == 1
    assert choose_step(model, best="val/reward") == 1  # only step 1 was evaluated
    with pytest.raises(ConfigurationError, match="both choose a step"):
        choose_step(find_model(f"{KEY}@1", data_dir), best="val/reward")
    with pytest.raises(ConfigurationError, match=r"no row of .* has the metric 'val/glory'"):
        choose_step(model, best="val/glory")
    with pytest.raises(StepMissingError, match=r"step 9 .* Steps that have: 0, 1, 2"):
        choose_step(model, 9)


def test_a_model_of_a_program_is_exported_with_its_own_chat_template(data_dir: Path, tmp_path: Path) -> None:
    registration = data_dir / "games/models/player/registration.json"
    before = registration.read_text()
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    registration.write_text(json.dumps({**json.loads(before), "chat_template": template}))
    try:
        model = art.TrainableModel(
            name="player", project="games", base_model="art/nano-games", base_path=str(data_dir)
        )
        done = art.export_model(model, tmp_path / "out", format="peft")
    finally:
        registration.write_text(before)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(done.folder)
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert shown == "<hi>"


def test_gguf_without_a_converter_is_refused_with_commands_to_type(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    arguments = ("export", KEY, "--format", "gguf", "--output", str(folder), "--data-dir", str(data_dir))
    done = art_command(*arguments, PATH="/usr/bin:/bin")
    assert done.returncode == 2 and not folder.exists()
    lines = [line.split() for line in done.stderr.splitlines()]
    (first,) = [line for line in lines if line[:2] == ["art", "export"]]
    assert any(line[:2] == ["python", "convert_hf_to_gguf.py"] for line in lines)
    assert first[2] == f"{KEY}@{STEPS}" and first[3:5] == ["--data-dir", str(data_dir)]


def test_gguf_is_what_the_converter_makes_of_the_merged_model(data_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "convert_hf_to_gguf.py"
    program.write_text(
        "import sys, pathlib\n"
        "folder, flag, outfile = sys.argv[1:]\n"
        "assert flag == '--outfile' and pathlib.Path(folder, 'tokenizer.json').is_file()\n"
        "pathlib.Path(outfile).write_bytes(pathlib.Path(folder, 'model.safetensors').read_bytes())\n"
    )
    done = art.export_model(KEY, tmp_path / "out", format="gguf", data_dir=data_dir, converter=program)
    assert done.files == ("README.md", "player.gguf", "reward_curve.png")
    assert "llama-cli" in (done.folder / "README.md").read_text()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["convert_hf_to_gguf.py", "out"]


def test_a_converter_that_refuses_is_quoted(merged: Path, tmp_path: Path) -> None:
    program = tmp_path / "convert.py"
    program.write_text("import sys; sys.exit('NotImplementedError: BPE pre-tokenizer was not recognized')")
    with pytest.raises(CheckpointError, match="BPE pre-tokenizer was not recognized"):
        convert([sys.executable, str(program)], merged, tmp_path / "x.gguf")
    with pytest.raises(ConfigurationError, match="cannot be run"):
        convert([str(tmp_path)], merged, tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "onnx"], "format='onnx': choose one of merged, peft, gguf"),
        (["--dtype", "int8"], "dtype='int8': choose one of auto"),
        (["--push", "owner/name"], "write hf://owner/name"),
        (["--best", "val/glory"], "has the metric 'val/glory'"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_written(
    data_dir: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    from typer.testing import CliRunner

    from art.cli import app

    arguments = ["export", KEY, "--output", str(tmp_path / "out"), "--data-dir", str(data_dir), *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and message in done.stderr and not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigurationError, match="is there already"):
        art.export_model(KEY, tmp_path, data_dir=data_dir)
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


def hub_environment(address: str, tmp_path: Path) -> dict[str, str]:
    """Xet is the hub's own storage, which only the hub has; without it large files go by LFS."""
    home = str(tmp_path / "home")
    return {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1"}


def test_a_push_makes_a_private_repository_with_all_files(data_dir: Path, tmp_path: Path) -> None:
    hub = Hub()
    arguments = (
        "export",
        f"{KEY}@1",
        "--format",
        "peft",
        "--data-dir",
        str(data_dir),
        "--push",
        "hf://me/player",
    )
    with serving_in_a_thread(hub.app()) as address:
        environment = hub_environment(address, tmp_path)
        done = art_command(*arguments, "--output", str(tmp_path / "out"), **environment)
        assert done.returncode == 0, done.stderr
        again = art_command(*arguments, "--public", "--output", str(tmp_path / "again"), **environment)
        assert again.returncode == 0, again.stderr
        refused = art_command(
            *arguments, "--output", str(tmp_path / "x"), **{**environment, "HF_TOKEN": "wrong"}
        )
    assert [(name, asked["visibility"]) for name, asked in hub.created.items()] == [("me/player", "private")]
    assert hub.files["me/player"] == {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()}
    assert 'from_pretrained("me/player")' in hub.files["me/player"]["README.md"].decode()
    assert f"Pushed to {address}/me/player" in done.stdout
    assert refused.returncode == 1 and "HF_TOKEN" in refused.stderr and "wrong" not in refused.stderr
    assert (tmp_path / "x" / "adapter_model.safetensors").is_file()  # the export itself is kept


def test_the_hub_tells_the_license_of_a_base_that_nobody_knows_here(data_dir: Path, tmp_path: Path) -> None:
    checkpoint = data_dir / "games/models/player/checkpoints/0001"
    project = tmp_path / "art"
    copied = project / "games/models/player/checkpoints/0001"
    copied.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        text = (checkpoint / name).read_bytes()
        (copied / name).write_bytes(text.replace(b'"art/nano-games"', b'"someone/base"'))
    assert not "someone/base".startswith(BUILT_IN)
    hub = Hub(licenses={"someone/base": "mit"})
    with serving_in_a_thread(hub.app()) as address:
        done = art_command(
            *(
                "export",
                KEY,
                "--format",
                "peft",
                "--output",
                str(tmp_path / "out"),
                "--data-dir",
                str(project),
            ),
            *("--push", "hf://me/player"),
            **hub_environment(address, tmp_path),
        )
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        'license: "mit"' in card and 'base_model: "someone/base"' in card and "No rewards were logged" in card
    )
