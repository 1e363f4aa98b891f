"""Formats of checkpoints: each file makes a `Checkpoint` of one kind of path."""
