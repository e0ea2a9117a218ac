"""Initial weights with which a small model copies and looks things up from its first step on.

Copying needs two heads in a row: one that says at each position what stood just before, and one that
finds the position that followed the same word. Trained from noise, a model of this size finds the pair
for some eighty words within minutes, and for hundreds not within hours. So the heads are drawn here: the
projections are random, and only where they lead is given. Training does the rest, and may undo it.

The residual stream has four parts. Dimension 0 is the same for all tokens, so that a head can attend by
position alone, and dimension 1 says whether a space comes first. `BACK` hold what stood one, two and three
places back. `TOKEN` is what the token is. `FOUND` holds what followed the same token where it stood before:
one place behind it, and two places behind it ("atlas is red": what `atlas` finds, asked again, is `red`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

WIDTH = 192
MARK = 20
BACK = tuple(slice(4 + MARK * back, 4 + MARK * (back + 1)) for back in range(3))
TOKEN = slice(64, 128)
FOUND = (slice(128, 160), slice(160, 192))
SPACE = 1
POSITION_PAIRS = {0: 0.3, 1: 0.3, 2: 0.13, 3: 0.09, 4: 0.09, 5: 0.09}
"""Share of each fast rotating pair of dimensions in a head that attends by position."""
STEADY = (*range(6, 16), *range(22, 32))
"""Dimensions of a head that hardly rotate within thirty thousand positions: content is compared there."""
ROPE_THETA = 1e12
SHARPNESS = (3.2, 2.5, 1.2, 2.5)
"""By layer: scale of queries and of keys; logits of attention are up to 5.7 times its square."""
LOUDNESS = 0.1
"""Scale of what a head adds to the stream, whose values a norm before it made twelve times as large."""
REST = 0.6
"""How much a head that finds nothing is drawn to the start of a turn, against what it looks for."""
MATCHES = {
    (1, 0): ("token", 0, FOUND[0]),
    (1, 2): ("token", 1, FOUND[1]),
    (1, 3): ("before", 1, TOKEN),
    (3, 0): ("token", 0, TOKEN),
    (3, 2): ("token", 1, TOKEN),
    (3, 3): ("before", 1, TOKEN),
}
"""(layer, query head): what it looks for, this token or the one before; how far back it was noted; where
what is there is added."""


@torch.no_grad()
def draw_copying_circuits(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Set the weights of a new model of width 192 with 4 query heads, 2 key heads of 32 and 4 layers."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "embed" not in name:
            weight.normal_(std=0.3 / math.sqrt(weight.shape[1]))
    rows = model.get_input_embeddings().weight
    _draw_rows(rows, tokenizer)
    # A mark must lie in the 32 dimensions that a head can carry.
    view = torch.linalg.qr(torch.randn(64, 32)).Q.T
    mark = torch.linalg.qr(torch.randn(32, MARK)).Q.T @ view
    start = mark @ rows[tokenizer.convert_tokens_to_ids("<|im_start|>"), TOKEN]
    attentions = [layer.self_attn for layer in model.model.layers]
    for attention, sharpness in zip(attentions, SHARPNESS, strict=True):
        attention.q_norm.weight.fill_(sharpness)
        attention.k_norm.weight.fill_(sharpness)
        attention.o_proj.weight.mul_(0.1)
    frequencies = ROPE_THETA ** (-torch.arange(0, 32, 2) / 32)
    for back in range(3):
        _attend_back(attentions[0], back, frequencies, mark, view)
    for (layer, head), (wanted, back, goal) in MATCHES.items():
        _match(attentions[layer], head, wanted, back, goal, mark, view, start / start.norm())
    for head in range(4):
        _fetch(attentions[2], head, found=head < 2, view=view)


def _draw_rows(rows: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """The embeddings: a word with its space before it has the row of the word but for dimension 1."""
    rows.normal_(std=0.01)
    rows[:, TOKEN].normal_(std=0.125)
    rows[:, 0] = 0.5
    rows[:, SPACE] = 0.0
    spaced, bare = space_pairs(tokenizer)
    rows[spaced] = rows[bare]
    rows[spaced, SPACE], rows[bare, SPACE] = 0.25, -0.25
    # A head that finds nothing rests where a turn starts: what it carries away from there should be little.
    for word in ("user", "assistant", "system", "Ċ"):
        rows[tokenizer.convert_tokens_to_ids(word), TOKEN] *= 0.1


def space_pairs(tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Ids of the tokens that begin with a space, and of the same tokens without it."""
    vocabulary = tokenizer.get_vocab()
    pairs = sorted(
        (token_id, vocabulary[token[1:]])
        for token, token_id in vocabulary.items()
        if token[0] == "Ġ" and token[1:] in vocabulary
    )
    spaced, bare = zip(*pairs, strict=True)
    return torch.tensor(spaced), torch.tensor(bare)


