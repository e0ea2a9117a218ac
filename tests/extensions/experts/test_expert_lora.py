"""LoRA on the experts of a mixture: PEFT's own wrappers in plain rows are the reference, and of one module a
sum over its experts that is written out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel
from tests.training.adapted_models import check_agreement, in_rows, packed, sampled, trained
from tests.training.families import FAMILIES, all_in_float64, build
from tests.training.tiny_policies import games, randomize, request
from transformers import AutoModelForCausalLM

from art.engine import nano_models
from art.engine.builtin.engine import BuiltinEngine
from art.engine.builtin.peft_folder import read_adapter
from art.errors import CheckpointError, ConfigurationError
from art.server.checkpoints.checkpoints import lora_of_peft
from art.training.checkpoint import find_tokenizer
from art.training.lora import LoraAdapters, lora_of
from art.training.policy import Policy, load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec
from art_extensions.experts.expert_lora import run_experts, stacks_of, take_apart
from art_extensions.publish.merge_messages import MergeRequest
from art_extensions.publish.merging.merge import merge

TARGETS = ["all-linear", "experts"]
LORA = LoraSpec(r=3, alpha=6, targets=TARGETS)
OPENED = LoraSpec(r=4, alpha=6, targets=TARGETS)
WITH_EXPERTS = ["qwen3-moe", "mixtral", "olmoe", "gpt-oss", "deepseek-v2", "deepseek-v3"]
IN_PLAIN_ROWS = ["qwen3-next", "jamba"]
"""Other layers of these keep them from token trees, and from the builtin engine."""
QUICK = "qwen3-moe"


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("name", [*WITH_EXPERTS, *IN_PLAIN_ROWS])
def test_packed_equals_pefts_rows_in_float64(name: str, twice: bool) -> None:
    batch = games(1, groups=2, size=3)
    with all_in_float64():
        policy = Policy(build(FAMILIES[name](), "eager", torch.float64), name=name, block=5, long=6)
        policy.checkpoint_activations = twice
        got, adapters = packed(policy, batch, LORA)
        targets = adapters.targets(LORA)
        stacks = sorted(adapters._model.peft_config["a1"].target_parameters)
        config = LoraConfig(
            r=LORA.r,
            lora_alpha=LORA.alpha,
            target_modules=[one for one in targets if one != "experts"],
            target_parameters=stacks,
            task_type="CAUSAL_LM",
        )
        wanted = in_rows(name, batch, config)
    assert stacks == ["experts.down_proj", "experts.gate_up_proj"] and "experts" in targets
    assert (got[0] - wanted[0]).abs().max() <= 1e-10
    assert got[1].keys() == wanted[1].keys()
    assert sum(".experts." in key for key in got[1]) >= 4
    for key, gradient in wanted[1].items():
        assert gradient.norm() > 0
        assert (got[1][key] - gradient).norm() <= 1e-10 * gradient.norm() + 1e-14, key


def one_expert(experts: Any, e: int, x_T: torch.Tensor, factors: list[Any]) -> torch.Tensor:
    """Written out for one token, from the formulas: weight plus the product of its factors."""
    y = x_T
    for place, stack in enumerate(stacks_of(experts) or ()):
        weight = getattr(experts, stack)[e].clone()
        weight = weight.T if experts.is_transposed else weight
        for down, up in factors[place]:
            weight = weight + up[e] @ down[e]
        y = weight @ y
        if experts.has_bias:
            y = y + getattr(experts, f"{stack}_bias")[e]
        if place == 0:
            y = experts._apply_gate(y[None])[0]
    return y


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["qwen3-moe", "gpt-oss"]), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**16))
def test_tokens_of_several_adapters_meet_their_own_factors(
    name: str, count: int, rank: int, seed: int
) -> None:
    """Three groups of tokens: two adapters, and none."""
    model = build(FAMILIES[name](), "eager", torch.float64)
    experts: Any = next(one for one in model.modules() if stacks_of(one))
    g = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    sizes = [tuple(getattr(experts, stack).shape[1:]) for stack in stacks_of(experts) or ()]
    sizes = [(size[1], size[0]) if experts.is_transposed else size for size in sizes]
    x_TI, weight_TK = drawn(count, 16), drawn(count, 2)
    index_TK = torch.stack([torch.randperm(4, generator=g)[:2] for _ in range(count)])
    owner_T = torch.randint(0, 3, (count,), generator=g)
    loras, plain = [], []
    for _ in range(2):
        pairs = [(drawn(rank * 4, size), drawn(out, rank * 4)) for out, size in sizes]
        taken = [take_apart(a, b, 4, 0.5) for a, b in pairs]
        loras.append((taken[0], taken[1]))
        plain.append(
            [
                (
                    [a[e * rank : (e + 1) * rank] for e in range(4)],
                    [0.5 * torch.stack([b[:, r * 4 + e] for r in range(rank)], 1) for e in range(4)],
                )
                for a, b in pairs
            ]
        )
    groups = [((owner_T == number).nonzero()[:, 0], lora) for number, lora in enumerate(loras)]
    got = run_experts(experts, groups, x_TI, index_TK, weight_TK)
    for t in range(count):
        own = plain[int(owner_T[t])] if owner_T[t] < 2 else None
        factors = [[own[place]] if own else [] for place in range(2)]
        wanted = sum(
            weight_TK[t, k] * one_expert(experts, int(index_TK[t, k]), x_TI[t], factors) for k in range(2)
        )
        assert (got[t] - wanted).abs().max() <= 1e-10 * (1 + wanted.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grouped_product_computes_the_same(dtype: torch.dtype) -> None:
    """Sizes of whole multiples of 16 bytes take torch's grouped product, forward and backward."""
    config = FAMILIES["qwen3-moe"]()
    config.moe_intermediate_size = 16
    exact: Any = next(one for one in build(config, "eager", torch.float64).modules() if stacks_of(one))
    rounded: Any = next(one for one in build(config, "eager", dtype).modules() if stacks_of(one))
    g = torch.Generator().manual_seed(0)
    x_TI = torch.randn(12, 16, generator=g).to(dtype)
    weight_TK = torch.rand(12, 2, generator=g).to(dtype)
    index_TK = torch.stack([torch.randperm(4, generator=g)[:2] for _ in range(12)])
    found = []
    for experts, kind in ((exact, torch.float64), (rounded, dtype)):
        with torch.no_grad():
            for stack in ("gate_up_proj", "down_proj"):
                getattr(experts, stack).copy_(getattr(rounded, stack))
        g = torch.Generator().manual_seed(1)
        pairs = [
            tuple(torch.randn(shape, generator=g).to(dtype).to(kind).requires_grad_() for shape in shapes)
            for shapes in (((32, 16), (32, 32)), ((32, 16), (16, 32)))
        ]
        taken = [take_apart(a, b, 4, 0.25) for a, b in pairs]
        out = run_experts(
            experts, [(None, (taken[0], taken[1]))], x_TI.to(kind), index_TK, weight_TK.to(kind)
        )
        (out * torch.arange(16, dtype=kind)).sum().backward()
        found.append([out.detach(), *(one.grad for pair in pairs for one in pair)])
    limit = 1e-5 if dtype == torch.float32 else 0.05
    for wanted, got in zip(*found, strict=True):
        assert (got.double() - wanted).norm() <= limit * wanted.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXPERTS)
