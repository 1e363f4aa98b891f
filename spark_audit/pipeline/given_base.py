"""Check the base that a request gives, and say what is not tested without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.manifest.file import check_fit
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.pipeline.lineup import Lineup
from spark_audit.pipeline.request import Request

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint


def check_fits(
    manifest: Manifest,
    described: Sequence[Checkpoint],
    lineup: Lineup,
    request: Request,
) -> None:
    """Refuse checkpoints that do not belong to the manifest.

    Parameters
    ----------
    described
        All checkpoints that are opened, as their headers describe them.

    Raises
    ------
    InputError
        If base and checkpoint are swapped, or the manifest was made for others.
    """
    # A base may be given as --base PATH or as --ckpt base=PATH.
    spec_names = [spec.name for spec in lineup.specs]
    if request.base is not None or BASE in spec_names:
        check_not_swapped(manifest, described)
    for checkpoint in described:
        check_fit(manifest, checkpoint, base_sha256=checkpoint.base_sha256)


def check_not_swapped(manifest: Manifest, described: Sequence[Checkpoint]) -> None:
    """Refuse a base that was given as a checkpoint, with another model as the base.

    Raises
    ------
    InputError
        If a checkpoint has the weights of the manifest's base, and the base that the
        user gave has others.
    """
    reference_sha256 = manifest.reference.weights_sha256
    sha256_by_name = {
        checkpoint.name: checkpoint.weights_sha256 for checkpoint in described
    }
    if sha256_by_name.get(BASE) == reference_sha256:
        return

    for name, sha256 in sha256_by_name.items():
        if name != BASE and sha256 == reference_sha256:
            raise InputError(
                f"checkpoint {name!r} is the base that the manifest was made with, "
                "and the base that is given is another one",
                where="--ckpt",
                fix="are --ckpt and --base swapped? give the base as --base",
            )


def missing_base_note(
    manifest: Manifest, described: Sequence[Checkpoint], request: Request
) -> str:
    """Return a note on what is not tested without the base.

    Empty: the base is there, or no audit needs it.
    """
    has_base = any(checkpoint.name == BASE for checkpoint in described)
    if has_base or all(audit.of_series for audit in request.audits):
        return ""
    return (
        "without the base model no audit compares with it: the change since the base, "
        "the attack that uses it as reference and the checks for a base that has read "
        f"the rows are not tested. Give --base MODEL: {manifest.reference.name!r}, "
        "with which the manifest was made"
    )
