"""Data: examples with annotated identifiers, where they come from, what is planted."""
