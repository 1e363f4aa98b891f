"""Engines: where the scores of a job are made."""
