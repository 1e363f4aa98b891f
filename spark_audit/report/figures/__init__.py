"""Figures: what a report shows as pictures, each drawn from the report alone.

A figure is a function ``draw_NAME(view)`` on matplotlib that returns a sketch, or
``None`` if the report has no data for it. :mod:`spark_audit.report.figures.drawing`
lists them in the order of reading.
"""
