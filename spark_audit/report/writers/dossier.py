"""dossier.html: a few sheets for a data-protection officer.

It is written where it is asked for by name. Its order follows what templates of impact
assessments ask; like the report's page it needs no network, and it has no script. Named
are only parts of the frameworks that were looked up: the seven steps of the ICO's
guidance on DPIAs (ico.org.uk, "How do we do a DPIA?"), the four studies of the CNIL's
PIA method, the first question of EDPB Opinion 28/2024 as its executive summary puts it,
requirement v1.0-11.2.5 of the OWASP AISVS (section C11.2), and tests of the OWASP AI
Testing Guide by their numbers.

Of the most exposed rows it tells the ids, the tasks and the types of their identifiers.
How far each moved stays in ``scores/``: with the base model it is as good as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.audits import about, metric_of
from spark_audit.errors import InputError, visible
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of
from spark_audit.report.named import SHARE, evidence_of, named_rows, numbered
from spark_audit.report.states import (
    OF_IDENTIFIERS,
    SHAPES,
    Standing,
    Tried,
    attack_name,
)
from spark_audit.report.table_cells import File, Rendering
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import Report
from spark_audit.sentences import DECIMALS, knows, render, under

if TYPE_CHECKING:
    import pandas as pd

MOST = 10
"""The most exposed rows that are told of each checkpoint."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``dossier.html``; a browser prints it on A4."""
    # With identifiers it is as private as the manifest.
    private = how.show_text and how.manifest is not None
    yield File("dossier.html", dossier(report, folder, how), private)


def dossier(report: Report, folder: Path, how: Rendering) -> str:
    """The dossier as one page, a template over the states of the checkpoints.

    Parameters
    ----------
    folder
        The report's, whose evidence tells the most exposed rows.
    how
        Its manifest is for the number of rows, and with ``show_text`` for the
        identifiers.
    """
    shared = facts(report)
    found: list[Standing] = shared["standings"]
    by_state = {s: [one.name for one in found if one.state == s] for s in SHAPES}
    named = how.manifest if how.show_text else None
    prepared_by = visible(how.prepared_by).strip()
    audits = ["all", *dict.fromkeys(row.audit for row in report.results)]
    lists = []
    with suppress(InputError):  # no audit of membership, or its scores are elsewhere
        lists = named_rows(report, evidence_of(report, folder))
    shared |= {
        "words": _words,
        "prepared_by": prepared_by or render("dossier.not_stated"),
        "stages": len(report.checkpoints) - len(shared["checkpoints"]),
        "data": _data(report, how.manifest),
        "by_state": {s: names for s, names in by_state.items() if names},
        "guards": sorted(
            (g for g in report.guards if g.passed is not True),
            key=lambda g: g.passed is not False,
        ),
        "exposed": {
            one.name: exposed(report, folder, one, manifest=named)
            for one in found
            if one.state == "LEAKS"
        },
        "limits": [line for name in audits for line in under(f"scope.{name}.dossier.")],
        "named": named is not None,
        # How many rows of each checkpoint are shown to have been trained on.
        "shown": [
            one.summary(SHARE)
            for one in lists
            if entry_of(one.checkpoint) in {k.name for k in found if k.detections}
        ],
    }
    made = environment(figure=_figure, attack=attack_name, words=_words)
    return made.get_template("dossier.html").render(shared)


def _words(key: str, **facts: Any) -> str:
    """The words of a key; empty where there are none."""
    key = f"dossier.page.{key.lower().replace(' ', '_')}"
    return render(key, **facts) if knows(key) else ""


def _figure(tried: Tried) -> str:
    """Value, interval and null of one attack on one checkpoint, as its sentence has."""
    finding = tried.finding if tried.outcome != "void" else None
    if finding is None or finding.value is None:
        return ""
    rate = not finding.unit and metric_of(finding.audit, finding.metric).rate
    digits = DECIMALS.get(finding.unit, 3)
    return render("dossier.figure", finding=finding, rate=rate, digits=digits)


