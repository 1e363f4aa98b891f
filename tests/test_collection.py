"""Every test runs: pytest passes over some folders by name, `build` among them."""

import re
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
