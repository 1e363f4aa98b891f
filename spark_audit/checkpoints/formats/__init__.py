"""Checkpoint formats: one file each, which reads from headers how a path is made up.

Weights are read later, with every check in one place. ``FORMATS`` in
:mod:`spark_audit.checkpoints.detect` lists them, and says by content whether a path is
of one.
"""
