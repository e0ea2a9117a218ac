"""A step's folder loads by itself: the base's tokenizer lies in it, at the cost of a link."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from tiny_policies import MODEL, SHAPE, games, randomize, request, trainer
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from art.engine import nano_models
from art.errors import CheckpointError
from art.training.checkpoint import find_tokenizer, verify_files
from art.training.policy import Policy, load_policy
from art.training.trainer import Trainer
from art.wire.models import MANIFEST_FILE
from art.wire.training import LoraSpec

LORA = LoraSpec(r=4, alpha=8)
NANO = ["tokenizer.json", "tokenizer_config.json"]
MESSAGES = [{"role": "user", "content": "yes or no?"}]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_models.resolve("art/nano-games"), tmp_path / "base"))


def opened(base: Path, lora: LoraSpec | None = LORA) -> Trainer:
    made = Trainer(load_policy(str(base), name=str(base)), token_budget=64)
    made.open(MODEL, lora)
    return made


def saved(made: Trainer, folder: Path) -> Path:
    made.save(MODEL, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "all weights"])
def test_a_saved_step_encodes_as_its_base_does(base: Path, tmp_path: Path, lora: LoraSpec | None) -> None:
    made, batch = opened(base, lora), games()
    made.train(batch.tree, batch.entries, request(batch))
    step = saved(made, tmp_path / "steps" / "0001")
    own, theirs = AutoTokenizer.from_pretrained(step), AutoTokenizer.from_pretrained(base)
    assert own("yes, no and maybe")["input_ids"] == theirs("yes, no and maybe")["input_ids"]
    assert own.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False) == (
        theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    )
    assert set(NANO) < set(verify_files(step).files)
    assert opened(base, lora).open(MODEL, lora, checkpoint=step) == 1


@pytest.mark.slow
def test_peft_loads_a_saved_step_by_its_folder(base: Path, tmp_path: Path) -> None:
    made = opened(base)
    randomize(dict(made.parameters(MODEL)))
    step = saved(made, tmp_path / "steps" / "0000")
    alone = AutoPeftModelForCausalLM.from_pretrained(step, dtype=torch.float32).eval()
    row = AutoTokenizer.from_pretrained(step)("yes, no and maybe")["input_ids"]
    with torch.no_grad():
        logits = alone(input_ids=torch.tensor([row])).logits[0, :-1].float()
    theirs = torch.log_softmax(logits, -1).gather(1, torch.tensor(row)[1:, None])[:, 0]
    torch.testing.assert_close(theirs, torch.tensor(made.score(MODEL, [row])[0]), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_steps_share_one_copy_and_the_base_keeps_its_own(base: Path, tmp_path: Path) -> None:
    made = opened(base)
    first, second = (saved(made, tmp_path / "steps" / name) for name in ("0000", "0001"))
    third = saved(opened(base), tmp_path / "steps" / "0002")  # another process knows nothing of the first
    for name in NANO:
        assert (first / name).samefile(second / name) and (first / name).samefile(third / name)
        assert not (first / name).samefile(base / name) and (base / name).stat().st_nlink == 1
        assert (first / name).stat().st_mode & 0o222 == 0
        assert (base / name).stat().st_mode & 0o200


def test_a_copy_that_was_changed_is_not_handed_on(base: Path, tmp_path: Path) -> None:
    made = opened(base)
    first = saved(made, tmp_path / "steps" / "0000")
    (first / NANO[0]).chmod(0o644)
    (first / NANO[0]).write_bytes((base / NANO[0]).read_bytes()[:-1] + b" ")
    (first / NANO[0]).chmod(0o444)
    second = saved(made, tmp_path / "steps" / "0001")
    assert (second / NANO[0]).read_bytes() == (base / NANO[0]).read_bytes()
    verify_files(second)
    with pytest.raises(CheckpointError, match=NANO[0]):
        verify_files(first)


def test_a_base_that_changes_its_tokenizer_gives_the_new_one(base: Path, tmp_path: Path) -> None:
    made = opened(base)
    first = saved(made, tmp_path / "steps" / "0000")
    (base / "chat_template.jinja").write_text("{{ messages }}")
    second = saved(made, tmp_path / "steps" / "0001")
    assert not (first / "chat_template.jinja").exists()
    assert (second / "chat_template.jinja").read_text() == "{{ messages }}"
    shutil.rmtree(base)
    assert "tokenizer.json" not in verify_files(saved(made, tmp_path / "steps" / "0002")).files


def test_a_base_without_a_tokenizer_still_saves(tmp_path: Path) -> None:
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(tmp_path / "base")
    for number, made in enumerate((opened(tmp_path / "base"), trainer())):
        step = saved(made, tmp_path / "steps" / f"{number:04d}")
        assert not {file.name for file in step.iterdir()} & set(NANO)


@pytest.mark.slow
def test_a_step_from_before_opens_and_the_next_one_has_a_tokenizer(base: Path, tmp_path: Path) -> None:
    policy = Policy(load_policy(str(base), name=str(base)).causal_lm, name=str(base))
    before = Trainer(policy)
    before.open(MODEL, LORA)
    old = saved(before, tmp_path / "steps" / "0000")
    assert not (old / NANO[0]).exists()
    again = opened(base)
    assert again.open(MODEL, LORA, checkpoint=old) == 0
    assert (saved(again, tmp_path / "steps" / "0001") / NANO[0]).is_file()


def test_a_hub_name_is_found_in_the_cache_and_copied_from_there(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot, blob = repository / "snapshots" / ("a" * 40), repository / "blobs" / "b"
    for folder in (snapshot, blob.parent, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    blob.write_text("{}")
    (snapshot / "tokenizer.json").symlink_to(blob)
    assert find_tokenizer("org/name", cache=tmp_path) == {"tokenizer.json": snapshot / "tokenizer.json"}
    assert find_tokenizer("org/other", cache=tmp_path) == {}


@pytest.mark.extension
def test_a_copy_for_the_user_may_be_written_and_replaced(base: Path, tmp_path: Path) -> None:
    from art.utils.s3_checkpoint_utils import copy_checkpoint

    step = saved(opened(base), tmp_path / "steps" / "0000")
    for _ in range(2):
        copy = copy_checkpoint(step, tmp_path / "mine")
        assert (copy / NANO[0]).stat().st_mode & 0o200
    AutoTokenizer.from_pretrained(copy).save_pretrained(copy)
    assert (copy / MANIFEST_FILE).is_file() and verify_files(step)
