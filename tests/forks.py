"""Python programs as forks of one interpreter that has imported what takes long."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

SLOW = [
    "matplotlib.pyplot",
    "pandas",
    "peft",
    "pyarrow.parquet",
    "pydantic",
    "rich.markdown",
    "scipy.stats",
    "seaborn",
    "sklearn.metrics",
    "torch",
    "transformers",
    "typer.rich_utils",
]
"""What is imported once, nothing of the project among it: seconds for each program."""
OWN = ("spark_audit", "spark_train")

_forks = get_context("forkserver")
_forks.set_forkserver_preload(SLOW)


def python(
    arguments: list[str], *, root: Path, cwd: Path, **environment: str
) -> tuple[int, str]:
    """What ``python -m ...`` or ``python -c ...`` ends with and prints, both streams.

    Parameters
    ----------
    arguments
        ``-m`` and a module or ``-c`` and a program, and what follows.
    root
        Where the project's packages are found.
    """
    with tempfile.NamedTemporaryFile(dir=cwd, prefix=".said-") as said:
        given = (arguments, str(root), str(cwd), said.name, environment)
        process = _forks.Process(target=_be, args=given)
        process.start()
        process.join()
        assert process.exitcode is not None
        code, text = process.exitcode, said.read().decode()
        process.close()
    return code, text


def _be(
    arguments: list[str], root: str, cwd: str, said: str, environment: dict[str, str]
) -> None:
    os.chdir(cwd)
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), number)
    assert not set(OWN) & set(sys.modules)
    sys.path.insert(0, root)
    kind, program, *_ = arguments
    sys.argv = arguments[1:] if kind == "-m" else ["-c", *arguments[2:]]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "-c", "exec"), {"__name__": "__main__"})
