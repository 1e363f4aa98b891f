"""Checkpoint formats: one file each, which makes a recipe of a path by headers alone.

``detect(path)`` says by content whether a path is one. Weights are read later, with
every check in one place. :mod:`spark_audit.checkpoints.detect` lists them.
"""
