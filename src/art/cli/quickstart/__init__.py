"""`art quickstart`: a language model learns a small task while you watch."""
