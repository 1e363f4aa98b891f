"""No docstring has swallowed a comment that was meant for the code below it."""

import ast
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
