"""Passes: one file each, how a model goes through items.

A pass is ``run(loaded, model, items, task)``, which yields each item with its columns
as soon as they are known. ``COLUMN_TYPES`` and ``ITEMS`` of
:mod:`spark_audit.scoring.table` list what it gives, and what it goes through.
"""
