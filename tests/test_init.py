"""Public names are there, typed by their modules, and resolved when they are used."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import spark_audit as sa
from spark_audit.audits.known import AUDITS, RESERVED_COMMANDS
from spark_audit.cli.main import command_app
from spark_audit.integrations.look_settings import audits_by_name


@pytest.mark.parametrize("name", sa.__all__)
def test_every_public_name_resolves(name):
    assert getattr(sa, name) is not None


@pytest.mark.parametrize("name", sa.stats.__all__)
def test_every_statistic_resolves_and_is_documented(name):
    """Also once the files are imported: none has the name of what it defines."""
    assert getattr(sa.stats, name).__doc__
    assert not isinstance(getattr(sa.stats, name), ModuleType)


def test_an_unknown_name_is_an_attribute_error():
    for module in (sa, sa.stats):
        with pytest.raises(AttributeError, match=r"\bnothing\b"):
            _ = module.nothing


def test_an_unknown_audit_class_has_a_suggestion():
    with pytest.raises(AttributeError, match="Matched"):
        _ = sa.audits.Match  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = sa.audits.nothing_like_it  # type: ignore[attr-defined]


def test_all_stands_for_the_audits_of_the_command():
    usual = [
        name
        for name in sa.audits.audit_names()
        if name not in sa.audits.AUDITS_ON_REQUEST
    ]
    for given in ("all", ["all"], ["all", "matched"]):
        request = sa.Request(checkpoints="runs/mine", manifest="m.json", audits=given)
        assert sorted(audit.name for audit in request.audits) == sorted(usual)

    own = sa.audits.Matched(replicates=500)
    request = sa.Request(
        checkpoints="runs/mine", manifest="m.json", audits=["all", own, "noise"]
    )
    assert own in request.audits
    names = sorted(audit.name for audit in request.audits)
    assert names == sorted([*usual, "noise"])


def test_a_look_at_a_model_in_training_leaves_series_out_of_all():
    names = [*audits_by_name("all")]
    assert {"matched", "mia"} <= {*names}
    assert not any(sa.audits.find(name).of_series for name in names)


def test_every_audit_has_the_name_that_it_is_found_by():
    assert all(audit.name == name for name, audit in sa.audits.all_audits().items())


def test_no_audit_of_others_can_take_the_name_of_a_command():
    commands = {name for name in command_app([]) if not name.startswith("-")}
    assert commands == {*AUDITS, *RESERVED_COMMANDS}


def test_a_report_of_one_audit_imports_no_other():
    """Nor do its facts: of those that were not run only names and texts are needed."""
    code = "import sys, spark_audit.pipeline.run; from spark_audit import audits\n"
    code += "audits.find('nll'); print({m for m in sys.modules if 'canary' in m})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("spark_audit", {"torch", "numpy"}),
        ("spark_audit.manifest.build", {"pandas", "sklearn"}),
    ],
)
def test_importing_a_module_imports_nothing_heavy(module, heavy):
    """A library costs memory: pandas takes 35 MB, which building needs for rows."""
    code = f"import sys, {module}; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_version_is_the_same_wherever_it_is_cited():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert sa.__version__ == project["project"]["version"]
    for name, pattern in {
        "CITATION.cff": r"^version: (.+)$",
        "docs/citing.md": r"^  version = \{(.+)\}$",
    }.items():
        text = (root / name).read_text(encoding="utf-8")
        assert re.findall(pattern, text, flags=re.M) == [sa.__version__], name
        assert "2609.29711" in text, name


def test_no_more_names_are_public_than_a_reader_looks_through():
    assert len(sa.__all__) <= 40
