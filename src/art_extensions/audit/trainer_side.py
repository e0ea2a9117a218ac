"""What can be measured of a real model from the trainer's side, for `art audit-model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch, scored_paths
from art.engine.builtin.quantized import place, quantizing
from art.process.imports import import_lock
from art.training.policy import Policy, choose_placement, load_policy
from art.training.trainer import Trainer
from art.wire.records import Bits
from art.wire.training import LoraSpec

MODEL = "audit/model"
LOUD = 0.02
"""Standard deviation of the random adapter's B: enough to change every logprob by more than rounding."""
BUDGET = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobDifference:
    """The difference between two ways of computing the same logprobs."""

    mean: float
    max: float
    count: int

    @classmethod
    def between(cls, one: Sequence[float], other: Sequence[float]) -> LogprobDifference:
        gaps = np.abs(np.asarray(one) - np.asarray(other))
        return cls(mean=float(gaps.mean()), max=float(gaps.max()), count=len(gaps))


class TrainerSide:
    """The model in the trainer, with one LoRA whose weights are all random."""

    def __init__(self, source: str, *, name: str, device: str, dtype: str, bits: Bits = 16) -> None:
        """Raises what loading raises: OSError, ValueError, ConfigurationError."""
        self.device, self.dtype = choose_placement(device, dtype)
        self.precision = "bfloat16" if bits == 8 else self.dtype
        """The dtype whose limits apply: with 8 bits activations are rounded, too."""
        self._source = source
        self._trainer = Trainer(
            load_policy(source, name=name, device=self.device, dtype=self.dtype, bits=bits),
            token_budget=BUDGET,
        )

    @property
    def policy(self) -> Policy:
        return self._trainer.policy

    def describe(self) -> str:
        """Class, size, device and dtype."""
        causal_lm = self.policy.causal_lm
        size = sum(parameter.numel() for parameter in causal_lm.parameters())
        return f"{type(causal_lm).__name__}, {size:,} parameters, {self.device}, {self.dtype}"

    def prompts(self, count: int) -> list[list[int]]:
        """Rows of random ids behind a common beginning, of several lengths, the longest beyond the window."""
        rng = np.random.default_rng(7)
        length = self._path_length() - 32
        shared = rng.integers(0, self.policy.head.vocab_size, length).tolist()
        tails = [rng.integers(0, self.policy.head.vocab_size, 1 + at).tolist() for at in range(count)]
        return [[*shared[: length - 8 * at], *tail] for at, tail in enumerate(tails)]

    def attach(self, spec: LoraSpec, *, seed: int = 0) -> list[str]:
        """A random adapter; returns the full names of the adapted layers. Raises ConfigurationError."""
        self._trainer.open(MODEL, spec, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, parameter in self._trainer.parameters(MODEL).items():
                if "lora_B" in key:
                    noise = torch.randn(parameter.shape, generator=generator) * LOUD
                    parameter.copy_(noise.to(parameter))
        keys = self._trainer.parameters(MODEL)
        return sorted({key.removeprefix("base_model.model.").partition(".lora_")[0] for key in keys})

    def save(self, path: Path) -> list[str]:
        return self._trainer.save(MODEL, path)

    def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._trainer.score(MODEL, rows)

    @torch.no_grad()
    def packed_against_rows(self, *, seeds: Sequence[int] = (0, 1, 2)) -> LogprobDifference:
        """Logprobs of random trees' entries, packed as in training, against plain rows under the model's own
        attention.
        """
        packed: list[float] = []
        rows: list[float] = []
        for seed in seeds:
            batch = random_batch(seed, self.policy.head.vocab_size, self._path_length())
            found = np.zeros(len(batch.entries))
            for micro in self.policy.pack(batch.tree, batch.entries, BUDGET).micro_batches:
                scores, _ = self.policy.entry_scores(micro)
                found[micro.entry_E] = scores.logprobs_E.float().cpu().numpy()
            packed += found.tolist()
            rows += self._rows_of(batch)
        return LogprobDifference.between(packed, rows)

    def _rows_of(self, batch: Batch) -> list[float]:
        """The entries' logprobs, each path a row of its own under the stock attention."""
        tree, nodes = batch.tree, batch.entries.token_E.tolist()
        paths = [path.tolist() for path in scored_paths(tree, batch.entries)]
        with self.policy.stock_attention():
            scored = self.policy.row_logprobs([tree.tokens_T[path].tolist() for path in paths], budget=BUDGET)
        found: dict[int, float] = {}
        for path, line in zip(paths, scored, strict=True):
            found |= dict(zip(path[1:], line, strict=True))
        return [found[node] for node in nodes]

    def _path_length(self) -> int:
        """Longer than the model's window, where that is not too long to try."""
        config = self.policy.causal_lm.config.get_text_config()
        window = getattr(config, "sliding_window", None) or 0
        wanted = window + 64 if window <= 1024 else 96
        return min(max(96, wanted), int(getattr(config, "max_position_embeddings", wanted)))


def random_batch(seed: int, vocab_size: int, length: int) -> Batch:
    """Returns two groups of four rollouts of two turns, branching at several depths, about `length` tokens
    long.
    """
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, vocab_size, count)]

    groups = []
    for group in range(2):
        prompt, shared = ids(length // 2), ids(length // 8)
        rollouts = []
        for number in range(4):
            first = shared + ids(length // 8) if number % 2 else ids(length // 6)
            second = ids(length // 8)
            between = ids(4)
            samples = [
                _sample(f"{group}.{number}.0", prompt, first),
                _sample(f"{group}.{number}.1", prompt + first + between, second),
            ]
            rollouts.append(RolloutRow(rollout=f"{group}.{number}", reward=float(number), samples=samples))
        groups.append(GroupRow(rollouts=rollouts))
    return build_batch(groups)


def _sample(name: str, prompt: list[int], completion: list[int]) -> SampleRow:
    return SampleRow(
        sample_id=name,
        prompt_ids=prompt,
        completion_ids=completion,
        completion_logprobs=[-1.0] * len(completion),
    )


@torch.no_grad()
def scored_by_peft(
    source: str, adapter: Path, rows: Sequence[Sequence[int]], *, device: str, dtype: str, bits: Bits = 16
) -> list[float]:
    """Logprobs of the rows under stock transformers and PEFT, one after the other: nothing of ours.

    Raises what they raise where they do not take the folder.
    """
    with import_lock:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

    precision = getattr(torch, dtype)
    base = AutoModelForCausalLM.from_pretrained(
        source, dtype=precision, trust_remote_code=False, **quantizing(bits, device, precision)
    )
    model = PeftModel.from_pretrained(place(base, device), str(adapter)).eval()
    values: list[float] = []
    for row in rows:
        ids = torch.tensor([list(row)], device=device)
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
        values += logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return values
