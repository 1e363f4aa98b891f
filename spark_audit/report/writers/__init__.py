"""Report formats: one file or folder each, rendered from ``report.json`` alone.

A writer is ``write(prepared, folder, writer_input)`` and yields its files:
``report.EXTENSION``, or files in ``tables/`` or ``figures/``. ``report.json`` names
them, and they are deleted with the report that they tell of, or when their writer no
longer exists. :mod:`spark_audit.report.folder` lists the formats.
"""
