"""Docstrings hold no comment of the code below, and name arguments that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["spark_audit", "spark_train"])
def test_no_line_of_a_docstring_is_a_comment(package):
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            lines = (ast.get_docstring(node) or "").splitlines()
            found += [
                f"{path.relative_to(ROOT)}: {line.strip()}"
                for line in lines
                if line.strip().startswith("# ")
            ]
    assert not found, "\n".join(found)


def described_parameters(docstring: str) -> list[str]:
    """Return the names in the section "Parameters" of a docstring."""
    _, _, section = docstring.partition("Parameters\n----------\n")
    names: list[str] = []
    for line in section.splitlines():
        # The next section begins with a capital: "Returns", "Raises".
        if re.match("[A-Z]", line):
            break
        if re.fullmatch(r"\w+(, \w+)*", line):
            names += line.split(", ")
    return names


@pytest.mark.parametrize("package", ["spark_audit", "spark_train"])
def test_every_described_parameter_is_one_of_the_function(package):
    unknown = []
    n_described = 0
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            taken = {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)}
            described = described_parameters(ast.get_docstring(node) or "")
            n_described += len(described)
            unknown += [
                f"{path.relative_to(ROOT)}: {node.name} has no {name}"
                for name in described
                if name not in taken
            ]
    assert not unknown, "\n".join(unknown)
    assert n_described > 100
