"""The texts of a manifest in the tokens of a checkpoint, made when they are needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np

from spark_audit.data.encoding import (
    TOGETHER,
    Encoding,
    encode_rows,
)
from spark_audit.errors import InputError
from spark_audit.manifest import schema
from spark_audit.manifest.file import original
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded


MOST_LABELS = 64
"""A task with more distinct responses than this has no set of labels."""


def key_of(kind: str, *of: object) -> str:
    """Key of a sequence: its kind, what it is of, and last the id of its example.

    ``labels`` are of nothing else, ``canary`` of a canary and its part, ``coin`` of a
    canary, ``twins`` of their identifier, prompts of a span's first character.
    """
    return ":".join([kind, *(quote(str(part), safe="") for part in of)])


def parts_of(key: str) -> list[str]:
    """What a key was made of by :func:`key_of`."""
    return [*map(unquote, key.split(":"))]


def example_of(wanted: Pass, key: str) -> str:
    """The example that a sequence of a pass is of."""
    whole = ITEMS[wanted.kind] in ("texts", "prompts")
    return key if whole else parts_of(key)[-1]


def task_labels(manifest: schema.Manifest) -> dict[str, tuple[str, ...]]:
    """Task -> its distinct responses, sorted; tasks with too many of them are no key.

    Beyond :data:`MOST_LABELS` a task's responses are text, not labels.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for example in manifest.examples:
        found[example.task].add(example.answer)
    return few_labels(found)


def few_labels(responses: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """Return the responses of the tasks that have few enough to be labels."""
    return {
        task: tuple(sorted(known))
        for task, known in responses.items()
        if len(known) <= MOST_LABELS
    }


def fitted_prefix(
    ids: np.ndarray, leading: int, limit: int | None, behind: int, key: str
) -> np.ndarray:
    """Return a prefix that leaves room behind it; its beginning is cut off."""
    lead, text = ids[:leading], ids[leading:]
    room = len(text) if limit is None else min(limit - behind - len(lead), len(text))
    if not len(ids) or room < min(len(text), 1):
        raise InputError(
            "has no prompt, or none that fits the context with the answer",
            where=f"example {key!r}",
            fix="give a larger max_length, or leave the row out",
        )
    return np.concatenate([lead, text[len(text) - room :]])


class Encodings(dict[str, Encoding]):
    """A manifest's texts as a checkpoint's tokens; those asked for by id are kept.

    Raises
    ------
    InputError
        If the manifest was redacted; when texts are asked for, if the tokenizer cuts
        them otherwise.
    """

    def __init__(self, manifest: schema.Manifest, loaded: Loaded) -> None:
        super().__init__()
        self.manifest, self.loaded = original(manifest), loaded
        bounds = (manifest.settings.max_length, loaded.max_positions)
        self.limit = min((bound for bound in bounds if bound is not None), default=None)

    @cached_property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """:func:`task_labels` of the manifest."""
        return task_labels(self.manifest)

    @cached_property
    def sets(self) -> Sets:
        """:func:`slots` of the manifest."""
        return slots(self.manifest)

    def each(
        self, keys: Sequence[str]
    ) -> Iterator[tuple[schema.ManifestExample, Encoding]]:
        """Examples with their tokens, some hundred at a time and none for long."""
        for at in range(0, len(keys), TOGETHER):
            examples = [self.manifest.by_id[key] for key in keys[at : at + TOGETHER]]
            made = encode_rows(self.loaded.tokenizer, examples)
            for example, encoding in zip(examples, made, strict=True):
                if len(encoding) != len(example.reference_unll):
                    raise InputError(
                        f"example {example.id!r} has {len(encoding)} tokens, the "
                        f"manifest {self.manifest.name!r} "
                        f"{len(example.reference_unll)}",
                        where=f"checkpoint {self.loaded.name!r}",
                        fix="give the tokenizer that the manifest was built with",
                    )
                yield example, encoding

    def __missing__(self, key: str) -> Encoding:
        ((_, self[key]),) = self.each([key])
        return self[key]


Sets = Mapping[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins]


def slots(manifest: schema.Manifest) -> Sets:
    """The sets of canaries, coins and twins, by their keys' parts but the example."""
    sets: dict[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins] = {
        ("twins", one.id): one for one in manifest.twins
    }
    for canary in manifest.canaries:
        sets["canary", canary.canary_id, canary.part] = canary
        if canary.part == "full" and canary.coin:
            both, true = canary.coin
            pair = canary.model_copy(update={"candidates": both, "true_index": true})
            sets["coin", canary.canary_id] = pair
    return sets
