"""Identifiers that come back word for word after their true prefix, and when."""

from spark_audit.audits.extract import extraction as extraction
