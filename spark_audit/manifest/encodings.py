"""Tokenise the texts of a manifest for a checkpoint, on demand."""

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
"""Most distinct responses of a task that count as labels."""


def key_of(kind: str, *components: object) -> str:
    """Return the key of a sequence: its kind, its components and its example's id.

    ::

        labels                              example
        canary       canary, its part,      example
        coin         canary,                example
        twins        their identifier,      example
        a prompt     first character,       example
    """
    # Ids may contain a colon, which separates the components.
    quoted = [quote(str(component), safe="") for component in components]
    return ":".join([kind, *quoted])


def parts_of(key: str) -> list[str]:
    """Return the components from which :func:`key_of` made a key."""
    return [unquote(component) for component in key.split(":")]


def example_of(wanted: Pass, key: str) -> str:
    """Return the id of the example to which a sequence of a pass belongs."""
    # The key of a whole text or of a row's prompt is the row's id.
    if ITEMS[wanted.kind] in ("texts", "prompts"):
        return key
    return parts_of(key)[-1]


def task_labels(manifest: schema.Manifest) -> dict[str, tuple[str, ...]]:
    """Return the distinct responses of each task that has labels, sorted.

    A task with more than :data:`MOST_LABELS` responses has texts, not labels.
    """
    responses_by_task: dict[str, set[str]] = defaultdict(set)
    for example in manifest.examples:
        responses_by_task[example.task].add(example.answer)
    return few_labels(responses_by_task)


def few_labels(responses_by_task: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """Return the responses of the tasks with few enough of them to be labels."""
    return {
        task: tuple(sorted(responses))
        for task, responses in responses_by_task.items()
        if len(responses) <= MOST_LABELS
    }


def fitted_prefix(
    ids: np.ndarray, leading: int, limit: int | None, behind: int, key: str
) -> np.ndarray:
    """Return a prefix, cut at its beginning so that the text behind it fits.

    Parameters
    ----------
    ids
        Token ids of the prefix, shape ``(T,)``.
    leading
        Number of leading special tokens, which stay.
    limit
        Tokens that the model can read; ``None``: no limit.
    behind
        Number of tokens that must fit behind the prefix.
    key
        The example's id, for the error.

    Raises
    ------
    InputError
        If there is no prefix, or no room for any token of its text.
    """
    # Only text is cut: the model was trained with its BOS in front.
    special = ids[:leading]
    text = ids[leading:]
    n_fitting = len(text)
    if limit is not None:
        n_fitting = min(limit - behind - len(special), len(text))

    # A prefix without text may consist of special tokens only.
    is_cut_off = len(text) > 0 and n_fitting < 1
    if not len(ids) or is_cut_off or n_fitting < 0:
        raise InputError(
            "has no prompt, or none that fits the context with the answer",
            where=f"example {key!r}",
            fix="give a larger max_length, or leave the row out",
        )
    return np.concatenate([special, text[len(text) - n_fitting :]])


class Encodings(dict[str, Encoding]):
    """A manifest's texts in a checkpoint's tokens; texts requested by id are cached.

    Raises
    ------
    InputError
        If the manifest was redacted. When texts are requested, also if the tokenizer
        gives other numbers of tokens.
    """

    def __init__(self, manifest: schema.Manifest, loaded: Loaded) -> None:
        super().__init__()
        self.manifest = original(manifest)
        self.loaded = loaded
        # The most tokens that the model can read; None: no limit.
        bounds = (manifest.settings.max_length, loaded.max_positions)
        self.limit = min((bound for bound in bounds if bound is not None), default=None)

    @cached_property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """Return :func:`task_labels` of the manifest."""
        return task_labels(self.manifest)

    @cached_property
    def sets(self) -> Sets:
        """Return :func:`slots` of the manifest."""
        return slots(self.manifest)

    def each(
        self, keys: Sequence[str]
    ) -> Iterator[tuple[schema.ManifestExample, Encoding]]:
        """Yield examples with their tokens, by id, without caching them."""
        # Lots of some hundred texts are tokenised faster than single texts.
        for first in range(0, len(keys), TOGETHER):
            lot = keys[first : first + TOGETHER]
            examples = [self.manifest.by_id[key] for key in lot]
            encodings = encode_rows(self.loaded.tokenizer, examples)
            for example, encoding in zip(examples, encodings, strict=True):
                self._check_tokens(example, encoding)
                yield example, encoding

    def _check_tokens(
        self, example: schema.ManifestExample, encoding: Encoding
    ) -> None:
        """Refuse a tokenizer that gives a row a different number of tokens."""
        n_recorded = len(example.reference_unll)
        if len(encoding) != n_recorded:
            raise InputError(
                f"example {example.id!r} has {len(encoding)} tokens, the manifest "
                f"{self.manifest.name!r} {n_recorded}",
                where=f"checkpoint {self.loaded.name!r}",
                fix="give the tokenizer that the manifest was built with",
            )

    def __missing__(self, key: str) -> Encoding:
        ((_, encoding),) = self.each([key])
        self[key] = encoding
        return encoding


Sets = Mapping[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins]
"""Sets of candidates by the components of their keys, without the example."""


def slots(manifest: schema.Manifest) -> Sets:
    """Return the sets of canaries, coins and twins of a manifest."""
    sets: dict[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins] = {}
    for twins in manifest.twins:
        sets["twins", twins.id] = twins

    for canary in manifest.canaries:
        sets["canary", canary.canary_id, canary.part] = canary
        # A coin is a choice between two candidates of a canary.
        if canary.part == "full" and canary.coin:
            pair, true_index = canary.coin
            sets["coin", canary.canary_id] = canary.model_copy(
                update={"candidates": pair, "true_index": true_index}
            )
    return sets
