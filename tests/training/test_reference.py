"""Other policies on the same base: their logprobs are those of a model that has nothing else attached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny_policies import MODEL, causal_lm, games, llama, policy, qwen3, randomize, request, trainer

from art.errors import CheckpointError
from art.training.first_pass import References
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.training.weights import Weights
from art.wire.models import ADAPTER_FILE
from art.wire.training import LoraSpec

ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 9], [3, 1, 4, 1, 5, 9, 2, 6]]
SPEC = LoraSpec(r=4, alpha=8, dropout=0.5)


class Opened:
    """A policy with two adapters, of which "a1" trains with dropout and holds a gradient."""

    def __init__(self) -> None:
        self.policy = policy()
        self.weights = Weights(self.policy)
        for seed, name in enumerate(("a2", "a1")):
            self.weights.attach(name, SPEC, seed=seed)
            randomize(self.weights.parameters(name), seed)
        self.weights.activate("a1", dropout=True)
        self.trained = self.weights.parameters("a1")
        self.references = References(self.policy, self.weights, "a1")
        batch = games()
        (micro,) = self.policy.pack(batch.tree, batch.entries, 9999).micro_batches
        self.policy.entry_scores(micro)[0].logprobs_E.sum().backward()
        self.before = self.state()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything of the active adapter that must not change, the random state included."""
        gradients = {f"{name}.grad": p.grad.clone() for name, p in self.trained.items() if p.grad is not None}
        assert len(gradients) == len(self.trained)
        weights = {name: p.detach().clone() for name, p in self.trained.items()}
        torch.manual_seed(11)
        with_dropout = torch.tensor(self.policy.row_logprobs(ROWS)[0])  # the active adapter, its dropout live
        return {**gradients, **weights, "computes": with_dropout}

    def check(self) -> None:
        after = self.state()
        assert after.keys() == self.before.keys()
        for name, value in after.items():
            assert torch.equal(value, self.before[name]), name
        assert all(parameter.requires_grad for parameter in self.trained.values())
        assert not any(p.requires_grad for p in self.weights.parameters("a2").values())


def stock_logprobs(model: torch.nn.Module) -> list[list[float]]:
    """By transformers alone, a row at a time."""
    result = []
    with torch.no_grad():
        for row in ROWS:
            ids = torch.tensor(row)
            logits = model(input_ids=ids[None]).logits[0, :-1]
            result.append(torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0].tolist())
    return result


def assert_close(one: list[list[float]], other: list[list[float]]) -> None:
    for got, expected in zip(one, other, strict=True):
        assert got == pytest.approx(expected, abs=2e-6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of another adapter of another shape, on the same base."""
    made, batch = trainer(lora=LoraSpec(r=2, alpha=3, dropout=0.3, targets=["q_proj", "up_proj"])), games(4)
    for step in range(3):
        made.train(batch.tree, batch.entries, request(batch, step, learning_rate=0.1))
    path = tmp_path_factory.mktemp("checkpoints") / "0003"
    made.save(MODEL, path)
    return path


def test_the_base_computes_what_the_stock_model_does() -> None:
    made = Opened()
    with made.references.base():
        inside = made.policy.row_logprobs(ROWS)
    made.check()
    assert_close(inside, stock_logprobs(causal_lm(qwen3(), "sdpa", torch.float32).eval()))
    made.weights.activate("a1")
    assert inside != made.policy.row_logprobs(ROWS)


@pytest.mark.slow
def test_a_checkpoint_computes_what_peft_makes_of_it(saved: Path) -> None:
    made = Opened()
    with made.references.checkpoint(saved):
        inside = made.policy.row_logprobs(ROWS)
        assert inside == made.policy.row_logprobs(ROWS), "without dropout"
    made.check()
    stock = PeftModel.from_pretrained(causal_lm(qwen3(), "sdpa", torch.float32), str(saved)).eval()
    assert_close(inside, stock_logprobs(stock))
    assert_close([inside[0]], [restored(saved).score(MODEL, ROWS)[0]])


def test_a_folder_of_peft_alone_is_a_reference_too(saved: Path, tmp_path: Path) -> None:
    """Without manifest, optimizer and state; its targets spelled as a pattern, as Unsloth does."""
    config = json.loads((saved / "adapter_config.json").read_text())
    config["target_modules"] = ".*(q_proj|up_proj)"
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / ADAPTER_FILE).write_bytes((saved / ADAPTER_FILE).read_bytes())
    made = Opened()
    with made.references.checkpoint(saved):
        expected = made.policy.row_logprobs(ROWS)
    with made.references.checkpoint(tmp_path):
        assert made.policy.row_logprobs(ROWS) == expected
    made.check()
    config["lora_bias"] = True
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="lora_bias"), made.references.checkpoint(tmp_path):
        raise AssertionError("never inside")
    made.check()


def restored(folder: Path) -> Trainer:
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, LoraSpec(r=2, alpha=3, dropout=0.3, targets=["q_proj", "up_proj"]), checkpoint=folder)
    return made


def test_contexts_follow_one_another(saved: Path) -> None:
    made = Opened()
    seen = []
    for _ in range(2):
        with made.references.checkpoint(saved):
            seen.append(made.policy.row_logprobs(ROWS))
        with made.references.base():
            seen.append(made.policy.row_logprobs(ROWS))
    made.check()
    assert seen[:2] == seen[2:] and seen[0] != seen[1]


def test_whatever_happens_inside_the_adapter_is_active_again(saved: Path) -> None:
    made = Opened()
    for context in (made.references.base, lambda: made.references.checkpoint(saved)):
        with pytest.raises(KeyError), context():
            raise KeyError("inside")
        made.check()


@pytest.mark.slow
def test_a_folder_that_does_not_fit_is_refused_before_anything_changed(saved: Path, tmp_path: Path) -> None:
    made = Opened()
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in saved.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "adapter_model.safetensors").write_bytes(b"cut off")
    for folder in (tmp_path / "none", copy):
        with pytest.raises(CheckpointError), made.references.checkpoint(folder):
            raise AssertionError("never inside")
        made.check()
    for other in (policy(llama()), policy(qwen3(), seed=1)):
        weights = Weights(other)
        weights.attach("a1", SPEC, seed=0)
        foreign = References(other, weights, "a1")
        with pytest.raises(CheckpointError, match="its own base model"), foreign.checkpoint(saved):
            raise AssertionError("never inside")


def test_asking_a_reference_draws_no_random_number(saved: Path) -> None:
    made = Opened()
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    for context in (made.references.base(), made.references.checkpoint(saved)):
        with context:
            entry_logprobs(made.policy)
    assert torch.equal(torch.get_rng_state(), expected)


def entry_logprobs(tiny: Policy) -> list[float]:
    batch = games()
    (micro,) = tiny.pack(batch.tree, batch.entries, 9999).micro_batches
    with torch.no_grad():
        return tiny.entry_scores(micro)[0].logprobs_E.tolist()