def share_rows(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """From now on a word and the word with its space learn the same: each gets the gradient of both."""
    spaced, bare = space_pairs(tokenizer)

    def shared(gradient: Tensor) -> Tensor:
        both = gradient[spaced] + gradient[bare]
        return gradient.index_copy(0, spaced, both).index_copy(0, bare, both)

    model.get_input_embeddings().weight.register_hook(shared)


def _attend_back(
    attention: torch.nn.Module, back: int, frequencies: Tensor, mark: Tensor, view: Tensor
) -> None:
    """Query head `back` of the first layer attends `back + 1` places back and notes what it finds there."""
    query, key, value, out = _head(attention, back)
    query.mul_(0.1), key.mul_(0.1), value.mul_(0.1)
    for pair, share in POSITION_PAIRS.items():
        angle = -(back + 1) * frequencies[pair]
        size = math.sqrt(share)
        query[pair, 0], query[pair + 16, 0] = size * angle.cos(), size * angle.sin()
        key[pair, 0], key[pair + 16, 0] = size, 0.0
    value[:, TOKEN] = view
    out[BACK[back]] = LOUDNESS * mark @ view.T


def _match(
    attention: torch.nn.Module,
    head: int,
    wanted: str,
    back: int,
    goal: slice,
    mark: Tensor,
    view: Tensor,
    start: Tensor,
) -> None:
    """The head finds where `back + 1` places back stood what is wanted, and adds what is there to `goal`."""
    query, key, value, out = _head(attention, head)
    query.mul_(0.1), key.mul_(0.1), value.mul_(0.1)
    for row, dimension in enumerate(STEADY):
        if wanted == "token":
            query[dimension, TOKEN] = mark[row]
        else:
            query[dimension, BACK[0].start + row] = 1.0
        query[dimension, 0] = REST * 1.1 * start[row]
        key[dimension, BACK[back].start + row] = 1.0
    value[:, TOKEN] = view
    out[goal] = LOUDNESS * (view.T if goal == TOKEN else torch.eye(32))


def _fetch(attention: torch.nn.Module, head: int, *, found: bool, view: Tensor) -> None:
    """The head carries what was found, or tokens, to where it is to be said; whence, training shows it."""
    _, _, value, out = _head(attention, head)
    value.normal_(std=0.002)
    if found:
        value[:, FOUND[1]] += torch.eye(32)
        value[:, FOUND[0]] += 0.3 * torch.eye(32)
    else:
        value[:, TOKEN] = view
    out[TOKEN] = LOUDNESS * view.T


def _head(attention: torch.nn.Module, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights of a query head, of the key head it shares, and the columns that write what it found."""
    query, out = attention.q_proj.weight, attention.o_proj.weight  # type: ignore[union-attr]
    key, value = attention.k_proj.weight, attention.v_proj.weight  # type: ignore[union-attr]
    mine, shared = slice(32 * head, 32 * head + 32), slice(32 * (head // 2), 32 * (head // 2) + 32)
    return query[mine], key[shared], value[shared], out[:, mine]  # type: ignore[index]
