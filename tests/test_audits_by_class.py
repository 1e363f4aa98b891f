"""Outside ``audits/`` no audit is named by a string: its class is asked.

A word that is an audit's name may mean something else, such as a column: it stands in
``OTHER_MEANINGS`` with what it means there.
"""

import ast
from pathlib import Path

import pytest

from spark_audit.audits import AUDITS

ROOT = Path(__file__).parents[1]

NAMES_THEM = {
    "spark_audit/audits": "audits themselves",
    "spark_audit/demo.py": "the demo sets options of single audits",
    "spark_audit/report/figures": "each figure draws one audit",
}

COLUMN = "a column of scores or of evidence"
FOLDER = "the folder of stages that a training run writes"
FIELD = "a field of the manifest"
STREAM = "a stream of random numbers"

OTHER_MEANINGS: dict[tuple[str, str], str] = {
    ("spark_audit/checkpoints/stored_checkpoint.py", "noise"): "noise on weights",
    ("spark_audit/checkpoints/formats/mlx_adapter.py", "rank"): "the width of LoRA",
    ("spark_audit/checkpoints/inspection.py", "stages"): "a line of `inspect`",
    ("spark_audit/checkpoints/run_record.py", "stages"): FOLDER,
    ("spark_audit/checkpoints/task_series.py", "stages"): FOLDER,
    ("spark_audit/checkpoints/training_facts.py", "stages"): FOLDER,
    ("spark_audit/checkpoints/noise_file.py", "noise"): "a tensor of noise",
    ("spark_audit/cli/report_commands.py", "canary"): "the unit of a claim",
    ("spark_audit/data/occurrences.py", "canary"): "a kind of text",
    ("spark_audit/manifest/build.py", "twins"): FIELD,
    ("spark_audit/manifest/content.py", "twins"): FIELD,
    ("spark_audit/manifest/encodings.py", "canary"): "a kind of sequence",
    ("spark_audit/manifest/encodings.py", "twins"): "a kind of sequence",
    ("spark_audit/manifest/pair_selection.py", "matched"): "a side of the matching",
    ("spark_audit/manifest/pair_selection.py", "nll"): FIELD,
    ("spark_audit/manifest/redaction.py", "nll"): FIELD,
    ("spark_audit/manifest/redaction.py", "twins"): FIELD,
    ("spark_audit/manifest/reference_distance.py", "nll"): COLUMN,
    ("spark_audit/manifest/schema.py", "twins"): "a count that a notebook shows",
    ("spark_audit/manifest/task_manifest.py", "twins"): FIELD,
    ("spark_audit/manifest/token_corpus.py", "nll"): COLUMN,
    ("spark_audit/manifest/twins.py", "twins"): STREAM,
    ("spark_audit/report/assemble.py", "matched"): "a column of matching_by_type",
    ("spark_audit/report/cases.py", "nll"): "a column of cases",
    ("spark_audit/report/disclosure/tables.py", "rank"): COLUMN,
    ("spark_audit/report/receipt.py", "canary"): "the unit of a claim",
    ("spark_audit/report/writers/dossier.py", "matched"): (
        "a column, and a line of facts"
    ),
    ("spark_audit/report/writers/dossier.py", "stages"): (
        "a count that a template shows"
    ),
    ("spark_audit/report/writers/pages.py", "series"): "the colours of curves",
    ("spark_audit/results/evidence_columns.py", "nll"): COLUMN,
    ("spark_audit/results/evidence_columns.py", "rank"): COLUMN,
    ("spark_audit/results/report_checks.py", "matched"): "a column of matching_by_type",
    ("spark_audit/pipeline/verification/counts.py", "matched"): (
        "a column of matching_by_type"
    ),
    ("spark_audit/scoring/passes/noise.py", "nll"): COLUMN,
    ("spark_audit/scoring/passes/noise.py", "noise"): STREAM,
    ("spark_audit/scoring/drift.py", "nll"): COLUMN,
    ("spark_audit/scoring/score.py", "noise"): "a pass",
    ("spark_audit/scoring/served.py", "nll"): COLUMN,
    ("spark_audit/scoring/store.py", "nll"): COLUMN,
    ("spark_audit/scoring/table.py", "nll"): COLUMN,
    ("spark_audit/scoring/table.py", "noise"): "a pass",
    ("spark_audit/stats/canary_ranks.py", "rank"): "a statistic of canaries",
    ("spark_train/dpsgd.py", "noise"): "a line of the timing",
    ("spark_train/frozen_noise.py", "noise"): "a tensor of noise",
    ("spark_train/training_run.py", "noise"): "a tensor of noise",
    ("spark_train/training_methods/ewc.py", "nll"): "a name of a loss",
    ("spark_train/run_folder.py", "stages"): FOLDER,
    ("spark_train/scored_examples.py", "nll"): COLUMN,
    ("spark_audit/spoken_options.py", "passages"): "the option --passages",
    ("spark_audit/cli/kept_work.py", "generated"): (
        "the command, known before anything slow is imported"
    ),
}
"""File and word -> what the word means there."""


def audits_named(source: str) -> set[str]:
    """Strings of a module that are the name of an audit."""
    words = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return words & AUDITS.keys()


def named_by_file() -> dict[str, set[str]]:
    found = {}
    for package in ("spark_audit", "spark_train"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not any(name.startswith(place) for place in NAMES_THEM):
                found[name] = audits_named(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    return {(file, word) for file, words in named_by_file().items() for word in words}


def test_no_audit_is_named_by_a_string(found):
    named = sorted(found - OTHER_MEANINGS.keys())
    assert not named, f"ask the audit's class instead, or say what it means: {named}"


def test_what_means_something_else_is_still_there(found):
    assert not sorted(OTHER_MEANINGS.keys() - found)


def test_the_name_of_an_audit_is_found_in_a_module():
    source = 'def f(row):\n    return row.audit in ("matched", "other") or "mia.auc"\n'
    assert audits_named(source) == {"matched"}
