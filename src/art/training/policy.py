"""The model that is trained: a causal language model of transformers, its attention replaced by the tree's.

Letters: T = tokens of a micro-batch, P = predictors, N = targets (or tokens of an image), E = loss entries,
D = hidden size, L = row length.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import torch

from art.batch.batch_types import LossEntries, TokenTree
from art.engine.constraints import Grammars, read_vocabulary
from art.engine.limits import longest_fixed
from art.errors import ConfigurationError, TokenMismatchError
from art.process.imports import import_lock
from art.training.attention.checks import adopt_tree_attention, choose_kernel
from art.training.attention.pieces import BLOCK, TreePlan
from art.training.attention.tree_plan import LONG, plan_attention
from art.training.causal_lm import (
    Accelerator,
    check_head,
    decoder_layers,
    decoder_of,
    load_causal_lm,
    recomputed,
)
from art.training.distributions import Distributions, targets_of
from art.training.logprobs import LogitHead, target_logprobs
from art.training.packing.pack import pack
from art.training.packing.plain_rows import group_rows, hidden_of_rows, pack_rows, plan_of_rows
from art.training.packing.runs import MicroBatch, Packing
from art.training.ranks.group import RankGroup
from art.training.ranks.sharded import shard_base
from art.wire.records import Bits
from art.wire.samples import image_runs
from art.wire.training import MaskedBy

LOG = logging.getLogger(__name__)

VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache")
"""Configuration entries that say where a model came from, not what it computes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EntryScores:
    """The scores of a micro-batch's entries in a forward pass, in their order."""

    logprobs_E: torch.Tensor
    entropies_E: torch.Tensor
    """The entropy of the model's own distribution at each entry, with its gradient only if asked for."""
    hidden_PD: torch.Tensor
    """Last hidden states of the predictors, with their gradient: what a critic reads."""
    predictor_E: torch.Tensor
    """Which of the predictors predicts the entry."""


