"""What a completion must look like, as masks over the vocabulary: the same for the engine that draws under
them and for the trainer that computes the distribution again. By `llguidance`, without torch.
"""
