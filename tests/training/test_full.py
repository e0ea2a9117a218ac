"""All weights trained: exact gradients, checkpoints that are models, models that take turns on one base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES, build
from tiny_policies import MODEL, SHAPE, causal_lm, games, ids_to, llama, policy, qwen3, request, trainer
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from art.batch.batch_types import Batch
from art.errors import CheckpointError
from art.training.first_pass import References
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.training.weights import FullWeights, Weights
from art.wire.training import LoraSpec

ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
OTHER = "project/other"
FILES = ["config.json", "generation_config.json", "model.safetensors"]
STATE = ["manifest.json", "optimizer.safetensors", "trainer_state.json"]


def full(seed: int = 0) -> Trainer:
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, None, seed=seed)
    return made


def learn(made: Trainer, steps: range, name: str = MODEL) -> None:
    for step in steps:
        batch = games(step)
        asked = request(batch, step, learning_rate=1e-3).model_copy(update={"model": name})
        made.train(batch.tree, batch.entries, asked)


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    """Of the model that is active."""
    return {name: p.detach().clone() for name, p in made.policy.causal_lm.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def score(made: Trainer, name: str = MODEL) -> list[list[float]]:
    return made.score(name, ROWS)


def plain_gradients(config: PreTrainedConfig, batch: Batch) -> dict[str, torch.Tensor]:
    """One row per entry's whole context through transformers alone."""
    model = causal_lm(config, "sdpa", torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for node, advantage in zip(
        batch.entries.token_E.tolist(), batch.entries.advantage_E.tolist(), strict=True
    ):
        ids = torch.tensor(ids_to(batch.tree, node))
        logits = model(input_ids=ids[None, :-1]).logits[0, -1]
        total = total + advantage * torch.log_softmax(logits, -1)[ids[-1]]
    total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def tree_gradients(
    config: PreTrainedConfig, batch: Batch, budget: int, twice: bool
) -> dict[str, torch.Tensor]:
    tiny = policy(config, dtype=torch.float64)
    made = Weights(tiny)
    made.attach("a1", None, seed=0)
    tiny.checkpoint_activations = twice
    packing = tiny.pack(batch.tree, batch.entries, budget)
    for micro in packing.micro_batches:
        scores, _ = tiny.entry_scores(micro)
        advantage_E = torch.as_tensor(batch.entries.advantage_E[micro.entry_E], dtype=torch.float64)
        (scores.logprobs_E * advantage_E).sum().backward()
    return {name: p.grad for name, p in made.parameters("a1").items() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("make", [qwen3, llama])
@pytest.mark.parametrize("budget", [9999, 40])
def test_the_gradient_of_every_weight_is_that_of_plain_rows(make: object, tied: bool, budget: int) -> None:
    config: PreTrainedConfig = make()  # type: ignore[operator]
    config.tie_word_embeddings = tied
    batch = games(1, groups=2, size=3)
    expected = plain_gradients(config, batch)
    got = tree_gradients(config, batch, budget, twice=budget == 40)
    assert got.keys() == expected.keys() and ("lm_head.weight" in got) != tied
    for name, gradient in expected.items():
        assert gradient.norm() > 0 and (got[name] - gradient).norm() <= 1e-10 * gradient.norm(), name


def test_every_weight_learns_and_all_of_them_are_counted() -> None:
    made = full()
    before = weights(made)
    assert made.trainable_parameters(MODEL) == sum(value.numel() for value in before.values())
    assert score(made) == policy().row_logprobs(ROWS), "fresh weights are the base's"
    learn(made, range(2))
    after = weights(made)
    unseen = {name for name in before if torch.equal(before[name], after[name])}
    assert not unseen


def test_a_checkpoint_is_a_model_that_transformers_loads(tmp_path: Path) -> None:
    made = full()
    learn(made, range(2))
    files = made.save(MODEL, tmp_path / "0002")
    assert sorted(files) == sorted(FILES + STATE) == sorted(f.name for f in (tmp_path / "0002").iterdir())
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "0002")
    assert stock.config._attn_implementation == "sdpa", "nothing of ours is needed to load it"
    assert same(dict(stock.named_parameters()), weights(made))  # type: ignore[arg-type]


@pytest.mark.slow
def test_saved_and_restored_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    straight = full()
    learn(straight, range(2))
    straight.save(MODEL, tmp_path / "0002")
    learn(straight, range(2, 4))
    straight.save(MODEL, tmp_path / "straight")
    again = full(seed=9)
    learn(again, range(1))  # of another past
    assert again.open(MODEL, None, checkpoint=tmp_path / "0002") == 2
    learn(again, range(2, 4))
    again.save(MODEL, tmp_path / "resumed")
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_models_on_one_base_take_turns_and_do_not_touch_each_other() -> None:
    alone = []
    for start in (0, 10):
        made = full()
        learn(made, range(1))
        for step in range(1, 3):
            train_on(made, games(start + step), step, MODEL)
        alone.append(score(made))
    both = full()
    both.open(OTHER, None)
    learn(both, range(1))
    learn(both, range(1), OTHER)
    for step in range(1, 3):
        for start, name in ((0, MODEL), (10, OTHER)):
            train_on(both, games(start + step), step, name)
    assert [score(both, MODEL), score(both, OTHER)] == alone and alone[0] != alone[1]
    both.close(OTHER)
    assert score(both, MODEL) == alone[0]
    both.close(MODEL)
    base = policy()
    assert both.policy.row_logprobs(ROWS) == base.row_logprobs(ROWS), "the base is itself again"
    assert not any(p.requires_grad for p in both.policy.causal_lm.parameters())


def train_on(made: Trainer, batch: Batch, step: int, name: str) -> None:
    asked = request(batch, step, learning_rate=1e-3).model_copy(update={"model": name})
    made.train(batch.tree, batch.entries, asked)


def test_opening_again_starts_afresh() -> None:
    made = full()
    first = score(made)
    learn(made, range(2))
    assert score(made) != first
    made.open(MODEL, None)
    assert score(made) == first


@pytest.mark.slow
def test_references_are_the_base_and_other_steps(tmp_path: Path) -> None:
    made = full()
    learn(made, range(1))
    made.save(MODEL, tmp_path / "0001")
    step_1 = score(made)
    learn(made, range(1, 2))
    step_2, before = score(made), weights(made)
    references = References(made.policy, made._weights, made._open[MODEL].adapter)
    with references.base():
        assert made.policy.row_logprobs(ROWS) == policy().row_logprobs(ROWS)
    assert same(before, weights(made))
    for _ in range(2):
        with references.checkpoint(tmp_path / "0001"):
            assert made.policy.row_logprobs(ROWS) == step_1
        assert same(before, weights(made)) and score(made) == step_2
    with pytest.raises(KeyError), references.base():
        raise KeyError("inside")
    assert same(before, weights(made))
    learn(made, range(2, 3))
    straight = full()
    learn(straight, range(3))
    assert same(weights(straight), weights(made))


@pytest.mark.slow
def test_a_lora_and_all_weights_beside_each_other_on_one_base(tmp_path: Path) -> None:
    lora = LoraSpec(r=2, alpha=4, dropout=0.25)
    kinds = {"project/full": None, "project/lora": lora, "project/late": None}
    for name, spec in kinds.items():
        alone = Trainer(policy(), token_budget=64)
        alone.open(name, spec)
        learn(alone, range(3), name)
        alone.save(name, tmp_path / "alone" / name)
    both = Trainer(policy(), token_budget=64)
    for name, spec in kinds.items():
        both.open(name, spec)
    for step in range(3):
        for name in kinds:
            learn(both, range(step, step + 1), name)
            both.score("project/lora", ROWS)
    for name in kinds:
        both.save(name, tmp_path / "both" / name)
        for file in (tmp_path / "alone" / name).iterdir():
            assert file.read_bytes() == (tmp_path / "both" / name / file.name).read_bytes(), file
    both.open("project/full", None, checkpoint=tmp_path / "alone" / "project/full")
    both.close("project/full")
    both.close("project/late")
    both.open("project/new", LoraSpec(r=3))
    assert both.score("project/new", ROWS) == policy().row_logprobs(ROWS), "the base is itself again"


@pytest.mark.slow
def test_a_reference_may_be_of_the_other_kind(tmp_path: Path) -> None:
    made = Trainer(policy(), token_budget=64)
    expected = {}
    for name, spec in ((MODEL, None), (OTHER, LoraSpec(r=2))):
        made.open(name, spec)
        learn(made, range(2), name)
        expected[name] = score(made, name)
        made.save(name, tmp_path / name)
    for mine, other in ((MODEL, OTHER), (OTHER, MODEL)):
        score(made, mine)
        references = References(made.policy, made._weights, made._open[mine].adapter)
        with references.checkpoint(tmp_path / other):
            assert made.policy.row_logprobs(ROWS) == expected[other]
        assert made.policy.row_logprobs(ROWS) == expected[mine]
        with references.base():
            assert made.policy.row_logprobs(ROWS) == policy().row_logprobs(ROWS)
        assert made.policy.row_logprobs(ROWS) == expected[mine]


def test_a_checkpoint_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    made, adapter = full(), trainer()
    made.save(MODEL, tmp_path / "full")
    adapter.save(MODEL, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="holds all weights"):
        adapter.open(MODEL, LoraSpec(r=4, alpha=8), checkpoint=tmp_path / "full")
    with pytest.raises(CheckpointError, match="holds the LoRA"):
        made.open(MODEL, None, checkpoint=tmp_path / "adapter")


def test_a_damaged_or_foreign_model_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    made = full()
    learn(made, range(1))
    made.save(MODEL, tmp_path / "0001")
    before = score(made)
    (tmp_path / "0001" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        made.open(MODEL, None, checkpoint=tmp_path / "0001")
    assert score(made) == before and made.steps == {MODEL: 1}
    foreign = tmp_path / "foreign"
    small = Qwen3Config(**{**SHAPE, "num_hidden_layers": 1})
    causal_lm(small, "sdpa", torch.float32).save_pretrained(foreign)
    with pytest.raises(CheckpointError, match="missing"):
        made._weights.load(made._open[MODEL].adapter, foreign)
    (foreign / "model.safetensors").write_bytes(b"12")
    with pytest.raises(CheckpointError, match="cannot be read"):
        made._weights.load(made._open[MODEL].adapter, foreign)
    assert score(made) == before


def test_weights_are_of_the_policy_that_was_loaded() -> None:
    one: Policy = policy(seed=1)
    made = Trainer(one)
    made.open(MODEL, None)
    assert made.score(MODEL, ROWS) == policy(seed=1).row_logprobs(ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3-moe", "mixtral", "gemma3", "gpt-neox", "deepseek-v3", "gpt-oss"])
def test_families_whose_names_on_disk_differ_come_back_as_they_were(tmp_path: Path, family: str) -> None:
    def made() -> tuple[Policy, FullWeights]:
        tiny = Policy(build(FAMILIES[family](), "eager", torch.float32), name="tiny")
        return tiny, FullWeights(tiny)

    tiny, saving = made()
    saving.attach("a1")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in saving.parameters().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    files = saving.save("a1", tmp_path)
    assert {"config.json", "model.safetensors"} <= set(files)
    other, loading = made()
    loading.attach("a1")
    before = other.row_logprobs(ROWS)
    loading.load("a1", tmp_path)
    assert other.row_logprobs(ROWS) == tiny.row_logprobs(ROWS) != before
    one, two = saving.parameters(), loading.parameters()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