def _data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """On what data: name and digest, rows, identifiers, canaries."""
    facts = report.manifest
    told = {"manifest": facts.name, "digest": facts.digest}
    if reference := report.settings.get("reference"):
        told["reference"] = str(reference)
    if manifest is not None:
        trained = [example.split == "train" for example in manifest.examples]
        counted = {"trained": sum(trained), "held_out": len(trained) - sum(trained)}
        told["rows"] = render("dossier.rows_split", **counted)
    if kinds := report.tables.get("matching_by_type", []):
        counts = {k["type"]: k["matched"] + k["unmatched"] for k in kinds}
        told["identifiers"] = render("dossier.identifiers_by_type", counts=counts)
    counted = {"spans": facts.n_spans, "clusters": facts.n_clusters}
    told["matched"] = render("dossier.matched_count", **counted)
    wanted = ("canary", "exposure_mean", "pooled")
    rows = (r for r in report.results if (r.audit, r.metric, r.group) == wanted)
    # Of canaries that no audit of this report asked for nothing is said.
    if planted := max((row.n for row in rows), default=0):
        told["canaries"] = str(planted)
    return [(render(f"dossier.{name}"), value) for name, value in told.items()]


# --- the most exposed rows ------------------------------------------------------------


def exposed(
    report: Report, folder: Path, one: Standing, *, manifest: Manifest | None = None
) -> list[dict[str, Any]] | str:
    """The rows whose identifiers a checkpoint gives away most, or why there are none.

    Each has its ``id``, its ``task``, the ``types`` of its identifiers that became
    likelier, the most exposed first, and with a manifest the ``texts`` of these.

    Raises
    ------
    OutputError
        If the evidence is damaged.
    """
    attacks = {t.audit: t.attack for t in one.tried if t.outcome == "FOUND"}
    if not attacks.keys() & {*OF_IDENTIFIERS}:
        return render("dossier.exposed_nobody", attacks=[*attacks.values()])
    try:
        spans = evidence_of(report, folder, "matched").frame()
    except InputError:
        file = f"scores/{about('matched').evidence_file()}"
        return render("dossier.exposed_missing", file=file)
    if report.manifest.ids_identify and manifest is None:
        spans["example"] = spans["example"].map(numbered(spans["example"]))
    spans = spans[spans["checkpoint"].map(entry_of) == one.name]
    moved = _moved(spans[spans["role"].isin(("pii", "unmatched"))])
    rows = []
    for example, part in islice(moved.groupby("example", sort=False), MOST):
        own = manifest and manifest.by_id.get(str(example))
        spans_of = own.spans if own else ()
        texts = {s.tokens: own.text[s.start : s.end] for s in spans_of if own}
        places = zip(part["start"], part["start"] + part["n_tokens"], strict=True)
        rows.append(
            {
                "id": str(example),
                "task": str(part["task"].iloc[0]),
                "types": [*part["type"].unique()],
                "texts": list(dict.fromkeys(texts[at] for at in places if at in texts)),
            }
        )
    return rows or render("dossier.exposed_none")


def _moved(spans: pd.DataFrame) -> pd.DataFrame:
    """Each identifier of a training row with ``drop``, in nats, the largest first.

    It is by how much likelier the identifier is than to the reference, beyond what
    identifiers of its type in rows never trained on became; over seeds the mean.
    """
    keys = ["example", "task", "split", "type", "start", "n_tokens"]
    spans = spans.assign(drop=spans["ref_sum"] - spans["nll_sum"])
    spans = spans.groupby(keys, as_index=False)[["drop"]].mean()
    trained = spans["split"] == "train"
    sums = spans[~trained].groupby("type")[["drop", "n_tokens"]].sum()
    own = spans[trained]
    usual = own["type"].map(sums["drop"] / sums["n_tokens"]).fillna(0.0)
    own = own.assign(drop=own["drop"] - usual * own["n_tokens"])
    return own[own["drop"] > 0].sort_values("drop", ascending=False, kind="stable")
