"""``spark-audit``: the command line.

Commands are thin: each turns its flags into one call of the library.
"""

PROGRAM = "spark-audit"
ALL = "all"
"""The command that runs every audit."""