class Policy:
    """One base model in memory. LoRA layers, where attached, are part of `causal_lm`."""

    def __init__(
        self,
        causal_lm: Any,
        *,
        name: str,
        source: str | None = None,
        attention: str = "auto",
        block: int = BLOCK,
        long: int = LONG,
        known_as: str | None = None,
    ) -> None:
        """known_as: the base's fingerprint, where it was taken before ranks divided the base among them."""
        self.causal_lm = causal_lm
        self.name = name
        self.source = source
        """The folder or hub name that it was loaded from; None: it was made in memory."""
        self._block, self._long = block, long
        read_as_vllm = partial(read_vocabulary, markers=False)
        self.grammars: Mapping[MaskedBy, Grammars] = {
            "builtin": Grammars(source or name),
            "vllm-guidance": Grammars(source or name, load=read_as_vllm),
        }
        """The grammars of constraints that completions were drawn under, with the tokenizer of the source."""
        weight = causal_lm.get_input_embeddings().weight
        self.device, self.dtype = weight.device, weight.dtype
        self.kernel = choose_kernel(attention, self.device, self.dtype)
        self.head = LogitHead(causal_lm)
        self.layers = decoder_layers(causal_lm)
        self.sharded = known_as is not None
        """Whether ranks keep parts of the base, so that all must forward equally often."""
        self.checkpoint_activations = False
        """Whether forward passes with a gradient keep the layers' inputs only, and compute layers twice."""
        self.drops_out = False
        """Whether the adapter that computes has a dropout that is on. The base's own are off."""
        self.logit_rows: int | None = None
        """Rows of logits that exist at once at most; None: as many as the memory for them holds."""
        self._decoder = decoder_of(causal_lm)
        self._images = ImageEmbeddings(self)
        self.fingerprint = known_as or fingerprint(causal_lm)
        causal_lm.eval()
        causal_lm.requires_grad_(False)
        check_head(causal_lm, self.head)
        self._stock_attention = causal_lm.config._attn_implementation
        self.rows_because = adopt_tree_attention(causal_lm)
        """Why this model is trained in plain rows; None: in trees."""
        if self.rows_because is not None:
            LOG.warning("%s is trained in plain rows, which share nothing: %s", name, self.rows_because)

    @property
    def pair_cost(self) -> float:
        """Returns what a pair of a query and a key costs beside a token's pass through the matrices: 4 hidden
        numbers a layer to about 24 hidden^2.
        """
        return 1 / (6 * float(self.causal_lm.config.get_text_config().hidden_size))

    def pack(
        self, tree: TokenTree, entries: LossEntries, budget: int, *, whole_sequences: bool = False
    ) -> Packing:
        """Micro-batches of at most `budget` tokens, as this model can take them; the tree's images are
        embedded for them.

        Raises ConfigurationError for a path that is too long for its positions to mean the same everywhere.
        """
        self._check_length(int(tree.depth_T.max(initial=-1)) + 1)
        self._images.keep(tree.images)
        packer = pack if self.rows_because is None else pack_rows
        return packer(tree, entries, budget, whole_sequences=whole_sequences)

    def entry_scores(
        self, micro: MicroBatch, drawn: Distributions | None = None, *, entropies: bool = False
    ) -> tuple[EntryScores, TreePlan]:
        """Forward one micro-batch; logprobs of its entries with their gradient, and the attention plan
        used. `drawn`: the distributions of the batch's entries; None: the model's own. `entropies`: with
        their gradient, too.
        """
        with self.recomputing():
            hidden_TD, plan = self.hidden_of(micro)
        return self.scores_of(hidden_TD, micro, drawn, entropies=entropies), plan

    def recomputing(self) -> AbstractContextManager[None]:
        """Around a forward pass: where it is so planned, its layers are computed twice."""
        twice = self.checkpoint_activations and torch.is_grad_enabled()
        return recomputed(self.layers) if twice else nullcontext()

    def scores_of(
        self,
        hidden_TD: torch.Tensor,
        micro: MicroBatch,
        drawn: Distributions | None = None,
        *,
        entropies: bool = False,
    ) -> EntryScores:
        """The scores of a micro-batch's entries, by the last hidden states of its tokens."""
        targets = targets_of(micro, drawn, device=self.device)
        target_predictor_N = self._tensor(targets.predictor_N)
        hidden_PD = hidden_TD[self._tensor(micro.predictor_P)]
        logprobs_N, entropies_P = target_logprobs(
            self.head,
            hidden_PD,
            target_predictor_N,
            self._tensor(targets.id_N),
            sampling=targets.sampling,
            entropies=entropies,
            most_rows=self.logit_rows,
        )
        entry_target_E = self._tensor(targets.entry_target_E)
        predictor_E = target_predictor_N[entry_target_E]
        return EntryScores(
            logprobs_E=logprobs_N[entry_target_E],
            entropies_E=entropies_P[predictor_E],
            hidden_PD=hidden_PD,
            predictor_E=predictor_E,
        )

    @contextmanager
    def stock_attention(self) -> Iterator[None]:
        """Uses the model's own attention inside the block: for plain rows, not for trees."""
        ours = self.causal_lm.config._attn_implementation
        self.causal_lm.set_attn_implementation(self._stock_attention)
        try:
            yield
        finally:
            self.causal_lm.set_attn_implementation(ours)

    @torch.no_grad()
    def row_logprobs(self, rows: Sequence[Sequence[int]], *, budget: int = 8192) -> list[list[float]]:
        """Logprob of each id given those before it: plain rows, no tree. `len(row) - 1` numbers a row."""
        self._check_length(max(map(len, rows), default=0))
        result: list[list[float]] = [[] for _ in rows]
        for batch in group_rows([len(row) for row in rows], budget):
            width = max(len(rows[index]) for index in batch)
            ids_BL = torch.zeros(len(batch), width, dtype=torch.long, device=self.device)
            for at, index in enumerate(batch):
                ids_BL[at, : len(rows[index])] = torch.tensor(rows[index], device=self.device)
            positions_BL = torch.arange(width, device=self.device).expand(len(batch), width)
            hidden_BLD = self._decoder(
                input_ids=ids_BL, position_ids=positions_BL, use_cache=False
            ).last_hidden_state
            flat = torch.arange(len(batch) * (width - 1), device=self.device)
            logprobs, _ = target_logprobs(
                self.head, hidden_BLD[:, :-1].flatten(0, 1), flat, ids_BL[:, 1:].flatten()
            )
            for index, line in zip(batch, logprobs.view(len(batch), width - 1).tolist(), strict=True):
                result[index] = line[: len(rows[index]) - 1]
        return result

    def hidden_of(self, micro: MicroBatch, parts: Collection[int] = ()) -> tuple[torch.Tensor, TreePlan]:
        """Last hidden states [T, D] of a micro-batch's tokens. `parts`: see `plan_attention`."""
        tokens_T, depth_T = self._tensor(micro.tokens_T), self._tensor(micro.depth_T)
        inputs_TD = self._images.inputs(tokens_T) if (micro.tokens_T < 0).any() else None
        if self.rows_because is not None:
            return hidden_of_rows(self._decoder, tokens_T, depth_T, inputs_TD), plan_of_rows(micro)
        plan = plan_attention(
            micro.end_T,
            micro.depth_T,
            self.kernel,
            dtype=self.dtype,
            device=self.device,
            block=self._block,
            long=self._long,
            parts=parts,
        )
        read = {"input_ids": tokens_T[None]} if inputs_TD is None else {"inputs_embeds": inputs_TD[None]}
        output = self._decoder(**read, position_ids=depth_T[None], use_cache=False, tree_plan=plan)
        return output.last_hidden_state[0], plan

    def _check_length(self, length: int) -> None:
        limit = longest_fixed(self.causal_lm.config.get_text_config())
        if limit is not None and length > limit:
            raise ConfigurationError(
                f"A path has {length} tokens; beyond {limit} the positions of {self.name!r} depend on the "
                "longest row of a forward pass (its rotary embedding is dynamic), so that sampler and "
                f"trainer cannot agree. Keep prompt and completion within {limit} tokens."
            )

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.device)


