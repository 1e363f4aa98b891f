"""Python programs as forks of one interpreter that has imported what takes long."""

import os
import runpy
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SLOW = [
    "matplotlib.pyplot",
    "pandas",
    "peft",
    "pyarrow.parquet",
    "pydantic",
    "rich.markdown",
    "scipy.stats",
    "matplotlib.style",
    "sklearn.metrics",
    "torch",
    "transformers",
    "cyclopts",
]
"""What is imported once, nothing of the project among it: seconds for each program."""
OWN = ("spark_audit", "spark_train")

_forks = get_context("forkserver")
_forks.set_forkserver_preload(SLOW)


class Begun:
    """A program that runs; see :func:`begin`."""

    def __init__(self, process: Any, said: Any) -> None:
        self._process, self._said = process, said
        self.pid: int = process.pid

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return bool(self._process.is_alive())

    def wait(self) -> tuple[int, str]:
        """What it ends with (a signal's number below 0) and prints, both streams."""
        self._process.join(300)
        code = self._process.exitcode
        text = Path(self._said.name).read_text()
        assert code is not None
        self._process.close()
        self._said.close()
        return code, text


def begin(arguments: list[str], *, root: Path, cwd: Path, **environment: str) -> Begun:
    """Begin ``python -m ...`` or ``python -c ...``.

    Parameters
    ----------
    arguments
        ``-m`` and a module or ``-c`` and a program, and what follows.
    root
        Where the project's packages are found.
    """
    output = tempfile.NamedTemporaryFile(dir=cwd, prefix=".said-")
    call = (arguments, str(root), str(cwd), output.name, environment)
    process = _forks.Process(target=_be, args=call)
    process.start()
    return Begun(process, output)


def python(
    arguments: list[str], *, root: Path, cwd: Path, **environment: str
) -> tuple[int, str]:
    """What :func:`begin` ends with and prints."""
    return begin(arguments, root=root, cwd=cwd, **environment).wait()


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
