"""The registry itself, and one contract over every entry of every registry."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import spark_audit
import spark_train
from spark_audit.errors import InputError
from spark_audit.registry import Registry

# ---------------------------------------------------------------- every entry


def registries() -> dict[str, Registry]:
    """Every registry of both packages, found in the folders' ``__init__``."""
    found = {}
    for package in (spark_audit, spark_train):
        top = Path(package.__path__[0])
        for path in sorted(top.rglob("*/__init__.py")):
            parts = path.parent.relative_to(top.parent).parts
            module = importlib.import_module(".".join(parts))
            for value in vars(module).values():
                if isinstance(value, Registry) and value.package == module.__name__:
                    found[value.package] = value
    return found


REGISTRIES = registries()
ENTRIES = [
    pytest.param(registry, name, id=f"{registry.kind}:{name}")
    for registry in REGISTRIES.values()
    for name in registry.names()
]
COMPANIONS = {
    "spark_audit.audits": {"plan"},
    "spark_audit.checkpoints.formats": {"detect"},
}
each_entry = pytest.mark.parametrize(("registry", "name"), ENTRIES)


def module_of(registry: Registry, name: str) -> ModuleType:
    registry.get(name)
    return sys.modules[registry.module(name)]


def test_the_known_registries_are_found() -> None:
    assert {
        "spark_audit.audits",
        "spark_audit.checkpoints.formats",
        "spark_audit.report.writers",
    } <= set(REGISTRIES)
    assert all(registry.names() for registry in REGISTRIES.values())


@each_entry
def test_entry_is_one_function_in_its_own_file(registry: Registry, name: str) -> None:
    entry, module = registry.get(name), module_of(registry, name)
    assert entry.name == name
    assert entry.run.__module__ == module.__name__
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    decorators = [
        ast.unparse(decorator)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    ]
    assert sum(".register(" in text for text in decorators) == 1


@each_entry
def test_entry_says_in_one_line_what_it_is(registry: Registry, name: str) -> None:
    # The file's first line is the help's; the function's own stands in the docs.
    for line in (
        registry.summary(name),
        (registry.get(name).run.__doc__ or "").partition("\n")[0],
    ):
        assert 10 <= len(line) <= 88, line


@each_entry
def test_entry_is_typed_and_takes_options_by_keyword(
    registry: Registry, name: str
) -> None:
    signature = inspect.signature(registry.get(name).run)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        if parameter.default is not inspect.Parameter.empty:
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, parameter
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD, parameter


@each_entry
def test_entry_registers_what_its_folder_asks_for(
    registry: Registry, name: str
) -> None:
    assert COMPANIONS.get(registry.package, set()) <= set(registry.get(name).parts)


def test_names_and_summaries_are_listed_without_importing_an_entry() -> None:
    code = f"""
import importlib, sys
from spark_audit.registry import Registry
for package in {sorted(REGISTRIES)!r}:
    folder = importlib.import_module(package)
    found = {{id(r): r for r in vars(folder).values() if isinstance(r, Registry)}}
    registry, = (r for r in found.values() if r.package == package)
    before = set(sys.modules)  # a folder within an entry comes with the entry
    assert all(registry.summary(name) for name in registry.names())
    assert not set(sys.modules) - before, package
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------- the mechanism


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package ``shelf`` with a registry and two entries."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n"
        "from spark_audit.registry import Registry\n"
        "BOOKS = Registry('shelf', kind='book', folder=Path(__file__).parent)\n"
    )
    entry = (
        '"""{title}.\n\nMore about it.\n"""\n'
        "from shelf import BOOKS\n"
        "def pages():\n    return {pages}\n"
        "@BOOKS.register(pages=pages)\n"
        "def read():\n    return {title!r}\n"
    )
    (folder / "long_one.py").write_text(entry.format(title="A long one", pages=900))
    (folder / "short.py").write_text(entry.format(title="A short one", pages=9))
    (folder / "helper.py").write_text("raise RuntimeError('helpers are no entry')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [m for m in sys.modules if m.partition(".")[0] == "shelf"]:
        del sys.modules[name]


def books() -> Registry:
    return importlib.import_module("shelf").BOOKS


@pytest.mark.usefixtures("shelf")
def test_names_are_file_names_in_kebab_case() -> None:
    assert books().names() == ["long-one", "short"]


@pytest.mark.usefixtures("shelf")
def test_an_entry_is_found_by_either_spelling_with_its_companions() -> None:
    for name in ("long-one", "long_one"):
        entry = books().get(name)
        assert (entry.name, entry.run(), entry.part("pages")()) == (
            "long-one",
            "A long one",
            900,
        )
    assert [entry.run() for entry in books()] == ["A long one", "A short one"]


@pytest.mark.usefixtures("shelf")
def test_a_summary_is_the_first_docstring_line_and_imports_nothing() -> None:
    assert books().summary("long-one") == "A long one."
    assert "shelf.long_one" not in sys.modules


def test_a_new_file_is_an_entry_at_once(shelf: Path) -> None:
    before = books().names()
    (shelf / "new.py").write_text(
        "from shelf import BOOKS\n@BOOKS.register()\ndef read():\n    return 1\n"
    )
    importlib.invalidate_caches()
    assert books().names() == sorted([*before, "new"])
    assert books().get("new").run() == 1


@pytest.mark.usefixtures("shelf")
def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError,
        match=r"^unknown book 'xyz'; choose one of: long-one, short$",
    ):
        books().get("xyz")


def test_a_folder_with_a_file_that_registers_is_an_entry(shelf: Path) -> None:
    (shelf / "in_parts").mkdir()
    (shelf / "in_parts" / "__init__.py").write_text('"""In parts."""\n')
    (shelf / "in_parts" / "page.py").write_text("PAGE = 7\n")
    (shelf / "in_parts" / "cover.py").write_text(
        '"""In two parts."""\n'
        "from shelf import BOOKS\n"
        "from shelf.in_parts.page import PAGE\n"
        "@BOOKS.register()\ndef read():\n    return PAGE\n"
    )
    importlib.invalidate_caches()
    assert books().names() == ["in-parts", "long-one", "short"]
    assert books().summary("in-parts") == "In two parts."
    assert books().get("in_parts").run() == 7


def test_two_entries_in_a_file_are_our_defect(shelf: Path) -> None:
    (shelf / "double.py").write_text(
        "from shelf import BOOKS\n"
        "@BOOKS.register()\ndef one():\n    return 1\n"
        "@BOOKS.register()\ndef two():\n    return 2\n"
    )
    importlib.invalidate_caches()
    with pytest.raises(RuntimeError, match=r"shelf\.double registers two books"):
        books().get("double")
