"""``spark-audit``: the command line.

Commands are thin: each turns its flags into one call of the library.
"""

AUDIT_PROGRAM = "spark-audit"
ALL_AUDITS = "all"
"""The command that runs every audit."""
