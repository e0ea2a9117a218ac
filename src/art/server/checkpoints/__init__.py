"""Steps on disk: written, checked, promoted, arrived from elsewhere, removed."""
