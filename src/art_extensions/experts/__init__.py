"""LoRA on the experts of mixtures: the target `experts`."""
