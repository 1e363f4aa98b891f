"""A folder is a registry: one file an entry, found by listing the folder.

Names and summaries are read without importing anything (``ast``), so that
``spark-audit --help`` answers at once; an entry's module is imported when it is used.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from spark_audit.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One registered function with the other functions that belong to it."""

    name: str
    run: F
    parts: dict[str, Callable[..., Any]]

    def part(self, name: str) -> Callable[..., Any]:
        """The companion function registered as ``name``."""
        return self.parts[name]


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

    def names(self) -> list[str]:
        """Names of all entries, sorted; a file ``json_file.py`` is ``json-file``."""
        stems = (p.stem for p in self.folder.glob("*.py"))
        return sorted(s.replace("_", "-") for s in stems if not s.startswith("_"))

    def register(self, **parts: Callable[..., Any]) -> Callable[[F], F]:
        """Decorator for the one entry of a file; ``parts`` are its companions."""

        def decorate(function: F) -> F:
            stem = function.__module__.rsplit(".", 1)[-1]
            name = stem.replace("_", "-")
            if name in self._entries and self._entries[name].run is not function:
                known = self._entries[name].run.__qualname__
                if known != function.__qualname__:
                    msg = f"{function.__module__} registers two {self.kind}s"
                    raise RuntimeError(msg)
            self._entries[name] = Entry(name, function, dict(parts))
            return function

        return decorate

    def get(self, name: str) -> Entry[F]:
        """Import and return one entry; an unknown name lists the known ones."""
        name = name.replace("_", "-")
        if name not in self.names():
            raise InputError(
                f"unknown {self.kind} {name!r}",
                fix=f"choose one of: {', '.join(self.names())}",
            )
        importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        if name not in self._entries:
            msg = f"{self.package}.{name.replace('-', '_')} registers no {self.kind}"
            raise RuntimeError(msg)
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry[F]]:
        return (self.get(name) for name in self.names())

    def summary(self, name: str) -> str:
        """First line of the file's docstring, read without importing it."""
        path = self.folder / f"{name.replace('-', '_')}.py"
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        return (doc or "").partition("\n")[0]
