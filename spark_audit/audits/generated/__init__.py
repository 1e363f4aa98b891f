"""Text that a model wrote, held against trained rows: ``audit.py`` has the audit."""
