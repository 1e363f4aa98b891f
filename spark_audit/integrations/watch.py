"""Look at a model in a training loop of one's own, or in an unlearning loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from spark_audit.arguments import checked_call, wrong_value
from spark_audit.audits import TRAINING_AUDITS
from spark_audit.checkpoints.given import (
    GivenCheckpoint,
    check_open,
    default_model_name,
    is_model,
)
from spark_audit.checkpoints.in_memory import beside_model, unwrapped
from spark_audit.errors import CheckpointError, InputError
from spark_audit.integrations.history import looks_html, summary_of
from spark_audit.integrations.look import AuditLook
from spark_audit.integrations.transformers import MAX_CALLBACK_ROWS, AuditCallback
from spark_audit.manifest.file import read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.request import GivenAudits

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Watch:
    """Looks at a model in memory, when the loop asks for one; made by :func:`watch`.

    Attributes
    ----------
    looks
        The results of all looks, in order; the first is that of the beginning.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        callback: AuditCallback,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self._model = model
        self._callback = callback
        self._tokenizer = tokenizer
        self._is_open = False

    def __enter__(self) -> Watch:
        self._callback.begin(self._model, self._tokenizer)
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False

    @checked_call
    def look(self, step: int | None = None) -> AuditLook | None:
        """Audit the model as it stands, and return the result.

        Parameters
        ----------
        step
            Number of this look's step, above that of the last look; default: the next
            one.

        Returns
        -------
        AuditLook or None
            ``None``: the look failed, which is logged as a warning.

        Raises
        ------
        InputError
            Outside of ``with``, or if the step is not above that of the last look.
        """
        last_step = self.looks[-1].step if self.looks else 0
        if not self._is_open:
            raise InputError(
                "is used outside of its block",
                where="watch",
                fix="write `with sa.watch(model, manifest) as w:`, and look in it",
            )
        if step is None:
            step = last_step + 1
        if step <= last_step:
            raise InputError(
                f"is not above {last_step}, the step of the last look",
                where=f"step={step}",
                fix="count steps upwards, or leave it out",
            )
        return self._callback.look_at(step)

    @property
    def looks(self) -> list[AuditLook]:
        """Return the results of all looks, in order."""
        return self._callback.looks

    @property
    def tripped(self) -> list[str]:
        """Return the broken rules of ``fail_if``, each with its look."""
        return self._callback.tripped

    @property
    def history(self) -> pd.DataFrame:
        """Return the figures of all looks, one row a figure.

        Columns are those of
        :data:`~spark_audit.integrations.history.HISTORY_COLUMNS`.
        """
        return self._callback.history

    def __repr__(self) -> str:
        return f"Watch({summary_of(self.looks, self._callback.costs)})"

    def _repr_html_(self) -> str:
        """Return the verdict of each look as a notebook shows it."""
        return looks_html("Watch", self.looks, self._callback.costs)


@checked_call
def watch(
    model: PreTrainedModel,
    manifest: str | Path | Manifest,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    audits: GivenAudits = TRAINING_AUDITS,
    rows: int = MAX_CALLBACK_ROWS,
    fail_if: str | Sequence[str] = (),
    base: GivenCheckpoint | None = None,
    preset: str | None = None,
    seed: int = 0,
) -> Watch:
    """Watch a model in memory while a loop of one's own changes it.

    ``with watch(model, manifest) as w:`` looks at the beginning, and ``w.look()`` in
    the loop audits the model as it stands: its mode, gradients, hooks and all random
    numbers are afterwards what they were. ``w.history`` has the figures of all looks.

    Parameters
    ----------
    model
        A model of transformers, perhaps wrapped by PEFT.
    manifest
        A file, or what ``read_manifest`` returned.
    tokenizer
        Default: that of the folder from which the model was loaded, if it is the
        manifest's.
    base
        The manifest's base, with which looks are compared: a path, an open checkpoint,
        or a model in memory. Needed in a loop that begins with other full weights, as
        unlearning does; a base that is not the manifest's is refused. Default: the
        model with its adapter off, or as it stands at the beginning.
    audits, rows, fail_if, preset, seed
        As in :class:`~spark_audit.integrations.transformers.AuditCallback`. A broken
        rule ends no loop; it is listed in ``w.tripped``.

    Raises
    ------
    CheckpointError
        If no tokenizer is known.
    ArgumentError
        If there is no such argument (the error names the nearest), ``model`` is no
        model in memory, or ``base`` is neither a path nor open.
    SparkError
        At the beginning of the block, if the model or ``base`` does not fit the
        manifest.

    Examples
    --------
    >>> tokenizer = base.tokenizer
    >>> with sa.watch(model, manifest, tokenizer=tokenizer, audits="nll") as w:
    ...     look = w.look()  # after each step of the loop
    >>> [look.step for look in w.looks]
    [0, 1]
    """
    if not is_model(model):
        raise wrong_value("model", model, "not the model that the loop changes")
    if base is not None and not isinstance(base, str | Path):
        check_open(base, "base")

    manifest = read_manifest(manifest)
    if tokenizer is None:
        tokenizer = beside_model(unwrapped(model), manifest.reference.tokenizer_sha256)
    if tokenizer is None:
        raise CheckpointError(
            "is a model in memory, and its tokenizer is not known",
            where=f"checkpoint {default_model_name(model)!r}",
            fix="give tokenizer=",
        )

    callback = AuditCallback(
        manifest,
        audits=audits,
        rows=rows,
        fail_if=fail_if,
        tokenizer=tokenizer,
        base=base,
        preset=preset,
        seed=seed,
    )
    return Watch(model, callback, tokenizer)
