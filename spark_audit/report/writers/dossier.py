"""dossier.html: what a data protection officer needs, on pages of A4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.audits import Matched, about, metric_of
from spark_audit.errors import InputError, OutputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of
from spark_audit.report.at_a_glance import answers_of
from spark_audit.report.checkpoint_states import CheckpointState
from spark_audit.report.named import NAMED_SHARE, evidence_of, named_rows
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tried import Tried, attack_name
from spark_audit.report.writers.page_templates import environment, template_facts
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Guard, Report, grouped
from spark_audit.sentences import DECIMALS, knows, render, terms, under
from spark_audit.sentences.renderer import figure as figure_in_words
from spark_audit.sentences.renderer import percent

if TYPE_CHECKING:
    import pandas as pd

MAX_EXPOSED_ROWS = 10
"""The most exposed rows that are told of each checkpoint."""

SPAN_COLUMNS = ["example", "task", "split", "type", "start", "n_tokens"]
"""Columns of the evidence that tell an identifier from all others."""


def write_dossier(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``dossier.html``; a browser prints it on A4.

    Parameters
    ----------
    folder
        The report's, whose evidence tells the most exposed rows.
    writer_input
        Its manifest is for the number of rows, and with ``show_text`` for the
        identifiers.
    """
    report = prepared.report
    checkpoint_states = prepared.checkpoint_states
    dossier_facts = template_facts(prepared)
    manifest_to_name_rows = writer_input.manifest if writer_input.show_text else None

    names_by_state = {}
    for state, of_state in grouped(
        checkpoint_states, lambda found: found.state
    ).items():
        names_by_state[state] = [checkpoint_state.name for checkpoint_state in of_state]

    # Rows are listed for checkpoints that leak, and for no others.
    exposed_by_name = {}
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.state == "LEAKS":
            exposed_by_name[checkpoint_state.name] = exposed(
                report, folder, checkpoint_state, manifest=manifest_to_name_rows
            )

    # What no audit can show comes first, then the limits of those of this report.
    limits: list[str] = []
    for audit in ["all", *dict.fromkeys(row.audit for row in report.results)]:
        limits += under(f"scope.{audit}.dossier.")

    dossier_facts |= {
        "words": dossier_words,
        "stages": len(report.checkpoints) - len(dossier_facts["checkpoints"]),
        "data": _data(report, writer_input.manifest),
        "by_state": names_by_state,
        "guards": _guards_to_show(report),
        "exposed": exposed_by_name,
        "limits": limits,
        "named": manifest_to_name_rows is not None,
        "shown": _summaries_of_named_rows(report, folder, checkpoint_states),
        "answers_by_audit": {
            audit: answers for audit, answers in answers_of(report).items() if answers
        },
        "audit_terms": _terms_of_audits(report),
    }
    templates = environment(
        figure=_figure,
        result=_result_in_words,
        attack=attack_name,
        words=dossier_words,
    )
    html = templates.get_template("dossier.html").render(dossier_facts)
    # With identifiers it is as private as the manifest.
    yield File("dossier.html", html, private=manifest_to_name_rows is not None)


def dossier_words(key: str, **facts: Any) -> str:
    """Return the words of a key of the dossier; empty where there are none."""
    key = f"dossier.page.{key.lower().replace(' ', '_')}"
    return render(key, **facts) if knows(key) else ""


def _guards_to_show(report: Report) -> list[Guard]:
    """Return the guards that failed, then those that warn."""
    guards = grouped(report.guards, lambda guard: guard.passed)
    return guards.get(False, []) + guards.get(None, [])


def _summaries_of_named_rows(
    report: Report, folder: Path, checkpoint_states: Sequence[CheckpointState]
) -> list[str]:
    """Return how many rows are shown to have been trained on, by checkpoint.

    Only checkpoints of which something was detected are told.
    """
    detected = {
        checkpoint_state.name
        for checkpoint_state in checkpoint_states
        if checkpoint_state.detections
    }
    summaries = []
    # No audit of membership, or its scores are elsewhere, or others.
    with suppress(InputError, OutputError):
        for rows_of_checkpoint in named_rows(report, evidence_of(report, folder)):
            if entry_of(rows_of_checkpoint.checkpoint) in detected:
                summaries.append(rows_of_checkpoint.summary(NAMED_SHARE))
    return summaries


