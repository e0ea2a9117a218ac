"""`art audit-model`: whether a model can be trained, measured on the model itself."""
