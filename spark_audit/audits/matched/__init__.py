"""Likelihood of identifiers against controls that were equally hard before training."""
