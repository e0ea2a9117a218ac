"""For each family, a tiny random model: a packed tree gives what plain rows through the stock model give, the
engine samples from what the trainer computes, PEFT loads the checkpoint and computes the same. What cannot be
done is refused with its reason.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from adapted_models import check_agreement, in_rows, packed, sampled, trained
from families import FAMILIES, SHAPE, all_in_float64, build
from peft import LoraConfig, PeftModel
from tiny_policies import games, randomize
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from art.engine.builtin.engine import BuiltinEngine
from art.errors import ConfigurationError
from art.training.lora import LoraAdapters
from art.training.policy import Policy, load_policy
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec

LORA = LoraSpec(r=3, alpha=6)
OPENED = LoraSpec(r=4, alpha=6, use_rslora=True)
IN_ROWS = {
    "qwen3-next": "layers of type linear_attention",
    "jamba": "layers of type linear_attention",
    "falcon-h1": "layers of type hybrid",
    "lfm2": "layers of type conv",
    "llama4": "layers of type chunked_attention",
    "stablelm": "attends 0 times in 2 layers",
    "bloom": "does not let its attention be replaced",
}
QUICK = {"gemma2", "gpt-oss", "qwen3-next"}
ADAPTED = sorted(set(FAMILIES) - {"gpt2"})


def some(names: list[str]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["rectangles", "dense"])
@pytest.mark.parametrize("name", some(ADAPTED))
def test_packed_equals_unpacked_in_float64(name: str, attention: str) -> None:
    batch = games(1, groups=2, size=3)
    with all_in_float64():
        model = build(FAMILIES[name](), "eager", torch.float64)
        policy = Policy(model, name=name, attention=attention, block=5, long=6)
        got, adapters = packed(policy, batch, LORA)
        targets = adapters.targets(LORA)
        config = LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=targets, task_type="CAUSAL_LM")
        wanted = in_rows(name, batch, config)
    assert (got[0] - wanted[0]).abs().max() <= 1e-10
    assert got[1].keys() == wanted[1].keys() and len(got[1]) >= 4
    for key, gradient in wanted[1].items():
        assert (got[1][key] - gradient).norm() <= 1e-10 * gradient.norm() + 1e-14, key
    assert (policy.rows_because is not None) == (name in IN_ROWS)


REFUSED_BY_THE_ENGINE = {
    "qwen3-next": "has layers of type linear_attention; the builtin engine knows attention",
    "jamba": "has layers of type linear_attention; the builtin engine knows attention",
    "falcon-h1": "has layers of type hybrid; the builtin engine knows attention",
    "lfm2": "has layers of type conv; the builtin engine knows attention",
    "llama4": "has layers of type chunked_attention; the builtin engine knows attention",
    "stablelm": "does not hand keyword arguments to its attention function",
    "bloom": "attends in 0 of its 2 layers",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some([n for n in ADAPTED if n not in REFUSED_BY_THE_ENGINE]))
async def test_the_sampler_agrees_with_the_trainer(name: str, tmp_path: Path) -> None:
    trainer, base, checkpoint = trained(name, tmp_path, OPENED)
    rows = await sampled(base, checkpoint)
    check_agreement(rows, trainer.score("p/m", [ids for ids, _ in rows]))


@pytest.mark.parametrize("name", some(sorted(REFUSED_BY_THE_ENGINE)))
async def test_what_the_engine_cannot_run_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    build(FAMILIES[name](), "eager", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=REFUSED_BY_THE_ENGINE[name]):
        await BuiltinEngine.start(str(tmp_path), BuiltinOptions(threads=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ADAPTED))
def test_peft_itself_loads_the_checkpoint(name: str, tmp_path: Path) -> None:
    trainer, base, checkpoint = trained(name, tmp_path, OPENED)
    stock = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    model = PeftModel.from_pretrained(stock, str(checkpoint)).eval()
    ids = torch.tensor([[(7 * at + 2) % 23 for at in range(14)]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits, -1)
    wanted = logprobs[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    (got,) = trainer.score("p/m", ids.tolist())
    assert (torch.tensor(got) - wanted).abs().max() <= 2e-5
    with model.disable_adapter(), torch.no_grad():
        bare = torch.log_softmax(model(input_ids=ids, use_cache=False).logits, -1)
    assert (bare - logprobs).abs().max() > 1e-2, "the adapter must change something"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(IN_ROWS))
def test_plain_rows_come_with_a_notice(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        policy = Policy(build(FAMILIES[name](), "eager", torch.float32), name=name)
    assert policy.rows_because is not None and IN_ROWS[name] in policy.rows_because
    assert f"{name} is trained in plain rows" in caplog.text


def test_a_model_without_linear_layers_has_no_targets() -> None:
    policy = Policy(build(FAMILIES["gpt2"](), "eager", torch.float32), name="gpt2")
    with pytest.raises(ConfigurationError, match="Known: none"):
        LoraAdapters(policy).targets(LoraSpec())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("qwen3", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("gpt-oss", ["k_proj", "o_proj", "q_proj", "v_proj"]),
        ("phi3", ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]),
        ("phi", ["dense", "fc1", "fc2", "k_proj", "q_proj", "v_proj"]),
        (
            "falcon-h1",
            ["down_proj", "gate_proj", "in_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        ),
    ],
)
def test_all_linear_targets(name: str, wanted: list[str]) -> None:
    policy = Policy(build(FAMILIES[name](), "eager", torch.float32), name=name)
    assert LoraAdapters(policy).targets(LoraSpec()) == wanted
    assert LoraAdapters(policy).resolve(LoraSpec(targets=wanted[::-1])).targets == wanted


def test_targets_that_mean_experts_to_peft_are_refused() -> None:
    policy = Policy(build(FAMILIES["deepseek-v3"](), "eager", torch.float32), name="deepseek-v3")
    targets = ["o_proj", "gate_proj", "up_proj", "down_proj"]
    with pytest.raises(
        ConfigurationError, match=r"\['down_proj', 'gate_proj', 'up_proj'\] mean the experts'"
    ):
        LoraAdapters(policy).targets(LoraSpec(targets=targets))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
async def test_positions_that_depend_on_the_longest_row_are_refused_beyond_their_first_length(
    kind: str, tmp_path: Path
) -> None:
    """Up to it sampler and trainer agree; the engine's context ends there, and the trainer says why."""
    if kind == "longrope":
        factors = {"short_factor": [1.0, 1.0], "long_factor": [4.0, 4.0]}
        rope = {"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": 1.0, **factors}
        config = Phi3Config(
            **SHAPE | {"max_position_embeddings": 80},
            original_max_position_embeddings=40,
            rope_parameters=rope,
        )
    else:
        rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
        config = LlamaConfig(**SHAPE | {"max_position_embeddings": 40}, rope_parameters=rope)
    build(config, "eager", torch.float32).save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), name="long")
    (short,) = policy.row_logprobs([[at % 23 for at in range(40)]])
    with pytest.raises(ConfigurationError, match="beyond 40 the positions of 'long' depend"):
        policy.row_logprobs([[at % 23 for at in range(41)]])
    assert policy.row_logprobs([[at % 23 for at in range(40)]]) == [short]
    engine = await BuiltinEngine.start(str(tmp_path), BuiltinOptions(threads=1))
    try:
        assert (await engine.info()).max_context == 40
        ((*theirs,),) = await engine.score(None, [[at % 23 for at in range(40)]])
    finally:
        await engine.close()
    assert short == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
