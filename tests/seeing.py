"""A tiny random vision-language model with the files that a real one has, and pictures to show it."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from art.rendering.nano import RENDERER_KEY

NANO_WORDS = Path(__file__).parents[1] / "src" / "art" / "engine" / "nano_models" / "nano_words"
SIDE, TOKENS = 56, 4
"""Pixels of the tower's square, and what it makes of them."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_seeing_base(folder: Path, *, dtype: str = "float32") -> Path:
    """An Idefics 3 of random weights, large enough that each layer and each pixel matters."""
    import torch
    from transformers import AutoTokenizer, Idefics3Config, Idefics3ForConditionalGeneration
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    tokenizer = AutoTokenizer.from_pretrained(str(NANO_WORDS))
    names = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    tokenizer.add_tokens(names, special_tokens=True)
    end = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer) + 8,
            "hidden_size": 128,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 1024,
            "bos_token_id": None,
            "tie_word_embeddings": True,
            **end,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": SIDE,
            "patch_size": 14,
            "num_channels": 3,
        },
    )
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
    )
    processor = Idefics3Processor(pictures, tokenizer, image_seq_len=TOKENS, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    settings = folder / "tokenizer_config.json"
    kept = json.loads(settings.read_text(encoding="utf-8"))
    kept.pop(RENDERER_KEY, None)  # its own chat template writes the prompts
    settings.write_text(json.dumps(kept), encoding="utf-8")
    return folder


def picture(seed: int, size: tuple[int, int] = (SIDE, SIDE)) -> bytes:
    """A PNG file of noise."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (*reversed(size), 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image_part(file: bytes) -> dict[str, Any]:
    """The picture as OpenAI's chat API takes it."""
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
