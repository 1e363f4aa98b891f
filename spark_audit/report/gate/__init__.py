"""The gate: rules that a report must pass before a checkpoint ships."""
