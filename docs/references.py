"""Names that the packages define, read from their source without importing it.

Docstrings refer to each other by roles, such as ``:func:`name```. Sphinx looks at those
that it renders; a test looks at all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("spark_audit", "spark_train")
ROLE = re.compile(r":(?:class|func|data|mod|meth|attr):`~?([\w.]+)`")
"""A reference; its group is the name that it refers to."""


@cache
def sources() -> dict[str, str]:
    """Return the source of every module of both packages by the module's name."""
    texts = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            texts[name] = path.read_text(encoding="utf-8")
    return texts


def _names_of(body: list[ast.stmt]) -> Iterator[str]:
    """Yield names that statements bind; those of a class as ``Class.member``, too."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
                yield from (f"{name}.{member}" for member in _names_of(statement.body))
            case ast.Assign(targets=targets):
                for target in targets:
                    names = (one for one in ast.walk(target))
                    yield from (n.id for n in names if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)
            case ast.If() | ast.Try():
                yield from _names_of(statement.body)


@cache
def names_in(module: str) -> frozenset[str]:
    """Return what a module binds, with members of its classes as ``Class.member``."""
    return frozenset(_names_of(ast.parse(sources()[module]).body))


@cache
def all_names() -> frozenset[str]:
    """Return every name that any module binds, members of classes by themselves, too.

    Files and folders count by their names.
    """
    found = set()
    for module in sources():
        found.update(module.split("."))
        for name in names_in(module):
            found.update((name, name.rpartition(".")[2]))
    return frozenset(found)


def exists(name: str, module: str) -> bool:
    """Return whether a name that a docstring of a module refers to is one of ours.

    Parameters
    ----------
    name
        As a role has it: a dotted path from the package on, or a name that the module
        binds, a member of one of its classes included.
    module
        The module that the docstring stands in.
    """
    if name in sources():
        return True

    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:length])
        if owner in sources():
            return ".".join(parts[length:]) in names_in(owner)

    known = names_in(module) if module in sources() else frozenset()
    return name in known or any(one.endswith(f".{name}") for one in known)
