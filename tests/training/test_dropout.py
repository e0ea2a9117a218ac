"""LoRA's dropout acts in the passes that are trained, and in no other."""

from __future__ import annotations

import pytest
import torch
from tiny_policies import games, policy, randomize

from art.training.causal_lm import without_dropout
from art.training.distributions import Distributions
from art.training.first_pass import score_entries
from art.training.minibatches import make_columns
from art.training.policy import Policy
from art.training.ranks.deal import Dealer
from art.training.ranks.group import RankGroup
from art.training.weights import Weights
from art.wire.training import PLAIN_SAMPLING, LoraSpec


def adapted(dropout: bool) -> Policy:
    tiny = policy()
    weights = Weights(tiny)
    weights.attach("a1", LoraSpec(r=4, alpha=8, dropout=0.5), seed=0)
    randomize(weights.parameters("a1"))
    weights.activate("a1", dropout=dropout)
    return tiny


def first_pass(tiny: Policy) -> torch.Tensor:
    batch = games()
    columns = make_columns(batch.entries, dtype=tiny.dtype, device=tiny.device)
    drawn = Distributions(specs=[PLAIN_SAMPLING], sampling_E=batch.entries.sampling_E)
    packing = tiny.pack(batch.tree, batch.entries, 60)
    return score_entries(tiny, Dealer().deal(packing), drawn, columns, ranks=RankGroup()).logprobs_E


def trained_pass(tiny: Policy) -> torch.Tensor:
    batch = games()
    (micro,) = tiny.pack(batch.tree, batch.entries, 9999).micro_batches
    return tiny.entry_scores(micro)[0].logprobs_E.detach()


def test_the_pass_before_the_first_update_has_none_and_draws_nothing() -> None:
    live = adapted(dropout=True)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    scores_E = first_pass(live)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(scores_E, first_pass(adapted(dropout=False)))


def test_the_pass_that_is_trained_has_it_afterwards() -> None:
    live = adapted(dropout=True)
    torch.manual_seed(4)
    expected = trained_pass(live)
    first_pass(live)
    torch.manual_seed(4)
    assert torch.equal(trained_pass(live), expected)
    assert not torch.equal(trained_pass(live), expected)


def test_only_what_acted_before_acts_again_whatever_happens() -> None:
    layers = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval())
    with pytest.raises(KeyError), without_dropout(layers):
        assert not any(layer.training for layer in layers)
        with without_dropout(layers):
            pass
        assert not any(layer.training for layer in layers)
        raise KeyError("inside")
    assert [layer.training for layer in layers] == [True, False]
