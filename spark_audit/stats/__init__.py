"""Statistics of the audits: pure numpy and SciPy, no model, no file."""
