"""``spark-audit``: the command line."""
