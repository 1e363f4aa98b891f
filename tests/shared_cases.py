"""Small inputs of bug reports of other projects, which lie beside a checkout.

Each folder holds an input, or a ``make.py`` that writes tiny models, with a README that
says what is right. Where they are not there, their tests are skipped.
"""

import runpy
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "../shared/cases"

ELSEWHERE = {
    "M03-numeric-answers": "how an answer is graded, in tests/scoring/test_answers.py",
}
"""Cases that are neither a checkpoint nor a file of data, and where they belong."""


def case(name: str) -> Path:
    """Return the folder of a case; skip the test where the cases are not there."""
    if not CASES.is_dir():
        pytest.skip("the cases are not beside this checkout (../shared/cases)")
    return CASES / name


def made(name: str, output: Path, patch: pytest.MonkeyPatch) -> Path:
    """Run the ``make.py`` of a case; return the folder that it wrote models to."""
    folder = case(name).resolve()
    patch.setattr(sys, "dont_write_bytecode", True)
    patch.setenv("OUT", str(output))
    patch.setenv("PROJECT", str(Path(__file__).parents[1]))
    patch.chdir(folder)
    patch.syspath_prepend(folder.parent)
    # It reads OUT while it is imported.
    patch.delitem(sys.modules, "_tiny", raising=False)
    runpy.run_path(str(folder / "make.py"))
    patch.delitem(sys.modules, "_tiny", raising=False)
    return output
