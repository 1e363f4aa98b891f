"""Take scores that Python code hands over into the store of a job.

``sa.score`` has read the texts already: what fits a checkpoint of the job is not scored
again. Scores of another manifest or of other weights are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.arguments import wrong_value
from spark_audit.errors import InputError
from spark_audit.names import check_known
from spark_audit.pipeline.job import Job
from spark_audit.scoring.score import Scores

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

GivenScores: TypeAlias = Scores | Mapping[str, Scores]
"""Scores of one checkpoint, or ``{name: scores}``, as ``sa.score`` returns them."""

DIGEST_CHARACTERS_SHOWN = 12
"""Characters of a digest in an error."""


def take_scores(job: Job, given: GivenScores) -> None:
    """Add scores to the store of a job, for the checkpoints that they were made with.

    Raises
    ------
    InputError
        If scores are of another manifest, or of no checkpoint of the job.
    """
    checkpoint_of_scores = [
        (scores, _checkpoint_of(job, scores, name))
        for name, scores in _by_name(given).items()
    ]
    for scores, checkpoint in checkpoint_of_scores:
        _store_scores(job, scores, checkpoint)
    job.store.flush()


def check_scores(given: GivenScores) -> None:
    """Refuse what is neither scores nor a mapping of names to scores.

    Raises
    ------
    ArgumentError
        Says what to give.
    """
    # Scores are a mapping themselves, of passes.
    if isinstance(given, Scores):
        return
    is_mapping = isinstance(given, Mapping) and len(given) > 0
    if not is_mapping or not all(isinstance(value, Scores) for value in given.values()):
        raise wrong_value(
            "scores",
            given,
            "neither what sa.score returns, {name: scores} nor a folder of scores",
        )


def _by_name(given: GivenScores) -> dict[str | None, Scores]:
    """Return scores by the checkpoint's name; ``None``: the caller gave no name."""
    if isinstance(given, Scores):
        return {None: given}
    return {name: scores for name, scores in given.items()}


def _checkpoint_of(job: Job, scores: Scores, name: str | None) -> Checkpoint:
    """Return the checkpoint of a job that scores were made with; refuse others.

    Parameters
    ----------
    name
        Name that the caller gave the scores; ``None``: the weights decide alone.
    """
    where = "scores" if name is None else f"scores[{name!r}]"
    digest = job.manifest.digest
    if not scores.manifest_digest:
        raise InputError(
            "were made from items, not from a manifest",
            where=where,
            fix="give the manifest to sa.score",
        )
    if scores.manifest_digest != digest:
        raise InputError(
            f"are of the manifest {scores.manifest_digest[:DIGEST_CHARACTERS_SHOWN]}, "
            f"not of {digest[:DIGEST_CHARACTERS_SHOWN]}",
            where=where,
            fix="score the checkpoint with the manifest of this audit",
        )

    checkpoints = job.opening.described
    if name is not None:
        known_names = [checkpoint.name for checkpoint in checkpoints]
        check_known(name, known_names, where=where)
        checkpoints = [
            checkpoint for checkpoint in checkpoints if checkpoint.name == name
        ]
    for checkpoint in checkpoints:
        if checkpoint.model_id == scores.model_id:
            return checkpoint

    names = ", ".join(repr(checkpoint.name) for checkpoint in checkpoints)
    raise InputError(
        f"were made with {scores.checkpoint!r}, whose weights, dtype or attention are "
        f"not those of {names}",
        where=where,
        fix="score the checkpoint as it is given here, or leave the scores out",
    )


def _store_scores(job: Job, scores: Scores, checkpoint: Checkpoint) -> None:
    """Add the scores of the texts that a checkpoint of the job has to score.

    Equal manifest, model, pass and key mean the same tokens.
    """
    for scoring_pass, pass_items in job.items_by_pass(checkpoint).items():
        table = scores.get(scoring_pass)
        if table is None:
            continue

        # Store key of an item -> positions of its tokens, and its columns of scores.
        store_keys = pass_items.store_keys()
        scores_by_key = {}
        for item in pass_items.items:
            if item.key in table:
                rows_of_item = table.rows(item.key)
                columns = {
                    name: values[rows_of_item] for name, values in table.columns.items()
                }
                positions = table.position[rows_of_item]
                scores_by_key[store_keys[item.key]] = (positions, columns)

        # What the store has stays as it is.
        missing_keys = set(job.store.lacking(scores_by_key))
        job.store.take(
            {
                key: item_scores
                for key, item_scores in scores_by_key.items()
                if key in missing_keys
            },
            remarks=scores.notes,
        )
