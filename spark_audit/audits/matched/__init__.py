"""Difficulty-matched pairs: memory, selectivity and drift."""
