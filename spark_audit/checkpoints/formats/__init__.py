"""Formats of checkpoints: each file makes a `StoredCheckpoint` of one kind of path."""
