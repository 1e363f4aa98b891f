"""Twins: identifiers ranked among made-up strings of their kind."""
