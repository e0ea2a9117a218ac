from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny_policies import MODEL, SHAPE, causal_lm, games, policy, qwen3, randomize, request, trainer

from art.errors import CheckpointError, ConfigurationError
from art.training.lora import LoraAdapters
from art.wire.training import LoraSpec

SPEC = LoraSpec(r=4, alpha=8)


def attached(seed: int = 0, spec: LoraSpec = SPEC) -> LoraAdapters:
    adapters = LoraAdapters(policy())
    adapters.attach("a1", spec, seed=seed)
    return adapters


def test_the_number_of_trainable_parameters() -> None:
    hidden, inner, q, kv = SHAPE["hidden_size"], SHAPE["intermediate_size"], 4 * 8, 2 * 8
    shapes = [
        (hidden, q),
        (hidden, kv),
        (hidden, kv),
        (q, hidden),
        (hidden, inner),
        (hidden, inner),
        (inner, hidden),
    ]
    expected = SHAPE["num_hidden_layers"] * sum(4 * (rows + columns) for rows, columns in shapes)
    made = trainer()
    assert made.trainable_parameters(MODEL) == expected
    assert sum(p.numel() for p in made.policy.causal_lm.parameters() if p.requires_grad) == expected


@pytest.mark.slow
def test_a_fresh_adapter_changes_nothing_and_follows_its_seed() -> None:
    rows = [[1, 2, 3, 4, 5]]
    bare = policy().row_logprobs(rows)
    tiny = policy()
    LoraAdapters(tiny).attach("a1", SPEC, seed=3)
    assert tiny.row_logprobs(rows) == bare
    one, same, other = (attached(seed).parameters("a1") for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_attaching_leaves_the_random_state_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    tiny = policy()
    torch.set_rng_state(before)
    LoraAdapters(tiny).attach("a1", SPEC, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_peft_itself_loads_what_we_save(tmp_path: Path) -> None:
    adapters = attached()
    randomize(adapters.parameters("a1"))
    adapters.activate("a1")
    tmp_path.joinpath("adapter").mkdir()
    assert adapters.save("a1", tmp_path / "adapter") == ["adapter_model.safetensors", "adapter_config.json"]
    stock = PeftModel.from_pretrained(
        causal_lm(qwen3(), "sdpa", torch.float32), str(tmp_path / "adapter")
    ).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        logprobs = torch.log_softmax(stock(input_ids=ids).logits, -1)[0, :-1].gather(1, ids[0, 1:, None])[
            :, 0
        ]
    (ours,) = adapters._policy.row_logprobs([ids[0].tolist()])
    assert torch.allclose(torch.tensor(ours), logprobs, atol=2e-6)


def test_the_files_are_those_that_peft_writes(tmp_path: Path) -> None:
    adapters = attached()
    adapters.save("a1", tmp_path)
    adapters._model.save_pretrained(
        str(tmp_path / "theirs"), selected_adapters=["a1"], save_embedding_layers=False
    )
    theirs = tmp_path / "theirs" / "a1"
    one, other = (
        load_file(tmp_path / "adapter_model.safetensors"),
        load_file(theirs / "adapter_model.safetensors"),
    )
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    ours_config, their_config = (
        json.loads((folder / "adapter_config.json").read_text()) for folder in (tmp_path, theirs)
    )
    assert ours_config["base_model_name_or_path"] == "tiny" and ours_config["inference_mode"] is True
    assert ours_config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    their_config["target_modules"] = sorted(their_config["target_modules"])
    assert ours_config == their_config


def test_every_pair_learns_as_it_should() -> None:
    """B is zero at first, so A has no gradient in the first step; from the second on every matrix has."""
    made, batch = trainer(), games()
    parameters = made._open[MODEL].parameters
    start = {name: p.detach().clone() for name, p in parameters.items()}
    made.train(batch.tree, batch.entries, request(batch, 0))
    for name, parameter in parameters.items():
        assert torch.equal(parameter, start[name]) == ("lora_A" in name), name
    middle = {name: p.detach().clone() for name, p in parameters.items()}
    made.train(batch.tree, batch.entries, request(batch, 1))
    assert not any(torch.equal(parameter, middle[name]) for name, parameter in parameters.items())


@pytest.mark.slow
def test_the_base_never_changes() -> None:
    made, batch = trainer(), games()
    base = {n: p.detach().clone() for n, p in made.policy.causal_lm.named_parameters() if "lora_" not in n}
    for step in range(3):
        made.train(batch.tree, batch.entries, request(batch, step))
    now = dict(made.policy.causal_lm.named_parameters())
    assert base and all(torch.equal(now[name], value) for name, value in base.items())


@pytest.mark.parametrize("targets", [["q_proj", "w_proj"], []])
def test_unknown_targets_are_refused_with_the_known_ones(targets: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"Known: down_proj, gate_proj.*v_proj"):
        attached(spec=LoraSpec(targets=targets))


@pytest.mark.slow
def test_a_file_of_another_adapter_is_refused(tmp_path: Path) -> None:
    attached(spec=LoraSpec(r=2)).save("a1", tmp_path)
    with pytest.raises(CheckpointError, match=r"is \(2, 16\), not \(4, 16\)"):
        attached().load("a1", tmp_path)
    attached(spec=LoraSpec(r=4, targets=["q_proj"])).save("a1", tmp_path)
    with pytest.raises(CheckpointError, match="24 tensors are missing"):
        attached().load("a1", tmp_path)
    save_file({}, str(tmp_path / "adapter_model.safetensors"))
    with pytest.raises(CheckpointError, match="28 tensors are missing"):
        attached().load("a1", tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"12")
    with pytest.raises(CheckpointError, match="cannot be read"):
        attached().load("a1", tmp_path)
