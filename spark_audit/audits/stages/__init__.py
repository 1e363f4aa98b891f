"""Stages: what each stage of a series remembers, gains and forgets."""
