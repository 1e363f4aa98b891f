"""Whether a manifest fits a checkpoint, and the part of it that concerns some rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_audit.errors import InputError
from spark_audit.manifest.file import PARTS
from spark_audit.manifest.schema import Manifest, ManifestExample, Membership
from spark_audit.manifest.tables import Table

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


def check_fit(
    manifest: Manifest, checkpoint: Loaded, *, base_sha256: str | None
) -> list[str]:
    """Refuse a checkpoint that the manifest was not made for.

    Parameters
    ----------
    base_sha256
        Hash of the base's weights; ``None`` for full weights, whose base cannot be
        verified: architecture, vocabulary and shape are compared instead.

    Returns
    -------
    list
        Notes for the report, such as ``base not verifiable``.

    Raises
    ------
    InputError
        With what differs.
    """
    reference = manifest.reference
    shape, known = checkpoint.shape, reference.shape or {}
    differs = [
        f"{what} ({_short(theirs)} here, {_short(ours)} in the manifest)"
        for what, theirs, ours in (
            ("tokenizer", checkpoint.tokenizer_sha256, reference.tokenizer_sha256),
            ("base weights", base_sha256, reference.weights_sha256),
            ("architecture", checkpoint.architecture, reference.architecture),
            ("vocabulary", len(checkpoint.usable), reference.vocab_size),
            *((k, shape[k], known[k]) for k in sorted(shape.keys() & known.keys())),
        )
        if theirs is not None and theirs != ours
    ]
    if differs:
        raise InputError(
            f"manifest {manifest.name!r} was made for another model: "
            + ", ".join(differs),
            where=f"checkpoint {checkpoint.name!r}",
            fix="build a manifest from this checkpoint's base",
        )
    notes: list[str] = []
    if base_sha256 is None:
        notes.append("base not verifiable: full weights name no base")
        if not shape.keys() & known.keys():
            notes.append("shapes not compared: the manifest does not hold its base's")
    return notes


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def limited(manifest: Manifest, ids: set[str]) -> Manifest:
    """The part of a manifest that concerns some examples; the digest stays."""

    def concerns(part: Any) -> bool:
        if isinstance(part, ManifestExample):
            return part.id in ids
        contexts = getattr(part, "contexts", [part])
        return bool(contexts) and all(one.example in ids for one in contexts)

    return manifest.having(
        **{
            name: Table.of(kind, filter(concerns, getattr(manifest, name)), name=name)
            for name, kind in PARTS.items()
        },
        membership=Membership(
            members=[i for i in manifest.membership.members if i in ids],
            non_members=[i for i in manifest.membership.non_members if i in ids],
        ),
    )
