"""What benchmarks take from the packages is there: nothing else runs all of them."""

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FILES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


PACKAGES = ("spark_audit", "spark_train")


def imports_of(tree: ast.AST) -> Iterator[tuple[str, ast.alias]]:
    """What a file takes from the packages, with the module that it is taken from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in PACKAGES:
                yield from ((node.module, name) for name in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_benchmark_imports_is_there(file):
    for module_name, name in imports_of(ast.parse(file.read_text("utf-8"))):
        module = importlib.import_module(module_name)
        inside = f"{module_name}.{name.name}"
        assert hasattr(module, name.name) or importlib.util.find_spec(inside), (
            f"{module_name} has no {name.name}"
        )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_benchmark_reads_of_a_module_is_there(file):
    tree = ast.parse(file.read_text("utf-8"))
    modules: dict[str, ModuleType] = {}
    for module_name, name in imports_of(tree):
        parent = importlib.import_module(module_name)
        inside = f"{module_name}.{name.name}"
        is_module = hasattr(parent, "__path__") and importlib.util.find_spec(inside)
        if is_module:
            modules[name.asname or name.name] = importlib.import_module(inside)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), (
                f"line {node.lineno}: {module.__name__} has no {node.attr}"
            )
