"""Passes: ways in which a model reads items, one per file.

A pass is a function ``run(loaded, model, items, settings)`` that yields each item with
its columns as soon as they are known; ``scoring/score.py`` calls it, after its checks.
``COLUMN_TYPES`` and ``ITEMS`` of :mod:`spark_audit.scoring.table` list its columns and
its kinds of items.
"""