async def test_the_sampler_agrees_with_the_trainer(name: str, tmp_path: Path) -> None:
    spec = LoraSpec(r=4, alpha=6, targets=TARGETS, use_rslora=True)
    trainer, base, checkpoint = trained(name, tmp_path, spec)
    rows = await sampled(base, checkpoint)
    whole = [ids for ids, _ in rows]
    scores = trainer.score("p/m", whole)
    check_agreement(rows, scores)
    with torch.no_grad():
        for key, one in trainer.parameters("p/m").items():
            if ".experts." in key:
                one.zero_()
    without = trainer.score("p/m", whole)
    moved = max(abs(a - b) for x, y in zip(without, scores, strict=True) for a, b in zip(x, y, strict=True))
    assert moved > 1e-2, "the experts' factors must change something"


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_peft_itself_loads_the_checkpoint_and_merging_gives_the_same(name: str, tmp_path: Path) -> None:
    trainer, base, checkpoint = trained(name, tmp_path, OPENED)
    ids = torch.tensor([[(7 * at + 2) % 23 for at in range(14)]])
    (got,) = trainer.score("p/m", ids.tolist())
    for file in find_tokenizer(str(nano_models.resolve("art/nano"))).values():  # any: merging copies it
        shutil.copy(file, base / file.name)
    stock = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    adapted = PeftModel.from_pretrained(stock, str(checkpoint)).eval()
    reply = merge(
        MergeRequest(
            checkpoint=str(checkpoint), base_model=str(base), to=str(tmp_path / "merged"), dtype="float32"
        )
    )
    assert reply.error is None
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager").eval()
    for model in (adapted, merged):
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits, -1)
        wanted = logprobs[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        assert (torch.tensor(got) - wanted).abs().max() <= 1e-4


@pytest.mark.slow
def test_an_adapter_of_another_program(tmp_path: Path) -> None:
    """PEFT's two files alone, of the same weights, opened and as a reference: rank and targets are read."""
    trainer, _, checkpoint = trained("qwen3-moe", tmp_path, OPENED)
    plain = tmp_path / "plain" / "0003"
    plain.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(checkpoint / name, plain / name)
    assert lora_of(read_adapter(plain)) == trainer._weights.resolve(OPENED)
    found = lora_of_peft(plain, json.loads((plain / "adapter_config.json").read_text()))
    assert LoraSpec(**found) == trainer._weights.resolve(OPENED)
    assert trainer.open("p/plain", OPENED, checkpoint=plain) == 3
    rows = [[(3 * at + 1) % 23 for at in range(11)]]
    assert trainer.score("p/plain", rows) == trainer.score("p/m", rows)


@pytest.mark.slow
async def test_in_bfloat16_trainer_and_engine_agree_as_far_as_it_goes(tmp_path: Path) -> None:
    """The factors stay float32, and products are those of the weights' precision."""
    config = FAMILIES["qwen3-moe"]()
    config.moe_intermediate_size = 16
    build(config, "eager", torch.float32).save_pretrained(tmp_path / "base")
    trainer = Trainer(load_policy(str(tmp_path / "base"), name="m", dtype="bfloat16"), token_budget=200)
    trainer.open("p/m", LoraSpec(r=8, alpha=8, targets=TARGETS))
    randomize(trainer._open["p/m"].parameters)
    assert {one.dtype for one in trainer.parameters("p/m").values()} == {torch.float32}
    trainer.save("p/m", tmp_path / "0001")
    batch = games(2)
    trainer.train(batch.tree, batch.entries, request(batch).model_copy(update={"model": "p/m"}))
    trainer.save("p/m", tmp_path / "0002")
    rows = [[(3 * at + n) % 23 for at in range(11)] for n in range(3)]
    engine = await BuiltinEngine.start(str(tmp_path / "base"), BuiltinOptions(threads=1, dtype="bfloat16"))
    try:
        await engine.load_adapter("m@2", tmp_path / "0002")
        got = torch.tensor(await engine.score("m@2", rows))
    finally:
        await engine.close()
    assert (got - torch.tensor(trainer.score("p/m", rows))).abs().median() <= 0.1


@pytest.mark.slow
async def test_adapters_with_and_without_experts_in_one_engine(tmp_path: Path) -> None:
    """Their tokens share passes, and each row is what it is alone."""
    trainer, base, _ = trained("qwen3-moe", tmp_path, OPENED)
    trainer.open("p/other", LoraSpec(r=2, alpha=4, targets=TARGETS))
    randomize(trainer._open["p/other"].parameters, seed=5)
    trainer.open("p/plain", LoraSpec(r=2, alpha=4))
    randomize(trainer._open["p/plain"].parameters, seed=6)
    names = ["p/m", "p/other", "p/plain"]
    rows = [[(3 * at + n) % 23 for at in range(11)] for n in range(3)]
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1))
    try:
        for number, name in enumerate(names):
            trainer.save(name, tmp_path / f"000{number + 2}")
            await engine.load_adapter(f"{name}@1", tmp_path / f"000{number + 2}")
        for name in names:
            got = torch.tensor(await engine.score(f"{name}@1", rows))
            assert (got - torch.tensor(trainer.score(name, rows))).abs().max() <= 1e-4
        await engine.unload_adapter("p/other@1")
        base_scores = torch.tensor(await engine.score(None, rows))
        again = torch.tensor(await engine.score("p/m@1", rows))
        assert (again - torch.tensor(trainer.score("p/m", rows))).abs().max() <= 1e-4
        assert (again - base_scores).abs().max() > 1e-2
    finally:
        await engine.close()
    before = trainer.score("p/plain", rows)
    trainer.close("p/m")
    trainer.close("p/other")
    assert trainer.score("p/plain", rows) == before


