from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import spark_audit

PASS = '''"""A made pass: how many tokens each item has."""

from __future__ import annotations

import numpy as np

from spark_audit.scoring.passes import PASSES

LAYOUT = {"tokens": "int32"}
ITEMS = "texts"


@PASSES.register()
def run(loaded, items, settings, *, batch_size, emit, note):
    """Count."""
    for item in items:
        n = len(item.scored)
        emit(item, {"tokens": np.full(n, len(item.ids), dtype=np.int32)})
'''


def test_a_pass_is_one_file(tmp_path: Path) -> None:
    """Put into a copy of the package, it is listed, scored, stored and resumed."""
    package = Path(spark_audit.__file__).parent
    copy = tmp_path / "copy" / "spark_audit"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "scoring" / "passes" / "made.py").write_text(PASS)
    code = f"""
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from spark_audit.manifest.items import _MAKERS
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes import PASSES
from spark_audit.scoring.score import score
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import ITEMS, Pass

assert "made" in PASSES.names() and PASSES.summary("made").startswith("A made pass")
assert ITEMS["made"] in _MAKERS
loaded = SimpleNamespace(model_id="m", usable=np.ones(9, bool), max_positions=None)
ids = np.arange(5, dtype=np.int32)
kind, folder = Pass("made"), Path({str(tmp_path / "scores")!r})
for _ in range(2):  # the second time from the shard
    table = score(loaded, [Item("a", ids, ids)], passes=[kind], store=Store(folder))
    assert table[kind].columns["tokens"].tolist() == [5] * 4
assert len(list(folder.glob("*.parquet"))) == 1 and not Store(folder).notes
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
