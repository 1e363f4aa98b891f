"""Identifiers that nobody planted, ranked among fresh strings of their kind."""
