"""What benchmarks take from the packages is there: nothing else runs all of them."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_benchmark_imports_is_there(file):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.split(".")[0] not in ("spark_audit", "spark_train"):
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            inside = f"{node.module}.{name.name}"
            assert hasattr(module, name.name) or importlib.util.find_spec(inside), (
                f"{node.module} has no {name.name}"
            )
