"""The built wheel holds all that it needs and runs from where it was installed."""

import json
import os
import re
import shlex
import shutil
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


def printed_commands() -> list[list[str]]:
    """What reports/README.md shows of the kept demo, without the slow ``verify``."""
    text = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    block = re.split(r"^```$", text, flags=re.M)[1]
    calls = [shlex.split(line) for line in block.strip().splitlines()]
    return [call for call in calls if "verify" not in call]


def test_printed_commands_run_from_the_wheel_on_the_kept_demo(installed, tmp_path):
    shutil.copytree(ROOT / "reports" / "demo", tmp_path / "reports" / "demo")
    shutil.copytree(
        ROOT / "reports" / "demo-early", tmp_path / "reports" / "demo-early"
    )
    (tmp_path / "manifests").mkdir()
    shutil.copy(ROOT / "manifests" / "demo.json", tmp_path / "manifests")

    # One process for all of them: its imports take longer than the commands.
    commands = []
    for program, *arguments in printed_commands():
        if program == "cp":
            _, source, copy = arguments
            shutil.copytree(tmp_path / source, tmp_path / copy)
        else:
            commands.append(arguments)
    code = (
        "import json, sys\n"
        "from spark_audit.cli.main import run\n"
        f"codes = [run(arguments) for arguments in {commands!r}]\n"
        "print(json.dumps(codes))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    out = _done([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment)
    codes = json.loads(out.splitlines()[-1])
    expected = [1 if arguments[0] == "gate" else 0 for arguments in commands]
    assert codes == expected
    assert len(commands) >= 5
    assert (tmp_path / "reports" / "demo-mine" / "dossier.html").is_file()
    assert not (tmp_path / "reports" / "demo" / "dossier.html").exists()
