"""Checkpoint formats: one file each, which reads from headers how a path is made up.

``detect(path)`` says by content whether a path is one. Weights are read later, with
every check in one place. :mod:`spark_audit.checkpoints.detect` lists them.
"""
