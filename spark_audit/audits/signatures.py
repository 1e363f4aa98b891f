"""What ``help(sa.audits.matched)`` says: the audit, its options, what it returns."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

COMMON = {
    "tables": "Checkpoint -> pass -> token table; of one, {name: score(...)}.",
    "manifest": "What the tables were scored from, or its path.",
    "baseline": "Checkpoint that the others are held against, or one for each.",
    "preset": "robust or paper; default: the manifest's.",
    "seed": "Of everything random.",
}


def signature_of(run: Callable[..., Any]) -> inspect.Signature:
    """Its signature as readers need it: types without the help beside them."""
    full = inspect.signature(run)
    plain = [
        one.replace(annotation=_parts(str(one.annotation))[0])
        for one in full.parameters.values()
    ]
    return full.replace(parameters=plain)


def help_of(run: Callable[..., Any]) -> str:
    """The docstring of an audit's file, and its options with what they are for."""
    # Past the module's own lookup, which asks here.
    about = vars(sys.modules[run.__module__]).get("__doc__") or ""
    lines = [about.strip(), "", "Parameters", "----------"]
    for name, one in inspect.signature(run).parameters.items():
        kind, said = _parts(str(one.annotation))
        default = "" if one.default is one.empty else f", default {one.default!r}"
        said = said or COMMON.get(name, "")
        lines += [f"{name} : {kind}{default}", *([f"    {said}"] if said else [])]
    return "\n".join([*lines, "", "Returns", "-------", "AuditResult"])


def _parts(annotation: str) -> tuple[str, str]:
    """An annotation's type, and its help: of ``Annotated`` the text or flag beside."""
    tree = ast.parse(annotation, mode="eval").body
    if not isinstance(tree, ast.Subscript) or ast.unparse(tree.value) != "Annotated":
        return annotation, ""
    kind, beside = tree.slice.elts[:2]  # type: ignore[attr-defined]
    if isinstance(beside, ast.Call) and beside.args:
        beside = beside.args[0]
    said = str(beside.value) if isinstance(beside, ast.Constant) else ""
    return ast.unparse(kind), said


def sign(run: Callable[..., Any], *functions: Callable[..., Any] | None) -> None:
    """Give the runner the signature of its audit: the options of its functions."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    every = [
        parameter
        for function in filter(None, functions)
        for parameter in inspect.signature(function).parameters.values()
    ]
    options: dict[str, inspect.Parameter] = {}
    for parameter in every:
        # What the runner gives has no default: it is no option.
        if parameter.kind is keyword and parameter.default is not parameter.empty:
            options.setdefault(parameter.name, parameter)
    first = [p for p in every if p.name in ("tables", "manifest")][:2]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*first, *options.values()], return_annotation="AuditResult"
    )


def check_tables(tables: object) -> None:
    """Refuse scores of one checkpoint, which would be an empty result.

    Raises
    ------
    TypeError
        It names the argument.
    """
    if isinstance(tables, Mapping) and all(
        isinstance(name, str) and isinstance(passes, Mapping)
        for name, passes in tables.items()
    ):
        return
    raise TypeError(
        "tables: give the scores of each checkpoint by its name, as in "
        "{'mine': sa.score(...)}"
    )
