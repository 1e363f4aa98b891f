"""Passages of rows that greedy decoding recites: ``audit.py`` has the audit."""
