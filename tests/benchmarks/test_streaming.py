"""The benchmark of memory concludes as the pipeline does."""

import subprocess
import sys
from pathlib import Path

from spark_audit.report.folder import read_report

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "streaming.py"


def test_a_small_table_is_measured_and_concluded(tmp_path):
    sizes = ["--rows", "60", "--checkpoints", "2"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *sizes, "--audits", "nll", "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    cells = done.stdout.splitlines()[-1].strip("|").split("|")
    assert cells[:2] == ["60", "2"], done.stderr
    assert 50 < float(cells[2]) < float(cells[3])
    report = read_report(tmp_path / "report-60-2")
    assert {row.checkpoint for row in report.results} == {"base", "c1", "c2"}
    assert {row.baseline for row in report.contrasts} == {"c1"}
