"""A tree with images computes what the stock model computes of each row with its pictures, gradients too."""

from __future__ import annotations

import types
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_policies import exact_norm, games, randomize, request
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from art.batch.batch_types import SampleRow, TokenTree
from art.batch.build import loss_entries
from art.batch.encode import decode_batch, encode_batch
from art.batch.token_tree import build_tree
from art.errors import TokenMismatchError
from art.training.lora import LoraAdapters
from art.training.policy import Policy, load_policy
from art.wire.samples import image_ids, image_name
from art.wire.training import LoraSpec
from seeing import SIDE, TOKENS, picture, save_seeing_base

PICTURES = [picture(seed) for seed in range(2)]
IMAGES = {image_name(file): file for file in PICTURES}
FIRST, SECOND = (image_ids(name, TOKENS) for name in IMAGES)
ROWS = [
    ([5, 6, *FIRST, 7], [8, 9]),
    ([5, 6, *FIRST, 7], [8, 10, 11]),
    ([5, 6, *FIRST, 7, 8, 9, *SECOND, 12], [13]),
    ([5, 6, *SECOND, 7], [8, 9]),
    ([5, 6, 7], [8, 9]),
]
"""Two completions of one picture, a second turn with another, the same text with another, and none."""
LORA = LoraSpec(r=3, alpha=6)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_seeing_base(tmp_path_factory.mktemp("seeing"), dtype="float64")


def policy_of(base: Path, attention: str) -> Policy:
    policy = load_policy(str(base), name="test/seeing", dtype="float64", attention=attention)
    for module in policy.causal_lm.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = types.MethodType(exact_norm, module)
    return policy


def stock_logprobs(base: Path, policy: Policy) -> list[torch.Tensor]:
    """Each row through the whole model of transformers, which places the pictures itself."""
    model = policy.causal_lm
    processor = Idefics3ImageProcessorPil.from_pretrained(
        base, do_image_splitting=False, size={"longest_edge": SIDE}
    )
    placeholder = model.config.image_token_id
    found = []
    for prompt, completion in ROWS:
        ids = torch.tensor([*prompt, *completion])
        named = dict.fromkeys(str(piece) for piece in ids[ids < 0].tolist())
        seen = [file for file, run in zip(PICTURES, (FIRST, SECOND), strict=True) if str(run[0]) in named]
        pixels = {}
        if seen:
            pictures = [Image.open(BytesIO(file)) for file in seen]
            pixels = processor(images=[pictures], return_tensors="pt")
            pixels["pixel_values"] = pixels["pixel_values"].double()
        ids = torch.where(ids < 0, placeholder, ids)
        with policy.stock_attention():
            logits = model(input_ids=ids[None], **pixels).logits[0]
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        found.append(rows[range(len(completion)), completion])
    return found


def batch_of_rows() -> tuple[TokenTree, list[SampleRow], list[np.ndarray]]:
    samples = [
        SampleRow(
            sample_id=str(number),
            prompt_ids=prompt,
            completion_ids=completion,
            completion_logprobs=[-1.0] * len(completion),
        )
        for number, (prompt, completion) in enumerate(ROWS)
    ]
    tree, paths = build_tree([np.array([*row.prompt_ids, *row.completion_ids]) for row in samples])
    return replace(tree, images=IMAGES), samples, paths


@pytest.mark.slow
@pytest.mark.parametrize("budget", [12, 200])
@pytest.mark.parametrize("attention", ["rectangles", "dense"])
def test_packed_equals_each_row_with_its_pictures(base: Path, attention: str, budget: int) -> None:
    policy = policy_of(base, attention)
    assert policy.rows_because is None
    adapters = LoraAdapters(policy)
    adapters.attach("a1", LORA, seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    assert trained and not any("vision" in name or "connector" in name for name in trained)
    tree, samples, paths = batch_of_rows()
    entries = loss_entries(samples, paths, [1.0, -2.0, 3.0, 0.5, -1.0], sequences=range(len(samples)))
    wanted = torch.cat(stock_logprobs(base, policy))
    weights = torch.linspace(-1, 1, len(wanted), dtype=torch.float64)
    (wanted * weights).sum().backward()
    gradients = {name: one.grad.clone() for name, one in trained.items()}
    for one in trained.values():
        one.grad = None

    got = torch.zeros_like(wanted)
    for micro in policy.pack(tree, entries, budget).micro_batches:
        scores, _ = policy.entry_scores(micro)
        (scores.logprobs_E * weights[micro.entry_E]).sum().backward()
        got[micro.entry_E] = scores.logprobs_E.detach()
    assert (got - wanted).abs().max() <= 1e-10
    for name, gradient in gradients.items():
        assert (trained[name].grad - gradient).norm() <= 1e-9 * gradient.norm(), name
    assert (got[0] - got[6]).abs() > 1e-3, "the picture matters"


def test_a_batch_travels_with_its_images(base: Path) -> None:
    tree, samples, paths = batch_of_rows()
    entries = loss_entries(samples, paths, [1.0] * len(samples), sequences=range(len(samples)))
    batch = replace(games(), tree=tree, entries=entries)
    read, _, _ = decode_batch(encode_batch(batch, request(batch)))
    assert read.images == IMAGES and read.tokens_T.tolist() == tree.tokens_T.tolist()


def test_an_image_that_is_missing_is_said(base: Path) -> None:
    policy = policy_of(base, "dense")
    tree, samples, paths = batch_of_rows()
    entries = loss_entries(samples, paths, [1.0] * len(samples), sequences=range(len(samples)))
    lone = replace(tree, images={name: file for name, file in list(IMAGES.items())[:1]})
    (micro,) = policy.pack(lone, entries, 200).micro_batches
    with pytest.raises(TokenMismatchError, match=f"image {list(IMAGES)[1]}, and 0 embeddings"):
        policy.entry_scores(micro)
