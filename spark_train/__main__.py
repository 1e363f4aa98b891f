"""``python -m spark_train``: the same as ``spark-train``."""

from spark_train.cli import main

if __name__ == "__main__":
    main()
