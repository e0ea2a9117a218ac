"""The gradient of each rollout of a GRPO step by plain rows: transformers and PEFT, one sample at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from art.engine.base_models import local_folder
from art.server.ledger.ledger import read_samples

BASE = "art/nano-games"


def rollout_gradients(
    checkpoint: Path, ledger: Path, records: list[dict[str, Any]]
) -> dict[str, npt.NDArray[np.float64]]:
    """Rollout -> the gradient of -(1 / tokens) sum of (advantage * ratio), flat. The ratio to the sampler is
    near 1, so that nothing is clipped.
    """
    base = AutoModelForCausalLM.from_pretrained(local_folder(BASE), dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(checkpoint), is_trainable=True).eval()
    trained = [one for one in model.parameters() if one.requires_grad]
    samples = read_samples(ledger, [name for one in records for name in one["samples"]])
    found = {}
    for record in records:
        loss, tokens = torch.zeros(()), 0
        for name in record["samples"]:
            sample = samples[name]
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            first = len(sample.prompt_ids)
            logprobs = model(ids).logits[0, first - 1 : -1].log_softmax(-1)
            drawn = logprobs.gather(1, ids[0, first:, None])[:, 0]
            ratio = (drawn - torch.tensor(sample.completion_logprobs)).exp()
            loss, tokens = loss - record["advantage"] * ratio.sum(), tokens + len(ratio)
        gradients = torch.autograd.grad(loss / tokens, trained)
        found[record["rollout"]] = torch.cat([one.flatten() for one in gradients]).double().numpy()
    return found
