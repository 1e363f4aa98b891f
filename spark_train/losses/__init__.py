"""Losses and penalties: pure functions."""
