"""Passes: one file each, how a model goes through items.

A pass is ``run(loaded, items, settings, *, batch_size, emit, note)``, which hands over
each item's columns as soon as they are known. ``LAYOUTS`` and ``ITEMS`` of
:mod:`spark_audit.scoring.table` list what it gives, and what it goes through.
"""