def test_targets() -> None:
    policy = Policy(build(FAMILIES["qwen3-moe"](), "eager", torch.float32), name="qwen3-moe")
    adapters = LoraAdapters(policy)
    attention = ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert adapters.targets(LoraSpec()) == attention, "experts are adapted where they are asked for"
    for targets in (TARGETS, [*attention, "experts"]):
        resolved = adapters.resolve(LoraSpec(targets=targets))
        assert resolved.targets == sorted([*attention, "experts"])
        assert adapters.resolve(resolved) == resolved
    assert adapters.targets(LoraSpec(targets=["experts"])) == ["experts"]
    adapters.attach("a1", LoraSpec(r=2, targets=["experts"]), seed=0)
    assert all(".experts." in key for key in adapters.parameters("a1"))
    assert adapters.targets(LoraSpec(targets=TARGETS)) == sorted([*attention, "experts"])
    assert adapters.matrices("a1") == frozenset(), "stacks are no matrices"
    adapters.attach("a2", LoraSpec(r=2, targets=TARGETS), seed=0)
    assert adapters.matrices("a2") == {key for key in adapters.parameters("a2") if ".self_attn." in key}
    assert not adapters.can_share("a1")


@pytest.mark.parametrize(
    ("name", "lora", "match"),
    [
        (
            "qwen3",
            LoraSpec(targets=TARGETS),
            "'experts' means experts with fused weights, and 'qwen3' has none",
        ),
        ("llama4", LoraSpec(targets=TARGETS), "'llama4' has none that are known"),
        ("qwen3-moe", LoraSpec(targets=TARGETS, dropout=0.1), "lora_dropout 0.1 does not act on 'experts'"),
        (
            "deepseek-v3",
            LoraSpec(targets=["gate_proj"]),
            "'experts' adapts all experts' weights|PEFT refuses",
        ),
    ],
)
def test_what_cannot_be_adapted_is_refused_by_name(name: str, lora: LoraSpec, match: str) -> None:
    policy = Policy(build(FAMILIES[name](), "eager", torch.float32), name=name)
    with pytest.raises(ConfigurationError, match=match):
        LoraAdapters(policy).targets(lora)


@pytest.mark.slow
async def test_an_adapter_of_other_experts_is_refused_by_the_engine(tmp_path: Path) -> None:
    _, _, checkpoint = trained("qwen3-moe", tmp_path / "a", OPENED)
    config = FAMILIES["qwen3-moe"]()
    config.num_experts = 5
    build(config, "eager", torch.float32).save_pretrained(tmp_path / "b")
    engine = await BuiltinEngine.start(str(tmp_path / "b"), BuiltinOptions(threads=1))
    try:
        with pytest.raises(CheckpointError, match=r"'model.layers.0.mlp.experts' that do not fit the base"):
            await engine.load_adapter("m@1", checkpoint)
    finally:
        await engine.close()
