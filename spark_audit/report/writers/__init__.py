"""Report formats: one file or folder each, rendered from ``report.json`` alone.

A writer is ``write(report, folder, how)`` and yields what its files hold:
``report.EXTENSION``, or files in ``tables/`` or ``figures/``. They are named in
``report.json``, and go with the report that they tell of, or with the writer.
:mod:`spark_audit.report.folder` lists the formats.
"""
