"""Public names are there, typed by their modules, and resolved when they are used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import spark_audit as sa


@pytest.mark.parametrize("name", sa.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(sa, name) is not None


@pytest.mark.parametrize("name", sa.stats.__all__)
def test_every_statistic_resolves_and_is_documented(name: str) -> None:
    assert getattr(sa.stats, name).__doc__


def test_audits_are_called_by_name() -> None:
    assert callable(sa.audits.matched)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sa.audits.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sa.stats.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sa.nothing


STUB = Path(sa.__path__[0], "audits", "__init__.pyi").read_text(encoding="utf-8")
STUBS = {
    node.name: node
    for node in ast.parse(STUB).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
}


@pytest.mark.parametrize("name", STUBS)
def test_editors_and_help_know_the_options_of_every_audit(name: str) -> None:
    audit, stub = getattr(sa.audits, name), STUBS[name].args
    real = inspect.signature(audit).parameters.values()
    assert [a.arg for a in (*stub.args, *stub.kwonlyargs)] == [p.name for p in real]
    for argument, default in zip(stub.kwonlyargs, stub.kw_defaults, strict=True):
        one = inspect.signature(audit).parameters[argument.arg]
        assert argument.annotation is not None
        assert default is not None
        assert ast.unparse(argument.annotation) == one.annotation
        assert ast.literal_eval(default) == one.default
    told = inspect.getdoc(audit) or ""
    assert told.startswith(sa.audits.AUDITS.summary(name))
    assert all(f"\n{p.name} : " in told for p in real)
    assert "\n    \n" not in told
    assert "\nAuditResult" in told


def test_what_can_be_typed_is_listed() -> None:
    assert {"score", "audits", "Report"} <= set(dir(sa))
    assert {"matched", "mia"} <= set(dir(sa.audits))
    assert set(STUBS) <= set(dir(sa.audits))


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, spark_audit; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
