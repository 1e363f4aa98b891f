"""What a checkpoint reads of a manifest, pass by pass.

Tokenising happens here and nowhere else: an audit's plan names sequences by key, and
these functions turn keys into items of ``scoring`` with the checkpoint's tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.errors import InputError
from spark_audit.manifest import Manifest
from spark_audit.scoring import AnyItem, Item, item
from spark_audit.table import Pass
from spark_audit.tokens import Encoding, encode

if TYPE_CHECKING:
    from spark_audit.checkpoints import Loaded

Plan: TypeAlias = dict[Pass, list[str]]
"""Pass -> keys of the sequences that it must score."""


def items_for(
    manifest: Manifest, loaded: Loaded, plan: Mapping[Pass, Sequence[str]]
) -> dict[Pass, list[Any]]:
    """The items that a plan names, by pass, in the plan's order.

    Each text is tokenised once, however many passes read it.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    encodings = _encodings(manifest, loaded)
    made: dict[str, dict[str, Any]] = {}
    found: dict[Pass, list[Any]] = {}
    for wanted, keys in plan.items():
        known = made.setdefault(wanted.kind, {})
        fresh = [key for key in keys if key not in known]
        for sequence in _makers()[wanted.kind](manifest, loaded, encodings, fresh):
            known[sequence.key] = sequence
        found[wanted] = [known[key] for key in keys]
    return found


def manifest_items(manifest: Manifest, loaded: Loaded) -> list[Item]:
    """What a checkpoint reads of all of a manifest's examples in the plain pass.

    Raises
    ------
    InputError
        If the manifest was redacted, or the tokenizer cuts its texts otherwise.
    """
    keys = [example.id for example in manifest.examples]
    return plain_items(manifest, loaded, _encodings(manifest, loaded), keys)


def plain_items(
    manifest: Manifest,
    loaded: Loaded,
    encodings: Mapping[str, Encoding],
    keys: Sequence[str],
) -> list[Item]:
    """Whole examples, by id: for the plain pass and for noise."""
    del loaded
    return [item(key, encodings[key], manifest.by_id[key].kept) for key in keys]


def _makers() -> dict[str, Callable[..., Sequence[AnyItem]]]:
    return {"plain": plain_items}


def _encodings(manifest: Manifest, loaded: Loaded) -> dict[str, Encoding]:
    if manifest.redacted_from is not None:
        raise InputError(
            "was redacted: scoring needs the text",
            where=f"manifest {manifest.name!r}",
            fix="score with the original, whose digest begins with "
            f"{manifest.redacted_from[:12]}",
        )
    encodings = encode(
        loaded.tokenizer, [e.prompt + e.response for e in manifest.examples]
    )
    for example, encoding in zip(manifest.examples, encodings, strict=True):
        if len(encoding) != len(example.reference_unll):
            raise InputError(
                f"example {example.id!r} has {len(encoding)} tokens, the manifest "
                f"{manifest.name!r} {len(example.reference_unll)}",
                where=f"checkpoint {loaded.name!r}",
                fix="give the tokenizer that the manifest was built with",
            )
    return {
        example.id: encoding
        for example, encoding in zip(manifest.examples, encodings, strict=True)
    }
