"""A LoRA can make any answer likely, also one that the model was never taught to give."""

from __future__ import annotations

import pytest
import torch
from nano.model import best_probabilities, new_model, spread_rows
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.engine.nano_models import FOLDERS, resolve
from art.rendering.nano import create_nano_renderer
from art.training.lora import LoraAdapters
from art.training.policy import load_policy
from art.wire.training import LoraSpec

MODELS = sorted({folder: name for name, folder in FOLDERS.items()}.values())


@pytest.mark.parametrize("name", MODELS)
def test_some_hidden_state_makes_each_token_likely(name: str) -> None:
    model = Qwen3ForCausalLM.from_pretrained(resolve(name), dtype=torch.float32)
    assert float(best_probabilities(model).min()) >= 0.9


@pytest.mark.slow
def test_rows_that_only_noise_tells_apart_are_moved_and_the_others_stay() -> None:
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve("art/nano-games"))
    model = new_model("nano-tools", tokenizer)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        rows[:20] *= 30
    before = rows.detach().clone()
    assert float(best_probabilities(model)[20:].max()) < 0.5
    spread_rows(model)
    assert torch.equal(rows[:20], before[:20]) and not torch.equal(rows[20:], before[20:])
    assert float(best_probabilities(model).min()) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_lora_makes_an_answer_likely_that_its_base_never_gives(name: str) -> None:
    """Among the digits, as a constrained reply is sampled; alike rows let it reach a quarter."""
    policy = load_policy(str(resolve(name)), name=name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve(name))
    adapters = LoraAdapters(policy)
    adapters.attach("a", LoraSpec(r=16, alpha=32), seed=0)
    parameters = list(adapters.parameters("a").values())
    optimizer = torch.optim.AdamW(parameters, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    prompt = [{"role": "user", "content": "Which number do I think of?"}]
    ids = torch.tensor([create_nano_renderer(tokenizer).render_ids(prompt, add_generation_prompt=True)])
    digits = [tokenizer.encode(digit, add_special_tokens=False)[0] for digit in "0123456789"]

    def probability() -> torch.Tensor:
        """Of the digit seven."""
        return policy.causal_lm(input_ids=ids).logits[0, -1, digits].softmax(-1)[7]

    for _ in range(30):
        loss = -probability().log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert probability().item() >= 0.9
