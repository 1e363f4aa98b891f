"""Sentences: every key has its template, and no program reads our own words."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import nodes as syntax
from made_reports import figure

from spark_audit.results import Finding, Hits
from spark_audit.sentences import renderer
from spark_audit.sentences.effects import rounded_up_as_shown, signed_effect

PACKAGE = Path(renderer.__file__).parents[1]
WORDS = {"sentence", "text", "detail", "lead", "subject"}
PARSED = {"split", "replace", "removeprefix", "removesuffix", "startswith", "endswith"}
PARSED |= {"find", "index", "partition", "rpartition", "match", "search", "sub"}


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path, node


def spoken(node: ast.AST) -> bool:
    """Whether it is the rendered text of a finding or guard."""
    owners = {"finding", "guard", "one", "first", "checkpoint_state", "f", "g"}
    return (
        isinstance(node, ast.Attribute)
        and node.attr in WORDS
        and isinstance(node.value, ast.Name)
        and node.value.id in owners
    )


def test_no_program_reads_our_own_words():
    for path, node in nodes():
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            assert not any(map(spoken, parts)), f"{path}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            read = [node.func.value, *node.args]
            parsed = node.func.attr in PARSED and any(map(spoken, read))
            assert not parsed, f"{path}:{node.lineno}"


def test_every_key_in_the_code_has_its_template_and_every_template_compiles():
    environment = renderer.template_environment()
    keys = environment.list_templates()
    groups = {key.partition(".")[0] for key in keys}
    for key in keys:
        environment.get_template(key)
    for path, node in nodes():
        if isinstance(node, ast.keyword) and node.arg == "says":
            if isinstance(node.value, ast.Constant):
                key = node.value.value
                # Guards complete the key of their audit: `guard.mia.` and this.
                known = key in keys or any(k.endswith(f".{key}") for k in keys)
                assert known, f"{path}:{node.value.lineno}"
    used = {
        node.value
        for path, node in nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"[a-z_]+\.[a-z_.]+", node.value)
        if path.is_relative_to(PACKAGE / "audits")
    }
    named = {key for key in used if key.partition(".")[0] in groups}
    assert named
    for key in named:  # the beginning of a key is completed when it is known
        ways = key, f"guard.{key}"  # of a guard the function that makes it says so
        known = any(one in keys for one in ways)
        assert known or any(k.startswith(ways) for k in keys if key[-1] in "_."), key


CONDITIONS = (
    *(syntax.If, syntax.For, syntax.CondExpr),
    *(syntax.Assign, syntax.AssignBlock, syntax.With),
)


@pytest.mark.parametrize("template", ["{% if a %}b{% endif %}", "{{ a if b else c }}"])
def test_a_condition_in_a_template_is_seen(template):
    assert list(renderer.template_environment().parse(template).find_all(CONDITIONS))


def test_templates_hold_words_and_the_code_chooses_the_key():
    environment = renderer.template_environment()
    for key, template in renderer.known_templates().items():
        found = environment.parse(template).find_all(CONDITIONS)
        assert not list(found), key


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ gap }}", "0.250 [0.125, 0.500]"),
        ("{{ gap.value }}", "0.210"),
        ("{{ gap.value | number(1) }}", "0.2"),
        ("{{ gap.low }}", "0.05"),
        ("{{ found }}", "3 (5 if ties are won)"),
        ("{{ missing }}", "-"),
    ],
)
def test_a_figure_without_a_filter_reads_as_a_figure(template, words):
    value = 0.20983292664929776 if "value" in template else 0.25
    low = 0.05 if "low" in template else 0.125
    facts = {
        "gap": figure("a", "nll|mean", value).model_copy(update={"low": low}),
        "found": Hits(count=3, of=9, tied=2),
        "missing": figure("a", "nll|mean", None),
    }
    shown = renderer.template_environment().from_string(template).render(facts)
    assert shown == words


def test_no_key_is_given_twice_and_files_are_named_alike():
    flat: list[str] = []
    for file in (PACKAGE / "sentences" / "en").glob("*.toml"):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        flat += [key for key, _ in renderer.flat_templates(table)]
    assert len(flat) == len(set(flat))


def remembered() -> Finding:
    row = figure("a", "matched|memory", -1.0, unit="nats")
    facts = {"memory": row, "trained": row, "held_out": row, "seeds": False}
    return Finding.on(
        row, "memory", "matched.memory", p=0.04, family="primary", facts=facts
    )


def test_what_a_detection_leaves_once_it_is_withdrawn_has_words():
    finding = remembered()
    claimed = finding.model_copy(update={"p_adjusted": 0.04, "tests": 1})
    taken = {"claim": "nothing_shown", "p_adjusted": 0.08, "tests": 2}
    withdrawn = finding.model_copy(update=taken)
    assert "REMEMBERS" in claimed.sentence
    assert "REMEMBERS" not in withdrawn.sentence
    assert "0.08" in withdrawn.sentence
    assert withdrawn.sentence.startswith("a: ")


@pytest.mark.parametrize(
    ("nats", "words"),
    [
        (-0.112, "12% more likely"),
        (0.112, "11% less likely"),
        (-1.948, "7.0 times as likely"),
        (0.0, "0% more likely"),
        (-900.0, "over 1000 times as likely"),
    ],
)
def test_a_change_of_nll_in_words(nats, words):
    row = figure("a", "matched|memory", nats)
    assert renderer.likelier(row) == words


def test_an_audit_whose_module_is_gone_takes_no_sentence_away(tmp_path):
    """Its package is still registered, as after an installation that broke off."""
    package = tmp_path / "gone-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1\n")
    registered = "[spark_audit.audits]\ngone = module_that_is_gone:Audit\n"
    (package / "entry_points.txt").write_text(registered)

    code = "from spark_audit.sentences import render; print(render('word.and'))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()


@pytest.mark.parametrize("unit", ["nats", "bits", "AUC", "points", "similarity"])
@pytest.mark.parametrize("size", [0.0, 0.0931, 0.17, 0.4049, 0.69, 1.0, 2.3026, 6.0])
def test_a_limit_is_never_shown_smaller_than_it_is(size, unit):
    shown = rounded_up_as_shown(size, unit)
    assert shown >= size - 1e-6
    # Shown again it is the same: no further rounding takes anything away.
    assert rounded_up_as_shown(shown, unit) == pytest.approx(shown, abs=1e-9)
    text = signed_effect(shown, unit)
    larger = signed_effect(shown + 1e-9, unit)
    assert text == larger
