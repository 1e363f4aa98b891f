"""``python -m spark_audit``: the same as ``spark-audit``."""

from spark_audit.cli import main

if __name__ == "__main__":
    main()
