"""What of a report may be shared."""
