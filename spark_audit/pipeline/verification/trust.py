"""List what a verification cannot show, so that a reader takes it on trust."""

from __future__ import annotations

from collections.abc import Iterable

from spark_audit.pipeline.verification.files import needs_manifest
from spark_audit.results import Report

MAX_NAMED_CHECKPOINTS = 3
"""Most checkpoints that a line names."""


def taken_on_trust(
    report: Report, *, verified: Iterable[str] = (), with_manifest: bool = False
) -> list[str]:
    """List what no evidence shows, in sentences that ``verify`` prints at its end.

    Parameters
    ----------
    verified
        Names of the checkpoints whose weights were compared.
    with_manifest
        Whether the user gave the manifest, so that its counts were compared.
    """
    statements = [
        "that the evidence is of these checkpoints and all that there was: whoever can "
        "write to the folder can write both (sign the statement of `gate --attest`)",
        "checks of the setup (held_out_back, base_read_rows, broken_model, "
        "trained_rows_fit): they rest on scores of single tokens, no evidence",
        "status, command, versions and times, and settings that no conclusion rests on",
        "format, number format, identity, base, rounding and notes of checkpoints, "
        "and the key of the report",
    ]

    verified_names = {*verified}
    unverified = [
        facts.name for facts in report.checkpoints if facts.name not in verified_names
    ]
    if unverified:
        names = ", ".join(unverified[:MAX_NAMED_CHECKPOINTS])
        if len(unverified) > MAX_NAMED_CHECKPOINTS:
            names += ", ..."
        statements.append(f"weights and source of {names} (give --ckpt NAME=PATH)")

    if with_manifest:
        return statements

    statements.append(
        "the manifest's digest, sources, balance and identifiers without a control "
        "(give --manifest FILE)"
    )
    # Without the manifest these files cannot be rendered again.
    for kind, files in report.files.items():
        if needs_manifest(report, kind):
            statements.append(f"{', '.join(files)} (give --manifest FILE)")
    return statements
