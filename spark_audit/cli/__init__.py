"""The command line ``spark-audit``.

Commands are thin: each one turns its options into one call of the library.
"""

AUDIT_PROGRAM = "spark-audit"
