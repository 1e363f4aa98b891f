"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""
