"""The SPARK paper's printed values, and a report beside them."""
