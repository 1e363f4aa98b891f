"""Data: examples with annotated identifiers, their sources, and planted identifiers."""
