"""For each family, a tiny random model: a packed tree gives what plain rows through the stock model give, the
engine samples from what the trainer computes, PEFT loads the checkpoint and computes the same. What cannot be
done is refused with its reason.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
import torch
from families import FAMILIES, SHAPE, all_in_float64, build
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_policies import games, nodes_to, randomize
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from art.batch.batch_types import Batch
from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import GenerateRequest, Sampling
from art.errors import ConfigurationError
from art.training.lora import LoraAdapters
from art.training.policy import Policy, load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec

LORA = LoraSpec(r=3, alpha=6)
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
Result = tuple[torch.Tensor, dict[str, torch.Tensor]]


def some(names: list[str]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def weights(batch: Batch) -> torch.Tensor:
    """A gradient for each entry, all different."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(batch.entries), generator=generator, dtype=torch.float64)


def in_rows(name: str, batch: Batch, targets: list[str]) -> Result:
    """Each trained path as a row of its own through the stock model and PEFT: nothing of our code."""
    config = LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(build(FAMILIES[name](), "eager", torch.float64), config).eval()
    trained = {key.replace(".default.", "."): p for key, p in model.named_parameters() if "lora_" in key}
    randomize(trained)
    nodes = batch.entries.token_E.tolist()
    found: dict[int, torch.Tensor] = {}
    for leaf in sorted(set(nodes), key=lambda node: -int(batch.tree.depth_T[node])):
        if leaf in found:
            continue
        on_path = nodes_to(batch.tree, leaf)
        ids = torch.as_tensor(batch.tree.tokens_T[on_path].astype("int64"))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0]
        found |= {node: logprobs[at] for at, node in enumerate(on_path[1:]) if node not in found}
    scores = torch.stack([found[node] for node in nodes])
    (scores * weights(batch)).sum().backward()
    return scores.detach(), {key: p.grad for key, p in trained.items() if p.grad is not None}


def packed(name: str, batch: Batch, budget: int, attention: str) -> tuple[Result, list[str], Policy]:
    policy = Policy(
        build(FAMILIES[name](), "eager", torch.float64), name=name, attention=attention, block=5, long=6
    )
    adapters = LoraAdapters(policy)
    adapters.attach("a1", LORA, seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    scores = torch.zeros(len(batch.entries), dtype=torch.float64)
    weight = weights(batch)
    for micro in policy.pack(batch.tree, batch.entries, budget).micro_batches:
        got, _ = policy.entry_scores(micro)
        scores[micro.entry_E] = got.logprobs_E.detach()
        (got.logprobs_E * weight[micro.entry_E]).sum().backward()
    gradients = {key: p.grad for key, p in trained.items() if p.grad is not None}
    return (scores, gradients), adapters.targets(LORA), policy


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["rectangles", "dense"])
@pytest.mark.parametrize("name", some(ADAPTED))
def test_packed_equals_unpacked_in_float64(name: str, attention: str) -> None:
    batch = games(1, groups=2, size=3)
    with all_in_float64():
        got, targets, policy = packed(name, batch, 60, attention)
        wanted = in_rows(name, batch, targets)
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


def trained(name: str, folder: Path, **lora: object) -> tuple[Trainer, Path, Path]:
    """The family's model as a folder, a trainer on it with a random adapter, and that as a checkpoint."""
    base, checkpoint = folder / "base", folder / "0001"
    build(FAMILIES[name](), "eager", torch.float32).save_pretrained(base)
    trainer = Trainer(load_policy(str(base), name=name), token_budget=200)
    trainer.open("p/m", LoraSpec(r=4, alpha=6, **lora))  # type: ignore[arg-type]
    randomize(trainer._open["p/m"].parameters)
    trainer.save("p/m", checkpoint)
    return trainer, base, checkpoint


async def sampled(base: Path, adapter: Path, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Ids and logprobs of completions under the adapter."""
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1))
    try:
        await engine.load_adapter("m@1", adapter)

        async def one(number: int, prompt: list[int]) -> tuple[list[int], list[float]]:
            ids: list[int] = []
            logprobs: list[float] = []
            request = GenerateRequest(
                request_id=str(number),
                adapter="m@1",
                prompt_ids=prompt,
                sampling=Sampling(max_tokens=12, seed=number),
            )
            async for delta in engine.generate(request):
                ids += delta.token_ids
                logprobs += delta.logprobs
            return ids, logprobs

        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    finally:
        await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", some([n for n in ADAPTED if n not in REFUSED_BY_THE_ENGINE]))
async def test_the_sampler_agrees_with_the_trainer(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths behind a shared beginning, so that all of the engine's paths are walked."""
    trainer, base, checkpoint = trained(name, tmp_path, use_rslora=True)
    shared = [(7 * at + 3) % 23 for at in range(9)]
    prompts = [shared + [(5 * n + at) % 23 for at in range(n)] for n in range(5)]
    rows = await sampled(base, checkpoint, prompts)
    scores = trainer.score("p/m", [prompt + ids for prompt, (ids, _) in zip(prompts, rows, strict=True)])
    differences = [
        abs(ours - theirs)
        for (ids, logprobs), row in zip(rows, scores, strict=True)
        for ours, theirs in zip(row[-len(ids) :], logprobs, strict=True)
    ]
    assert len(differences) > 40
    assert max(differences) <= 1e-4


@pytest.mark.parametrize("name", some(sorted(REFUSED_BY_THE_ENGINE)))
async def test_what_the_engine_cannot_run_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    build(FAMILIES[name](), "eager", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=REFUSED_BY_THE_ENGINE[name]):
        await BuiltinEngine.start(str(tmp_path), BuiltinOptions(threads=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ADAPTED))
def test_peft_itself_loads_the_checkpoint(name: str, tmp_path: Path) -> None:
    trainer, base, checkpoint = trained(name, tmp_path, use_rslora=True)
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
    trainer, base, checkpoint = trained("gemma3-images", tmp_path)
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
