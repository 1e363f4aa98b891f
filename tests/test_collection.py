"""Every test runs, and none of them calls what is private.

pytest passes over some folders by name, `build` among them.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def passed_over(root: Path, config: pytest.Config) -> list[str]:
    """Files with tests that `pytest` leaves out, by pytest's own rules."""
    ignored = config.hook.pytest_ignore_collect
    names = config.getini("python_files")
    found = []
    for file in sorted(root.rglob("*.py")):
        if not re.search(r"^(def test_|class Test)", file.read_text("utf-8"), re.M):
            continue
        inside = [file, *(p for p in file.parents if p.is_relative_to(root))]
        if not any(file.match(name) for name in names) or any(
            ignored(collection_path=place, config=config) for place in inside
        ):
            found.append(str(file.relative_to(root)))
    return found


def test_every_test_file_is_collected(request):
    assert request.config.getini("testpaths") == [TESTS.name]
    assert passed_over(TESTS, request.config) == []


def test_what_is_passed_over_is_named(request, tmp_path):
    for name in ("build/test_a.py", "area/checks.py", "area/test_b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def test_it():\n    pass\n")
    found = passed_over(tmp_path, request.config)
    assert found == ["area/checks.py", "build/test_a.py"]


ROOT = TESTS.parent
PRIVATE = re.compile(r"_[a-z]\w*", re.I)


def private_names(tree: ast.AST) -> set[str]:
    """Names of private functions and classes that a file of ours defines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, kinds) and PRIVATE.fullmatch(node.name)
    }


def names_used(tree: ast.AST) -> Iterator[str]:
    """Names that a test reads of modules and objects, or replaces by a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            # What a class of the tests calls its own is no name of ours.
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not is_own:
                yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"spark_(audit|train)(\.\w+)+", node.value):
                yield node.value.rpartition(".")[2]


def test_no_test_calls_what_is_private():
    """A private function can be renamed without a look at the tests."""
    ours: set[str] = set()
    for package in ("spark_audit", "spark_train"):
        for file in (ROOT / package).rglob("*.py"):
            ours |= private_names(ast.parse(file.read_text(encoding="utf-8")))
    assert len(ours) > 500

    calls = []
    for file in TESTS.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        # What has the name of ours by chance: a test's own helper, a method of pandas.
        others = private_names(tree) | {"_replace", "_repr_html_", "_repr_png_"}
        for name in set(names_used(tree)) & ours - others:
            calls.append(f"{file.relative_to(TESTS)}: {name}")
    assert calls == []
