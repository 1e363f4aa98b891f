"""card.md is what huggingface_hub reads, and says no more than what may be shared."""

from typing import Any

import pytest
from huggingface_hub import ModelCard
from made_reports import figure, made_report, manifest_facts, said

from spark_audit.report.folder import read_report, write_report
from spark_audit.results import Report, Row


def row(name: str, metric: str = "memory", value: Any = -0.25, **more: Any) -> Row:
    columns = {"unit": "nats", "no_effect": 0.0, "clusters": 60, **more}
    return figure(name, f"matched|{metric}", value, **columns)


@pytest.fixture
def report() -> Report:
    names = ("mine: a|b", "other", "base")
    return made_report(
        *names,
        versions={"spark-audit": "0.1.0"},
        manifest=manifest_facts("m @x"),
        findings=[
            said("matched", names[0], "nothing_shown", "nothing <b>came</b> out.")
        ],
        results=[
            row(names[0]),
            row(names[0], "delta_sel|change", 0.5, clusters=3),
            row("other", value=None),
            row("base", value=-0.01),
        ],
        caveats=["This is no proof."],
    )


def test_the_hub_reads_figures_with_their_limits(report, tmp_path):
    write_report(report, tmp_path, formats=["json", "card"])
    card = ModelCard.load(tmp_path / "card.md")
    # One figure of one model: a missing one is none, nor is one of few clusters.
    (figure,) = card.data.eval_results
    assert card.data.model_name == "mine: a|b"
    assert (figure.metric_type, figure.metric_value) == ("matched.memory", -0.24)
    limits = figure.metric_args
    assert (limits["low"], limits["high"], limits["no_effect"]) == (-0.38, 0.0, 0.0)
    assert (limits["unit"], limits["interval_level"]) == ("nats", 0.95)
    assert (figure.dataset_name, figure.dataset_revision) == ("m @x", "not shown")
    assert "## Privacy audit" in card.text
    assert "This is no proof." in card.text
    assert "<b>" not in card.text
    assert read_report(tmp_path).files["card"] == ["card.md"]


def test_a_card_is_written_where_it_is_asked_for(report, tmp_path):
    write_report(report, tmp_path)
    assert not (tmp_path / "card.md").exists()
    bare = report.model_copy(update={"results": []})
    write_report(bare, tmp_path, formats=["card"])
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert text.startswith("## Privacy audit")
