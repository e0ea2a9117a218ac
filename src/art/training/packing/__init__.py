"""From a token tree to micro-batches: prune, plan which runs go where, score, lay out."""
