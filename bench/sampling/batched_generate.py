"""The peer of all benches of sampling: one batched `transformers.generate`, at temperature 1."""

from __future__ import annotations

import time
from typing import Any

import torch


@torch.inference_mode()
def generate_seconds(peer: Any, prompts: list[list[int]], new: int, device: str = "cpu") -> float:
    """Returns the seconds of `new` tokens for each prompt. Raises SystemExit where it samples fewer.

    prompts: of one length, so that none is padded.
    """
    ids = torch.tensor(prompts, device=device)
    begin = time.perf_counter()
    out = peer.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        top_p=1.0,
        min_new_tokens=new,
        max_new_tokens=new,
        pad_token_id=0,
        eos_token_id=None,
    ).cpu()
    seconds = time.perf_counter() - begin
    if out.shape[1] != len(prompts[0]) + new:
        raise SystemExit(f"the peer sampled {out.shape[1] - len(prompts[0])} tokens, not {new}")
    return seconds
