"""Public names are there, typed by their modules, and resolved when they are used."""

from __future__ import annotations

import subprocess
import sys

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


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, spark_audit; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
