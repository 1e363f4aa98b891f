"""What nothing in a report's folder shows."""

from __future__ import annotations

from collections.abc import Iterable

from spark_audit.pipeline.verification.files import needs_manifest
from spark_audit.results import Report


def taken_on_trust(
    report: Report, *, verified: Iterable[str] = (), with_manifest: bool = False
) -> list[str]:
    """List what no evidence shows, in plain words.

    Parameters
    ----------
    verified
        Checkpoints whose weights were compared.
    with_manifest
        Whether the manifest was given.
    """
    told = [
        "that the evidence is of these checkpoints and all that there was: whoever can "
        "write to the folder can write both (sign the statement of `gate --attest`)",
        "checks of the setup (held_out_back, base_read_rows, broken_model, "
        "trained_rows_fit): they rest on scores of single tokens, no evidence",
        "status, command, versions and times, and settings that no conclusion rests on",
    ]
    told.append(
        "format, number format, identity, base, rounding and notes of checkpoints, "
        "and the key of the report"
    )
    missing = [one.name for one in report.checkpoints if one.name not in {*verified}]
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        told.append(f"weights and source of {names} (give --ckpt NAME=PATH)")
    if not with_manifest:
        told.append(
            "the manifest's digest, sources, balance and identifiers without a control "
            "(give --manifest FILE)"
        )
        for kind in report.files:
            if needs_manifest(report, kind):
                told.append(f"{', '.join(report.files[kind])} (give --manifest FILE)")
    return told
