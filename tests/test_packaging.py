"""The image, the conda recipe and the extras say what pyproject.toml says."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_audit.cli.main import run

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
NAMES_ON_CONDA_FORGE = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    text = (ROOT / "docs/ci/conda/recipe.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def test_the_recipe_needs_what_the_package_needs(recipe):
    needed = set()
    for requirement in PROJECT["dependencies"]:
        name, _, version = requirement.partition(">=")
        needed.add(f"{NAMES_ON_CONDA_FORGE.get(name, name)} >={version}")
    python = f"python {PROJECT['requires-python']}"
    assert set(recipe["requirements"]["run"]) == needed | {python}


def test_the_recipe_has_the_version_and_the_programs_of_the_package(recipe):
    assert recipe["context"]["version"] == PROJECT["version"]
    programs = {f"{name} = {place}" for name, place in PROJECT["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == programs
    source = (ROOT / "docs/ci/conda" / recipe["source"]["path"]).resolve()
    assert source == ROOT.resolve()


def test_the_image_installs_from_wheels_alone_and_runs_a_command_that_there_is():
    text = (ROOT / "docs/ci/Dockerfile").read_text(encoding="utf-8")
    lines = text.replace("\\\n", " ").splitlines()
    instructions = dict(
        line.partition(" ")[::2] for line in lines if line and line[0] != "#"
    )
    words = shlex.split(instructions["RUN"])
    mount = words[0].removeprefix("--mount=")
    options = dict(part.partition("=")[::2] for part in mount.split(","))
    assert words[1:3] == ["pip", "install"]
    assert "--no-index" in words
    assert words[words.index("--find-links") + 1] == options["target"]
    assert words[-1] == PROJECT["name"]
    # The folder that the commands in its head fill.
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert re.findall(r"-[wd] (\S+)", "\n".join(head)) == [options["source"]] * 2

    (program,) = json.loads(instructions["ENTRYPOINT"])
    assert program in PROJECT["scripts"]
    assert run([*json.loads(instructions["CMD"]), "--help"]) == 0


def test_the_extra_all_holds_every_extra_that_a_user_installs():
    extras = PROJECT["optional-dependencies"]
    (requirement,) = extras["all"]
    held = set(re.findall(r"\[(.+)\]", requirement)[0].split(","))
    for_developers = {"all", "bench", "docs", "test"}
    assert held == set(extras) - for_developers

    page = (ROOT / "docs/installing.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M))
    assert shown == held | {"all"}
