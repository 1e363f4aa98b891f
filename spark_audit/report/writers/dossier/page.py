"""dossier.html: a few sheets for a data-protection officer.

It is written where it is asked for by name. Its order follows what templates of impact
assessments ask; like the report's page it needs no network, and it has no script. Named
are only parts of the frameworks that were looked up: the seven steps of the ICO's
guidance on DPIAs (ico.org.uk, "How do we do a DPIA?"), the four studies of the CNIL's
PIA method, the first question of EDPB Opinion 28/2024 as its executive summary puts it,
requirement v1.0-11.2.5 of the OWASP AISVS (section C11.2), and tests of the OWASP AI
Testing Guide by their numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spark_audit.audits import metric_of
from spark_audit.errors import InputError, visible
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of
from spark_audit.report.cells import File, Rendering
from spark_audit.report.states import SHAPES, Standing, State, Tried
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import Claim, Report
from spark_audit.sentences import DECIMALS, language, render, under

PREPARED_BY = "SPARK_AUDIT_PREPARED_BY"
"""Environment variable that says who prepared it, where no option does."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``dossier.html``; a browser prints it on A4."""
    # With identifiers it is as private as the manifest.
    private = how.show_text and how.manifest is not None
    yield File("dossier.html", dossier(report, folder, how), private)


def dossier(report: Report, folder: Path, how: Rendering) -> str:
    """The dossier as one page.

    Parameters
    ----------
    folder
        The report's, whose evidence tells the most exposed rows.
    how
        Its manifest is for the number of rows, and with ``show_text`` for the
        identifiers.
    """
    from spark_audit.report.writers.dossier.exposed import exposed

    shared = facts(report)
    found: list[Standing] = shared["standings"]
    leaking = [one for one in found if one.state == "LEAKS"]
    by_state = {s: [one.name for one in found if one.state == s] for s in SHAPES}
    named = how.manifest if how.show_text else None
    prepared_by = visible(how.prepared_by or os.environ.get(PREPARED_BY, "")).strip()
    if not found:
        shared["answer"] = render("dossier.no_attack")
    if not shared["next"]:
        shared["next"] = {"NOT TESTED": render("advice.give") + "."}
    shared |= {
        "prepared_by": prepared_by or render("dossier.not_stated"),
        "stages": len(report.checkpoints) - len(shared["checkpoints"]),
        "data": _data(report, how.manifest),
        "risks": _risks(found),
        "by_state": {s: names for s, names in by_state.items() if names},
        "guards": sorted(
            (g for g in report.guards if g.passed is not True),
            key=lambda g: g.passed is not False,
        ),
        "exposed": exposed(report, folder, leaking, manifest=named),
        "limits": _limits(report),
        "named": named is not None,
        "shown": _shown(report, folder, [one.name for one in found if one.detections]),
    }
    names = [f"dossier.{language()}.html", "dossier.html"]
    return environment(figure=_figure).select_template(names).render(shared)


def _shown(report: Report, folder: Path, names: Sequence[str]) -> list[str]:
    """How many rows of each checkpoint are shown to have been trained on."""
    from spark_audit.report.named import SHARE, evidence_of, named_rows

    try:
        evidence = evidence_of(report, folder)
    except InputError:  # no audit of membership, or its scores are elsewhere
        return []
    lists = named_rows(report, evidence)
    return [one.summary(SHARE) for one in lists if entry_of(one.checkpoint) in names]


def _risks(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """What was claimed of which checkpoints, by which attacks; those alike together."""
    alike: dict[tuple[State, tuple[tuple[Claim, tuple[str, ...]], ...]], list[str]] = {}
    for one in found:
        attack = {tried.audit: tried.attack for tried in one.tried}
        claims: dict[Claim, dict[str, None]] = {}
        for finding in one.detections:
            name = attack.get(finding.audit, finding.audit)
            claims.setdefault(finding.claim, {})[name] = None
        if claims:
            key = one.state, tuple((claim, tuple(by)) for claim, by in claims.items())
            alike.setdefault(key, []).append(one.name)
    return [
        {"state": state, "names": names, "claims": claims}
        for (state, claims), names in alike.items()
    ]


def _figure(tried: Tried) -> str:
    """Value, interval and null of one attack on one checkpoint, as its sentence has."""
    finding = tried.finding if tried.outcome != "void" else None
    if finding is None or finding.value is None:
        return ""
    rate = not finding.unit and metric_of(finding.audit, finding.metric).rate
    digits = DECIMALS.get(finding.unit, 3)
    return render("dossier.figure", finding=finding, rate=rate, digits=digits)


def _limits(report: Report) -> list[str]:
    """What cannot be concluded from the attacks, of figures that a dossier shows."""
    audits = ["all", *dict.fromkeys(row.audit for row in report.results)]
    return [line for audit in audits for line in under(f"scope.{audit}.dossier.")]


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
    planted = max((row.n for row in rows), default=0)
    told["canaries"] = str(planted or render("dossier.none"))
    return [(render(f"dossier.{name}"), value) for name, value in told.items()]