def _terms_of_audits(report: Report) -> list[tuple[str, str]]:
    """Return the terms that only audits of this report use, and what they mean."""
    audit_terms = []
    for audit in dict.fromkeys(row.audit for row in report.results):
        audit_terms += terms(f"glossary_of.{audit}")
    return audit_terms


def _result_in_words(attack: Tried) -> str:
    """Return the verdict of one attack on one checkpoint, else its outcome."""
    if attack.finding is not None and attack.finding.verdict:
        return attack.finding.verdict
    return dossier_words(f"outcome.{attack.outcome}")


def _figure(attack: Tried) -> str:
    """Return value, interval and null of one attack on one checkpoint, in words.

    Empty where there is no figure that may be read.
    """
    finding = attack.finding
    if finding is None or finding.value is None or attack.outcome == "void":
        return ""

    metric = metric_of(finding.audit, finding.metric)
    if metric.rate and not finding.unit:
        text = percent(finding)
    else:
        text = figure_in_words(finding, DECIMALS.get(finding.unit, 3))
    if finding.unit == "points":
        text = render("dossier.of_unit", size=text, unit=finding.unit)

    if finding.no_effect is None:
        return text
    null = f"{finding.no_effect:.3g}"
    return render("dossier.figure_with_null", figure=text, null=null)


def _data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """Return what the audits were run on: label and value of each line.

    Name and digest of the manifest, rows, identifiers, canaries.
    """
    manifest_facts = report.manifest
    values = {"manifest": manifest_facts.name, "digest": manifest_facts.digest}

    reference = report.settings.get("reference")
    if reference:
        values["reference"] = str(reference)

    if manifest is not None:
        n_rows = len(manifest.examples)
        n_trained = sum(example.split == "train" for example in manifest.examples)
        values["rows"] = render(
            "dossier.rows_split", trained=n_trained, held_out=n_rows - n_trained
        )

    records = report.tables.get("matching_by_type", [])
    if records:
        # Identifiers with a control and those without one.
        counts = {}
        for record in records:
            counts[record["type"]] = record["matched"] + record["unmatched"]
        values["identifiers"] = render(
            "dossier.identifiers_by_type", count=sum(counts.values()), counts=counts
        )
    values["matched"] = render(
        "dossier.matched_count",
        spans=manifest_facts.n_spans,
        clusters=manifest_facts.n_clusters,
    )

    # Nothing is said of canaries that no audit of this report asked for.
    n_planted = _count_planted_canaries(report)
    if n_planted:
        values["canaries"] = str(n_planted)
    return [(render(f"dossier.{name}"), value) for name, value in values.items()]


def _count_planted_canaries(report: Report) -> int:
    """Return how many canaries were tested; 0 where no audit asked for them."""
    counts = []
    for row in report.results:
        audit = about(row.audit)
        if not audit.needs_canaries or audit.covers is None:
            continue

        metric, _ = audit.covers
        if row.metric == metric and row.group == "pooled":
            counts.append(row.n)
    return max(counts, default=0)


