"""A type checker accepts typical calls of Python, and refuses typical slips."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "typed_calls"


def test_a_type_checker_accepts_calls_and_refuses_slips():
    root = FOLDER.parents[1]
    paths = [str(FOLDER / name) for name in ("calls.py", "typos.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *paths],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr

    # Errors in the package itself are those of another check.
    refused = set(re.findall(r"typed_calls/(\w+)\.py:(\d+): error", done.stdout))
    slips = set()
    for number, line in enumerate((FOLDER / "typos.py").read_text().splitlines(), 1):
        if line.endswith("# slip"):
            slips.add(("typos", str(number)))
    assert len(slips) == 13
    assert refused == slips, done.stdout
