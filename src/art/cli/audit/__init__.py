"""`art audit-model`: what holds for one real model, measured."""
