"""What a dossier states of a report: results of attacks, limits, the data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from spark_audit.audits import metric_of
from spark_audit.manifest.schema import Manifest
from spark_audit.report.states import Outcome, Tried
from spark_audit.results import Finding, Report
from spark_audit.sentences import DECIMALS, render, under


@dataclass(frozen=True)
class Result:
    """What one attack on one checkpoint came to, with the figure that it rests on."""

    outcome: Outcome
    figure: str = ""


def result(tried: Tried) -> Result:
    """One attack on one checkpoint, with value, interval and null."""
    finding = tried.finding if tried.outcome != "void" else None
    return Result(tried.outcome, _figure(finding) if finding else "")


def _figure(finding: Finding) -> str:
    """Value, interval and null that a finding claims, as its sentence writes them."""
    if finding.value is None:
        return ""
    rate = not finding.unit and metric_of(finding.audit, finding.metric).rate
    digits = DECIMALS.get(finding.unit, 3)
    return render("dossier.figure", finding=finding, rate=rate, digits=digits)


def limits(report: Report) -> list[str]:
    """What cannot be concluded from the attacks, of figures that a dossier shows."""
    audits = ["all", *dict.fromkeys(row.audit for row in report.results)]
    return list(chain(*(under(f"scope.{audit}.dossier.") for audit in audits)))


def data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """On what data: name and digest, rows, identifiers, canaries."""
    facts = report.manifest
    told = [("manifest", facts.name), ("digest", facts.digest)]
    if reference := report.settings.get("reference"):
        told.append(("reference", str(reference)))
    if manifest is not None:
        splits = [example.split for example in manifest.examples]
        trained = splits.count("train")
        held_out = len(splits) - trained
        words = render("dossier.rows_split", trained=trained, held_out=held_out)
        told.append(("rows", words))
    kinds = report.tables.get("matching_by_type", [])
    if kinds:
        counts = {k["type"]: k["matched"] + k["unmatched"] for k in kinds}
        words = render("dossier.identifiers_by_type", counts=counts)
        told.append(("identifiers", words))
    counted = {"spans": facts.n_spans, "clusters": facts.n_clusters}
    told.append(("matched", render("dossier.matched_count", **counted)))
    planted = [
        row.n
        for row in report.results
        if row.audit == "canary" and row.metric == "exposure_mean"
        if row.group == "pooled"
    ]
    count = str(max(planted, default=0) or render("dossier.none"))
    told.append(("canaries", count))
    return [(render(f"dossier.{name}"), value) for name, value in told]
