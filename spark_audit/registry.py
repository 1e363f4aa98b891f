"""A folder is a registry: one file or folder an entry, found by listing it.

An entry is a file that registers something, or a folder with such a file; what else
lies there helps them. Names and summaries are read without importing anything, so that
``spark-audit --help`` answers at once; an entry's module is imported when it is used.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from spark_audit.errors import InputError, choose

F = TypeVar("F", bound=Callable[..., Any])

_SUMMARY = re.compile(r'\s*r?"""(.*)')
_REGISTERS = re.compile(r"^@[A-Z]+\.register\(", re.MULTILINE)


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One registered function with the other functions that belong to it.

    ``order`` is its place among the entries, where that matters: those without one
    come last.
    """

    name: str
    run: F
    parts: dict[str, Callable[..., Any]]
    order: float = math.inf

    def part(self, name: str) -> Callable[..., Any]:
        """The companion function registered as ``name``."""
        return self.parts[name]


@cache
def _registers(path: Path, changed: int) -> bool:
    """Whether a file, as it was when it was ``changed``, registers an entry."""
    return _REGISTERS.search(path.read_text(encoding="utf-8")) is not None


class Registry(Generic[F]):
    """The entries of one folder.

    Parameters
    ----------
    package
        Dotted name of the folder, for instance ``spark_audit.audits``.
    kind
        What an entry is called in messages, for instance ``audit``.
    folder
        Where its files lie.
    """

    def __init__(self, package: str, *, kind: str, folder: Path) -> None:
        self.package, self.kind, self.folder = package, kind, folder
        self._entries: dict[str, Entry[F]] = {}
        self._trees: dict[str, ast.Module] = {}

    def _files(self) -> dict[str, Path]:
        """Each entry's name, ``json-file`` of ``json_file.py``, -> its file."""
        found = {}
        for path in sorted((*self.folder.glob("*.py"), *self.folder.glob("*/*.py"))):
            if _registers(path, path.stat().st_mtime_ns):
                inside = path.parent != self.folder
                name = path.parent.name if inside else path.stem
                found[name.replace("_", "-")] = path
        return found

    def names(self) -> list[str]:
        """Names of all entries, sorted."""
        return sorted(self._files())

    def module(self, name: str) -> str:
        """Dotted name of the module that registers an entry."""
        path = self._files()[name].relative_to(self.folder).with_suffix("")
        return ".".join((self.package, *path.parts))

    def stem_of(self, function: Callable[..., Any]) -> str:
        """The file or folder of this registry that a function stands in."""
        inside = function.__module__.removeprefix(f"{self.package}.")
        return inside.partition(".")[0]

    def register(
        self, *, order: float = math.inf, **parts: Callable[..., Any]
    ) -> Callable[[F], F]:
        """Decorator for the one entry of a file; ``parts`` are its companions."""

        def decorate(function: F) -> F:
            name = self.stem_of(function).replace("_", "-")
            if name in self._entries and self._entries[name].run is not function:
                known = self._entries[name].run.__qualname__
                if known != function.__qualname__:
                    msg = f"{function.__module__} registers two {self.kind}s"
                    raise RuntimeError(msg)
            self._entries[name] = Entry(name, function, dict(parts), order)
            return function

        return decorate

    def get(self, name: str) -> Entry[F]:
        """Import and return one entry; an unknown name lists the known ones."""
        name = name.replace("_", "-")
        if name in self._entries:  # listing the folder takes a millisecond
            return self._entries[name]
        if name not in self.names():
            raise InputError(
                f"unknown {self.kind} {name!r}",
                fix=choose(name, self.names()),
            )
        importlib.import_module(self.module(name))
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry[F]]:
        return (self.get(name) for name in self.names())

    def summary(self, name: str) -> str:
        """First line of the file's docstring, read without importing it."""
        text = self._files()[name].read_text(encoding="utf-8")
        # Parsing whole files would take most of the time of ``--help``.
        line = _SUMMARY.match(text)
        return "" if line is None else line[1].removesuffix('"""').strip()

    def literal(self, name: str, variable: str) -> Any:
        """A constant of the file, written out there, read without importing it."""
        for node in self._tree(name).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == variable
            ):
                return ast.literal_eval(node.value)
        raise RuntimeError(f"{self.module(name)} has no {variable}")

    def _tree(self, name: str) -> ast.Module:
        if name not in self._trees:
            text = self._files()[name].read_text(encoding="utf-8")
            self._trees[name] = ast.parse(text)
        return self._trees[name]
