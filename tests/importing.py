"""What ``spark-audit data import`` makes of a source, as examples."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spark_audit.data.examples import Example, read_examples
from spark_audit.data.importers import import_rows


def import_examples(source: str | Path, **options: Any) -> list[Example]:
    """The examples of the file that ``import_rows`` writes."""
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        import_rows(source, rows, **options)
        return read_examples(rows)
