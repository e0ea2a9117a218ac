"""Ledger rows become a training batch: token tree, advantages, loss entries, balance sheet. No torch here."""
