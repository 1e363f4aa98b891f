"""Extraction: whether trained identifiers come back from prompts."""
