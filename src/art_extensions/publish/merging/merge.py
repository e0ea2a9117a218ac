"""A checkpoint as a whole model: the base with the adapter merged into it, as transformers and vLLM load it.

    python -m art_extensions.publish.merging.merge

reads one line, a `MergeRequest`, and writes one, a `MergeReply`.

Where the output layer shares its weight with the embedding and one of them is adapted, each gets its own.
Of a base that was quantized, the weights are written that its layers computed with, in full precision.
Before anything is written, the merged model must give the logits of the base with its adapter.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from pydantic import ValidationError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from art.engine.base_models import local_folder
from art.engine.builtin.quantized import is_quantized, unpacked_weight
from art.errors import ARTError, CheckpointError
from art.process.environment import die_with_parent
from art.training.causal_lm import load_causal_lm
from art.training.checkpoint import find_tokenizer
from art.wire.models import ADAPTER_FILE, STATE_FILE, TEMPLATE_FILE
from art.wire.records import Bits, flaws_without_values, split_bits
from art_extensions.publish.merge_messages import MergeReply, MergeRequest

SMALL_PARAMETERS = 500_000_000
"""Below it, "auto" writes float32, which keeps all of an adapter; above it, the base's own dtype."""
TOKENS = 48
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""The limit of the relative difference of logits by written dtype; writing rounds once more than sampling."""


def merge(request: MergeRequest) -> MergeReply:
    """Writes the whole model of a checkpoint. Raises CheckpointError, ConfigurationError, OSError."""
    checkpoint, to = Path(request.checkpoint), Path(request.to)
    is_adapter = (checkpoint / ADAPTER_FILE).is_file()
    named, _ = split_bits(request.base_model)
    base = local_folder(named)
    source = base if is_adapter else str(checkpoint)
    parameters = count_parameters(source)
    dtype = written_dtype(request.dtype, source, parameters)
    dtype_name = str(dtype).removeprefix("torch.")
    causal_lm = load_causal_lm(source, device="cpu", dtype=dtype_name)
    difference = None
    if is_adapter:
        take_trained_weights(causal_lm, source, bits_of(checkpoint))
        adapted = PeftModel.from_pretrained(causal_lm, str(checkpoint)).eval()
        before = probe_logits(adapted)
        untie_adapted(causal_lm)
        causal_lm = adapted.merge_and_unload(safe_merge=True)
        difference = check_logits(before, probe_logits(causal_lm), dtype)
    causal_lm.config.dtype = dtype
    causal_lm.save_pretrained(str(to))
    for weights in to.glob("*.safetensors"):
        weights.chmod(0o644)
    write_tokenizer(base, checkpoint, to)
    if request.chat_template is not None:
        (to / TEMPLATE_FILE).write_text(request.chat_template, encoding="utf-8")
    return MergeReply(dtype=dtype_name, parameters=parameters, difference=difference)


def bits_of(checkpoint: Path) -> Bits:
    """Returns the bits of the base model that the checkpoint was trained on; 16 where nothing says."""
    state = checkpoint / STATE_FILE
    base_model = json.loads(state.read_bytes()).get("base_model") if state.is_file() else None
    return split_bits(str(base_model))[1]


@torch.no_grad()
def take_trained_weights(causal_lm: Any, source: str, bits: Bits) -> None:
    """Replaces the weights of a base by those that its adapter was trained on: of a quantized one, what its
    layers compute with. The adapter has learned to make up for what quantizing lost.
    """
    if bits == 16:
        return
    own = str(causal_lm.dtype).removeprefix("torch.")
    quantized = load_causal_lm(source, device="cpu", dtype=own, bits=bits)
    for name, layer in quantized.named_modules():
        if is_quantized(layer):
            causal_lm.get_submodule(name).weight.copy_(unpacked_weight(layer))


def write_tokenizer(base: str, checkpoint: Path, to: Path) -> None:
    """Copies the files that the checkpoint or the base has; else transformers fetches and writes them."""
    files = find_tokenizer(str(checkpoint)) or find_tokenizer(base)
    for name, file in files.items():
        shutil.copyfile(file, to / name)
    if not files:
        AutoTokenizer.from_pretrained(base, trust_remote_code=False).save_pretrained(str(to))


def count_parameters(source: str) -> int:
    """Returns the number of parameters, without loading one."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(one.numel() for one in empty.parameters())


def written_dtype(wanted: str, source: str, parameters: int) -> torch.dtype:
    """Returns the dtype of the written weights."""
    if wanted != "auto":
        chosen: torch.dtype = getattr(torch, wanted)
        return chosen
    if parameters < SMALL_PARAMETERS:
        return torch.float32
    own = getattr(
        AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config(), "dtype", None
    )
    return own if own in LIMITS else torch.bfloat16


def untie_adapted(causal_lm: Any) -> None:
    """Gives the output layer a weight of its own where it shares the embedding's and one of them is adapted.

    Merged into a shared weight, the adapter of the one would change the other too.
    """
    layers = [causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings()]
    plain = [one.get_base_layer() if isinstance(one, BaseTunerLayer) else one for one in layers]
    if None in plain or plain[0].weight is not plain[1].weight:
        return
    if any(isinstance(one, BaseTunerLayer) for one in layers):
        plain[1].weight = torch.nn.Parameter(plain[1].weight.detach().clone(), requires_grad=False)
        causal_lm.config.tie_word_embeddings = False
        causal_lm.config.get_text_config().tie_word_embeddings = False
        causal_lm.all_tied_weights_keys = {}  # what transformers leaves out when it saves


@torch.no_grad()
def probe_logits(causal_lm: Any) -> torch.Tensor:
    """Returns the logits [TOKENS, vocabulary] of fixed ids."""
    vocabulary = causal_lm.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(TOKENS) * 7919 + 3)[None] % vocabulary
    logits: torch.Tensor = causal_lm(input_ids=ids, use_cache=False).logits[0]
    return logits.float()


def check_logits(before: torch.Tensor, after: torch.Tensor, dtype: torch.dtype) -> float:
    """Returns the relative difference. Raises CheckpointError where it is more than rounding."""
    difference = float((before - after).norm() / before.norm())
    if not difference <= LIMITS[dtype]:
        raise CheckpointError(
            f"the merged model computes other logits than the base with its adapter (relative difference "
            f"{difference:.1e}, limit {LIMITS[dtype]:g}): nothing was written. Export with --format peft."
        )
    return difference


def main() -> int:
    """Answers the one request on the standard input."""
    die_with_parent()
    line = sys.stdin.readline()
    try:
        reply = merge(MergeRequest.model_validate_json(line))
    except ValidationError as error:
        reply = MergeReply(error=flaws_without_values(error))
    except (ARTError, OSError, ValueError, RuntimeError, SafetensorError) as error:
        reply = MergeReply(
            error=f"{type(error).__name__}: {error}" if not isinstance(error, ARTError) else str(error)
        )
    sys.stdout.write(reply.model_dump_json() + "\n")
    return 0 if reply.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
