"""Sentences: every key has its template, and no program reads our own words."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, meta
from jinja2.nodes import Concat, Const, Include, List
from made_reports import figure, made_report

from spark_audit import sentences
from spark_audit.cli.show import show_report
from spark_audit.errors import InputError
from spark_audit.report.folder import write_report
from spark_audit.results import Finding, Report
from spark_audit.sentences import renderer

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
    owners = {"finding", "guard", "one", "first", "standing", "f", "g"}
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
    environment = renderer._environment("en")
    keys = environment.list_templates()
    groups = {key.partition(".")[0] for key in keys}
    for key in keys:
        environment.get_template(key)
    for path, node in nodes():
        if isinstance(node, ast.keyword) and node.arg == "says":
            if isinstance(node.value, ast.Constant):
                assert node.value.value in keys, f"{path}:{node.value.lineno}"
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


def test_every_translated_reason_is_one_of_the_code():
    constants = (node for _, node in nodes() if isinstance(node, ast.Constant))
    texts = "\n".join(str(node.value) for node in constants)
    own = renderer._known("de").keys() - renderer._known("en").keys()
    reasons = [key for key in own if key.startswith("reason.")]
    assert reasons
    for key in reasons:
        assert re.split(r" \d", key.removeprefix("reason."))[0] in texts, key


def test_no_key_is_given_twice_and_files_are_named_alike():
    for language in sentences.LANGUAGES:
        flat: list[str] = []
        for file in (PACKAGE / "sentences" / language).glob("*.toml"):
            assert (PACKAGE / "sentences" / "en" / file.name).is_file()
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            flat += [key for key, _ in renderer._flat(table)]
        assert len(flat) == len(set(flat))


def facts_of(environment: Environment, key: str, seen: set[str]) -> set[str]:
    """The facts that a template and those that it includes use."""
    if key in seen:
        return set()
    seen.add(key)
    loader = environment.loader
    tree = environment.parse(loader.get_source(environment, key)[0])
    found = meta.find_undeclared_variables(tree)
    for node in tree.find_all(Include):
        if isinstance(node.template, Const):
            keys = [node.template.value]
        elif isinstance(node.template, List):
            continue
        else:
            assert isinstance(node.template, Concat)
            start = node.template.nodes[0]
            assert isinstance(start, Const)
            every = environment.list_templates()
            keys = [each for each in every if each.startswith(start.value)]
        for each in keys:
            found |= facts_of(environment, each, seen)
    return found


@pytest.mark.parametrize("language", set(sentences.LANGUAGES) - {"en"})
def test_a_translation_uses_no_fact_that_the_english_sentence_lacks(language):
    english, other = map(renderer._environment, ("en", language))
    known, own = renderer._known("en"), renderer._known(language)
    translated = [key for key, text in own.items() if text != known.get(key)]
    assert len(translated) > 100
    for key in translated:
        other.get_template(key)
        allowed = facts_of(english, key, set()) if key in known else set()
        assert facts_of(other, key, set()) <= allowed, key


def remembered() -> Finding:
    row = figure("a", "matched|memory", -1.0, unit="nats")
    facts = {"memory": row, "trained": row, "held_out": row, "seeds": False}
    return Finding.on(
        row, "memory", "matched.memory", p=0.04, family="primary", facts=facts
    )


@pytest.fixture
def report() -> Report:
    """One checkpoint that leaks."""
    finding = remembered()
    row = finding.facts["memory"]
    return made_report("base", "a", results=[row], findings=[finding])


def test_readers_get_german_and_programs_english(report, tmp_path, capsys):
    formats = ["json", "csv", "md", "html", "dossier"]
    write_report(report, tmp_path, formats=formats, language="de")
    head, page, dossier, told = (
        (tmp_path / name).read_text("utf-8")
        for name in ("report.md", "report.html", "dossier.html", "report.json")
    )
    for text in (head, page, dossier):
        assert "LECK" in text
        assert "HAT SICH im Training gesehene Identifikatoren EINGEPRÄGT" in text
        assert "Geben Sie diesen Checkpoint nicht frei" in text
        assert "REMEMBERS" not in text
    assert page.count('<html lang="de">') == dossier.count('<html lang="de">') == 1
    assert "<title>Datenschutz-Dossier: m</title>" in dossier
    tables = [path.read_text("utf-8") for path in tmp_path.glob("tables/*.csv")]
    assert tables
    assert "REMEMBERS trained identifiers" in told
    assert not any("EINGEPRÄGT" in text for text in (told, *tables))
    with sentences.spoken("de"):
        show_report(report)
    said = " ".join(capsys.readouterr().out.split())
    assert "LECK a: HAT SICH im Training gesehene" in said
    assert "Ohne eigene Regeln gilt: `spark-audit gate` stoppt a." in said


def test_a_language_that_there_is_not_writes_nothing(report, tmp_path):
    with pytest.raises(InputError, match="'xx' is unknown") as caught:
        write_report(report, tmp_path / "new", language="xx")
    assert "en" in str(caught.value)
    assert not (tmp_path / "new").exists()


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