def test_a_tower_for_images_is_not_adapted(tmp_path: Path) -> None:
    """Its layers have the same names, for PEFT too when it loads the checkpoint."""
    trainer, base, checkpoint = trained("gemma3-images", tmp_path, LoraSpec(r=4, alpha=6))
    keys = list(trainer.parameters("p/m"))
    assert keys and all(".language_model." in key for key in keys)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(checkpoint))
    loaded = [key for key, _ in model.named_parameters() if ".lora_" in key]
    assert len(loaded) == len(keys)


def test_logits_that_are_changed_in_an_unknown_way_are_refused() -> None:
    """Gemma 3 with images leaves out the cap that its text configuration names."""
    config = FAMILIES["gemma3-images"]()
    config.text_config.final_logit_softcapping = 0.5
    with pytest.raises(ConfigurationError, match="logits of its own, which the trainer does not know"):
        Policy(build(config, "eager", torch.float32), name="uncapped")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUICK))
def test_layers_that_are_computed_twice_give_the_same_gradients(name: str) -> None:
    """Activation checkpointing goes round windows, caps (which recompute blocks too), sinks and rows."""
    batch, results = games(1, groups=2, size=3), []
    for twice in (False, True):
        policy = Policy(build(FAMILIES[name](), "eager", torch.float32), name=name, block=5)
        policy.checkpoint_activations = twice
        adapters = LoraAdapters(policy)
        adapters.attach("a1", LORA, seed=0)
        randomize(adapters.parameters("a1"))
        for micro in policy.pack(batch.tree, batch.entries, 60).micro_batches:
            policy.entry_scores(micro)[0].logprobs_E.sum().backward()
        results.append({key: p.grad for key, p in adapters.parameters("a1").items()})
    for key, gradient in results[0].items():
        assert gradient is not None and results[1][key] is not None
        assert torch.allclose(results[1][key], gradient, rtol=1e-4, atol=1e-5 * float(gradient.norm())), key
