"""All stages of a run as one attack, beside its last checkpoint."""
