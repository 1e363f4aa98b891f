"""Verify a report against its own evidence."""
