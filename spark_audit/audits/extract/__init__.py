"""Identifiers that come back word for word after their true prefix, and when."""