class ImageEmbeddings:
    """The images of one batch at a time as what a vision-language model's decoder reads in their places.

    The tower that embeds them is frozen, so each is computed once for a batch, without a gradient; LoRA
    adapts the decoder alone. Pictures come in the size that the tower wants (`art.rendering.images`):
    nothing is resized here, and nothing was by the engine, so that both see the same pixels.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._processor: Any = None
        self._embedded: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def keep(self, images: Mapping[str, bytes]) -> None:
        """Compute the embeddings of these images, PNG files by their names, and forget all others.

        Raises ConfigurationError for a model that sees none.
        """
        self._embedded = {name: one for name, one in self._embedded.items() if name in images}
        for name, file in images.items():
            if name not in self._embedded:
                with self._policy.stock_attention():
                    self._embedded[name] = self._embed(file)

    def inputs(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Returns what the decoder reads [T, D]: the embeddings of ids, and of images where ids are negative.

        Raises TokenMismatchError where an image is missing, or has another number of tokens.
        """
        embedding = self._policy.causal_lm.get_input_embeddings()
        inputs_TD: torch.Tensor = embedding(tokens_T.clamp(min=0))
        try:
            runs = image_runs(tokens_T.tolist())
        except ValueError as error:
            raise TokenMismatchError(f"The batch holds ids that stand for nothing: {error}") from error
        if not runs:
            return inputs_TD
        inputs_TD = inputs_TD.clone()
        for run in runs:
            image_ND = self._embedded.get(run.name)
            tokens = 0 if image_ND is None else len(image_ND)
            if image_ND is None or tokens != run.stop - run.start:
                raise TokenMismatchError(
                    f"The batch has {run.stop - run.start} tokens of the image {run.name}, "
                    f"and {tokens} embeddings of it."
                )
            inputs_TD[run.start : run.stop] = image_ND.to(inputs_TD.dtype)
        return inputs_TD

    def _embed(self, file: bytes) -> torch.Tensor:
        with import_lock:
            from PIL import Image

        causal_lm = self._policy.causal_lm
        tower: Any = getattr(causal_lm, "model", None)
        if not hasattr(tower, "get_image_features"):
            raise ConfigurationError(f"{self._policy.name!r} sees no images; this batch has some.")
        if self._processor is None:
            self._processor = _processor(str(self._policy.source))
        seen = self._processor(images=[Image.open(BytesIO(file), formats=["PNG"])], return_tensors="pt")
        device = causal_lm.get_input_embeddings().weight.device
        (image_ND,) = tower.get_image_features(**seen.to(device)).pooler_output
        return torch.as_tensor(image_ND)


def _processor(source: str) -> Any:
    """The model's own, which is left nothing but to rescale and normalize."""
    with import_lock:
        from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(
        source, backend="pil", trust_remote_code=False, do_resize=False, do_image_splitting=False
    )


def choose_placement(device: str, dtype: str) -> tuple[str, str]:
    """Returns the device and dtype for "auto": the first GPU if there is one, in bfloat16; else the CPU, in
    float32.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype


def load_policy(
    path: str,
    *,
    name: str,
    device: str = "cpu",
    dtype: str = "float32",
    attention: str = "auto",
    accelerator: Accelerator = "auto",
    bits: Bits = 16,
    sharing: RankGroup | None = None,
) -> Policy:
    """Load a model folder or hub name. `name` is what checkpoints are bound to. `sharing`: ranks that divide
    the base among them.

    Raises ConfigurationError for a base that is quantized and is to be divided.
    """
    if sharing is None:
        causal_lm = load_causal_lm(path, device=device, dtype=dtype, accelerator=accelerator, bits=bits)
        return Policy(causal_lm, name=name, source=path, attention=attention)
    if bits != 16 or accelerator == "unsloth":
        other = "accelerator 'unsloth'" if bits == 16 else f"a base in {bits} bits"
        raise ConfigurationError(
            f"trainer.sharding 'fsdp' with {other}: only plain weights are divided among ranks. Leave one of "
            "them out."
        )
    causal_lm = load_causal_lm(path, device="cpu", dtype=dtype, accelerator=accelerator)
    known_as = fingerprint(causal_lm)
    shard_base(causal_lm, sharing, device)
    return Policy(causal_lm, name=name, source=path, attention=attention, known_as=known_as)


def fingerprint(causal_lm: torch.nn.Module) -> str:
    """Returns a fingerprint of the base model: configuration, parameter shapes, and the first values of every
    parameter.
    """
    config = {key: value for key, value in causal_lm.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in causal_lm.named_parameters():
        # In bfloat16, so that a model loaded in another dtype is still the same model.
        head = parameter.detach().flatten()[:16].to(torch.bfloat16).float().tolist()
        digest.update(f"{name}{list(parameter.shape)}{head}".encode())
    return digest.hexdigest()
