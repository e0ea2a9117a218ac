"""The trainer: token tree in, new LoRA out. `art.training.worker` is its process, `trainer.Trainer` its
heart.
"""
