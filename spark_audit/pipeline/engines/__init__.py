"""Engines: the ways in which the scores of a job are computed."""