def exposed(
    report: Report,
    folder: Path,
    checkpoint_state: CheckpointState,
    *,
    manifest: Manifest | None = None,
) -> list[dict[str, Any]] | str:
    """Return the rows whose identifiers a checkpoint gives away most.

    Parameters
    ----------
    folder
        The report's, with the evidence.
    manifest
        For the ids of rows and the text of identifiers. None: neither is shown, as an
        id may name somebody, too.

    Returns
    -------
    list of dict, or str
        Each row has its ``id``, or without a manifest its number in the evidence, its
        ``task``, the ``types`` of its identifiers that became likelier, the most
        exposed first, and with a manifest the ``texts`` of these. In place of the list,
        the reason why there is none.
    """
    # Some attacks find that rows were trained on, but tell of no identifier.
    attacks = {}
    for tried in checkpoint_state.tried:
        if tried.outcome == "FOUND":
            attacks[tried.audit] = tried.attack
    # An audit may test rows that its caller listed.
    if len(attacks) == 1:
        (audit,) = attacks
        if knows(f"dossier.exposed_by.{audit}"):
            return render(f"dossier.exposed_by.{audit}")
    if not any(about(audit).attacks_identifiers for audit in attacks):
        return render("dossier.exposed_nobody", attacks=[*attacks.values()])

    try:
        # A row for each identifier and checkpoint.
        spans = evidence_of(report, folder, Matched.name).frame()
    except (InputError, OutputError):
        file = f"scores/{Matched.evidence_file()}"
        return render("dossier.exposed_missing", file=file)

    if manifest is None:
        number_by_id = {}
        for number, example in enumerate(spans["example"].unique(), start=1):
            number_by_id[example] = render("dossier.row", number=number)
        spans["example"] = spans["example"].map(number_by_id)

    # Seeds of a method count together.
    is_of_checkpoint = spans["checkpoint"].map(entry_of) == checkpoint_state.name
    is_identifier = spans["role"].isin(("pii", "unmatched"))
    likelier = _likelier_identifiers(spans[is_of_checkpoint & is_identifier])

    rows = []
    by_example = likelier.groupby("example", sort=False)
    for example, identifiers in islice(by_example, MAX_EXPOSED_ROWS):
        rows.append(
            {
                "id": str(example),
                "task": str(identifiers["task"].iloc[0]),
                "types": [*identifiers["type"].unique()],
                "texts": _texts(str(example), identifiers, manifest),
            }
        )
    return rows or render("dossier.exposed_none")


def _texts(
    example_id: str, identifiers: pd.DataFrame, manifest: Manifest | None
) -> list[str]:
    """Return the text of a row's identifiers, each once; none without a manifest.

    Parameters
    ----------
    identifiers
        Of the row, with the columns ``start`` and ``n_tokens``: their tokens.
    """
    example = None if manifest is None else manifest.by_id.get(example_id)
    if example is None:
        return []

    # The evidence names an identifier by its tokens, the manifest by its characters.
    text_by_tokens = {}
    for span in example.spans:
        text_by_tokens[span.tokens] = example.text[span.start : span.end]

    ends = identifiers["start"] + identifiers["n_tokens"]
    texts = []
    for tokens in zip(identifiers["start"], ends, strict=True):
        if tokens in text_by_tokens:
            texts.append(text_by_tokens[tokens])
    return list(dict.fromkeys(texts))


def _likelier_identifiers(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the identifiers of training rows that became likelier, the most so first.

    Parameters
    ----------
    spans
        Identifiers of one checkpoint, or of the seeds of one method, with the columns
        :data:`SPAN_COLUMNS`, ``nll_sum`` and ``ref_sum`` (nats, to the checkpoint and
        to the reference).

    Returns
    -------
    DataFrame
        Of :data:`SPAN_COLUMNS` and ``drop``, in nats: by how much likelier an
        identifier is than to the reference, beyond what identifiers of its type in rows
        never trained on became; over seeds the mean.
    """
    spans = spans.assign(drop=spans["ref_sum"] - spans["nll_sum"])
    spans = spans.groupby(SPAN_COLUMNS, as_index=False)[["drop"]].mean()

    is_trained = spans["split"] == "train"
    sums = spans[~is_trained].groupby("type")[["drop", "n_tokens"]].sum()
    usual_drop_per_token = sums["drop"] / sums["n_tokens"]  # by type

    trained = spans[is_trained]
    # A type without held-out identifiers has no usual drop: nothing is taken off.
    usual_drop = trained["type"].map(usual_drop_per_token).fillna(0.0)
    trained = trained.assign(drop=trained["drop"] - usual_drop * trained["n_tokens"])
    likelier = trained[trained["drop"] > 0]
    return likelier.sort_values("drop", ascending=False, kind="stable")
