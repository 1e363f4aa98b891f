"""Tokenise the texts of a manifest for a checkpoint, on demand.

:func:`key_of` names the sequences of all passes. A further kind of sequence has a line
in its table; if it is a set of candidates, it goes into :func:`candidate_sets`, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np

from spark_audit.data.encoding import (
    TEXTS_PER_CALL,
    Encoding,
    encode_rows,
)
from spark_audit.errors import InputError
from spark_audit.manifest import example_schema, schema
from spark_audit.manifest.file import original
from spark_audit.scoring.table import ITEMS, Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint


MOST_LABELS = 64
"""A task with more distinct responses than this has free text, and no labels."""


def key_of(kind: str, *components: object) -> str:
    """Return the key of a sequence: its kind, its object, and its example's id.

    Plans name sequences by these keys, and tables of scores hold them. A sequence that
    is a whole text or a row's prompt has the row's id as its key, without a kind.

    ::

        kind         object                 example
        ------------ ---------------------- -------
        labels                              example
        canary       canary, its part,      example
        coin         canary,                example
        twins        their identifier,      example
        a prompt     first character,       example
    """
    # Ids may contain a colon, which separates the components.
    quoted = [quote(str(component), safe="") for component in components]
    return ":".join([kind, *quoted])


def components_of(key: str) -> list[str]:
    """Return the components from which :func:`key_of` made a key, its kind first."""
    return [unquote(component) for component in key.split(":")]


def example_of(scoring_pass: Pass, key: str) -> str:
    """Return the id of the example to which a sequence of a pass belongs."""
    # The key of a whole text or of a row's prompt is the row's id.
    if ITEMS[scoring_pass.kind] in ("texts", "prompts"):
        return key
    return components_of(key)[-1]


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
    ids: np.ndarray,
    *,
    n_leading_special: int,
    limit: int | None,
    n_answer_tokens: int,
    example_id: str,
) -> np.ndarray:
    """Return the ids of a prefix, cut so that an answer behind it fits.

    The beginning of its text is cut off. Shape ``(t,)``, ``t <= T``.

    Parameters
    ----------
    ids
        Token ids of the prefix, shape ``(T,)``.
    n_leading_special
        Number of leading special tokens, which stay.
    limit
        Tokens that the model can read; ``None``: no limit.
    n_answer_tokens
        Tokens that must fit behind the prefix.
    example_id
        For the error.

    Raises
    ------
    InputError
        If there is no prefix, or no room for any token of its text.
    """
    # Only text is cut: the model was trained with its BOS in front.
    special_ids = ids[:n_leading_special]
    text_ids = ids[n_leading_special:]
    n_fitting = len(text_ids)
    if limit is not None:
        n_fitting = min(limit - n_answer_tokens - len(special_ids), len(text_ids))

    # A prefix without text may consist of special tokens only.
    lost_all_text = len(text_ids) > 0 and n_fitting < 1
    if not len(ids) or lost_all_text or n_fitting < 0:
        raise InputError(
            "has no prompt, or none that fits the context with the answer",
            where=f"example {example_id!r}",
            fix="give a larger max_length, or leave the row out",
        )
    return np.concatenate([special_ids, text_ids[len(text_ids) - n_fitting :]])


class Encodings(dict[str, Encoding]):
    """A manifest's texts as a checkpoint's tokens, by the example's id.

    ``encodings[id]`` is cached; :meth:`encoded_examples` yields many and caches none.

    Attributes
    ----------
    limit
        Most tokens that the model can read; ``None``: no limit.

    Raises
    ------
    InputError
        If the manifest was redacted. When texts are requested, also if the tokenizer
        gives one another number of tokens than the manifest records.
    """

    def __init__(self, manifest: schema.Manifest, loaded: Checkpoint) -> None:
        super().__init__()
        self.manifest = original(manifest)
        self.loaded = loaded
        bounds = (manifest.settings.max_length, loaded.max_positions)
        known_bounds = [bound for bound in bounds if bound is not None]
        self.limit = min(known_bounds, default=None)

    @cached_property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """Return :func:`task_labels` of the manifest."""
        return task_labels(self.manifest)

    @cached_property
    def candidate_sets(self) -> CandidateSets:
        """Return :func:`candidate_sets` of the manifest."""
        return candidate_sets(self.manifest)

    def encoded_examples(
        self, keys: Sequence[str]
    ) -> Iterator[tuple[example_schema.ManifestExample, Encoding]]:
        """Yield examples with their tokens, by id, without caching them."""
        # Some hundred texts together are tokenised faster than single texts.
        for first in range(0, len(keys), TEXTS_PER_CALL):
            keys_of_call = keys[first : first + TEXTS_PER_CALL]
            examples = [self.manifest.by_id[key] for key in keys_of_call]
            encodings = encode_rows(self.loaded.tokenizer, examples)
            for example, encoding in zip(examples, encodings, strict=True):
                self._check_tokens(example, encoding)
                yield example, encoding

    def _check_tokens(
        self, example: example_schema.ManifestExample, encoding: Encoding
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
        ((_, encoding),) = self.encoded_examples([key])
        self[key] = encoding
        return encoding


CandidateSets = Mapping[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins]
"""Sets of candidates by the components of their keys (:func:`key_of`), without the
example: a set may stand in several examples."""


def candidate_sets(manifest: schema.Manifest) -> CandidateSets:
    """Return the sets of canaries, coins and twins of a manifest."""
    sets: dict[tuple[str, ...], schema.ManifestCanary | schema.ManifestTwins] = {}
    for twins in manifest.twins:
        sets["twins", twins.id] = twins

    for canary in manifest.canaries:
        sets["canary", canary.canary_id, canary.part] = canary
        # A coin is the same canary with only two of its candidates.
        if canary.part == "full" and canary.coin:
            two_candidates, true_index = canary.coin
            sets["coin", canary.canary_id] = canary.model_copy(
                update={"candidates": two_candidates, "true_index": true_index}
            )
    return sets
