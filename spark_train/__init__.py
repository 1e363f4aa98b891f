"""SPARK and its baselines, kept slim: something to audit and to compare."""
