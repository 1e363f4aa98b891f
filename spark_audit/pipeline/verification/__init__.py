"""A report held against its own evidence."""
