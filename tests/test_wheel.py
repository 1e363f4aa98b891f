"""The built wheel holds all that it needs and runs from where it was installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with nothing but the installed wheel."""
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    source.mkdir()
    # A copy: building inside the checkout would leave files there.
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "spark_audit",
        "spark_train",
    ):
        (source / name).symlink_to(ROOT / name)
    # What front ends such as pip and build call.
    backend = "from setuptools import build_meta as backend; "
    build = f"{backend}backend.build_wheel({str(out / 'dist')!r})"
    _done([sys.executable, "-c", build], cwd=source)
    (wheel,) = (out / "dist").glob("*.whl")
    target = out / "site"
    with zipfile.ZipFile(wheel) as archive:
        # To install a wheel of Python alone is to unpack it.
        archive.extractall(target)
        names = archive.namelist()
        (listed,) = (name for name in names if name.endswith("/entry_points.txt"))
        scripts = archive.read(listed).decode().split()
    assert not any(name.startswith(("tests", "benchmarks")) for name in names)
    assert {"spark-audit", "spark-train"} <= set(scripts)
    return target


def _done(command: list[str], **more: object) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_wheel_runs_and_brings_its_data(installed, tmp_path):
    code = (
        "import json, sys\n"
        "from importlib.resources import files\n"
        "import spark_audit, spark_train\n"
        "from spark_audit.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "from spark_train.cli import run\n"
        "assert run(['--help']) == 0\n"
        "assert run(['methods']) == 0\n"
        "for name in ('report', 'manifest'):\n"
        "    json.loads((files('spark_audit') / f'schemas/{name}.json').read_text())\n"
        "print(spark_audit.__file__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    out = _done([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment)
    assert "matched" in out
    assert "ptpc.alpha_ul" in out
    assert out.strip().endswith(str(installed / "spark_audit" / "__init__.py"))
