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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.files import write_text
from spark_audit.report.attacks import attacks
from spark_audit.report.cells import Rendering
from spark_audit.report.states import SHAPES, Standing, State
from spark_audit.report.writers.dossier.exposed import exposed
from spark_audit.report.writers.dossier.facts import data, limits, result
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import Claim, Report

PREPARED_BY = "SPARK_AUDIT_PREPARED_BY"
"""Environment variable that says who prepared it, where no option does."""


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write ``dossier.html``; a browser prints it on A4."""
    # With identifiers it is as private as the manifest.
    mode = 0o600 if how.show_text and how.manifest is not None else 0o644
    path = folder / "dossier.html"
    write_text(path, render(report, folder, how), mode=mode)
    return [path]


def render(report: Report, folder: Path, how: Rendering) -> str:
    """The dossier as one page.

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
    leaking = [one for one in found if one.state == "LEAKS"]
    by_state = {s: [one.name for one in found if one.state == s] for s in SHAPES}
    named = how.manifest if how.show_text else None
    prepared_by = visible(how.prepared_by or os.environ.get(PREPARED_BY, "")).strip()
    if not found:
        shared["answer"] = sentences.render("dossier.no_attack")
    if not shared["next"]:
        shared["next"] = {"NOT TESTED": sentences.render("advice.give") + "."}
    shared |= {
        "prepared_by": prepared_by or sentences.render("dossier.not_stated"),
        "stages": len(report.checkpoints) - len(shared["checkpoints"]),
        "data": data(report, how.manifest),
        "attacks": attacks(report, found),
        "results": {one.name: [result(t) for t in one.tried] for one in found},
        "risks": _risks(found),
        "by_state": {s: names for s, names in by_state.items() if names},
        "guards": sorted(
            (g for g in report.guards if g.passed is not True),
            key=lambda g: g.passed is not False,
        ),
        "exposed": exposed(report, folder, leaking, manifest=named),
        "limits": limits(report),
        "named": named is not None,
    }
    names = [f"dossier.{sentences.language()}.html", "dossier.html"]
    return environment().select_template(names).render(shared)


@dataclass(frozen=True)
class Risk:
    """What was found alike of some checkpoints: each claim, and by which attacks."""

    state: State
    names: tuple[str, ...]
    claims: tuple[tuple[Claim, tuple[str, ...]], ...]


def _risks(found: Sequence[Standing]) -> list[Risk]:
    """What was claimed of which checkpoints, the worst first; those alike together."""
    alike: dict[Any, list[str]] = {}
    for one in found:
        if not one.detections:
            continue
        attack = {tried.audit: tried.attack for tried in one.tried}
        claims: dict[Claim, list[str]] = {}
        for finding in one.detections:
            names = claims.setdefault(finding.claim, [])
            name = attack.get(finding.audit, finding.audit)
            if name not in names:
                names.append(name)
        key = (one.state, tuple((k, tuple(v)) for k, v in claims.items()))
        alike.setdefault(key, []).append(one.name)
    return [Risk(key[0], tuple(names), key[1]) for key, names in alike.items()]
