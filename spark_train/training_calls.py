"""Train from Python: the functions behind ``spark_train.run`` and ``stages``.

Both make the request that the command ``spark-train run`` makes of its options, and
give it to ``training_run.py``. A new option is a field of ``TrainRequest`` and an
argument of both functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from spark_audit.arguments import checked_call
from spark_audit.messages import Update, is_watched, say
from spark_audit.messages import progress as shown
from spark_train.processes import assemble
from spark_train.run_record import RunRecord
from spark_train.trained_stage import TrainedStage
from spark_train.training_request import StudentLoading, TrainRequest
from spark_train.training_run import train, train_by_stage
from spark_train.training_settings import GivenSettings, assignments

if TYPE_CHECKING:
    import pandas as pd

PrivacyName: TypeAlias = Literal["none", "dpsgd", "fn"]
TrainedDtype: TypeAlias = Literal["float32", "bfloat16"]
"""Number formats of the base in training."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run that is complete.

    Attributes
    ----------
    folder
        The run folder, which ``sa.audit`` takes as a checkpoint.
    tasks
        Its tasks, in order.
    record
        The content of ``run.json``.
    """

    folder: Path
    tasks: tuple[str, ...]
    record: RunRecord = field(repr=False)

    @property
    def accuracy(self) -> pd.DataFrame:
        """Return the accuracy on each task (columns) after each stage (rows).

        It is missing for later tasks, and for tasks without test rows.
        """
        import pandas as pd

        matrix = self.record.accuracy  # [stage][task]
        # Methods that learn all tasks at once have a single stage.
        stage_names = self.tasks if len(matrix) == len(self.tasks) else ("all",)
        index = pd.Index(stage_names, name="after")
        return pd.DataFrame(matrix, index, [*self.tasks], dtype=float)


@checked_call
def run(
    data: str | Path | Sequence[str | Path],
    *,
    base: str | Path,
    output: str | Path,
    method: str = "spark",
    order: str | int | Sequence[str] = "",
    dp: PrivacyName = "none",
    settings: GivenSettings | None = None,
    seed: int | None = None,
    gradient_checkpointing: bool = False,
    lora_targets: str | Sequence[str] = (),
    device: str = "auto",
    dtype: TrainedDtype = "float32",
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool | None = None,
) -> TrainingRun:
    """Train a method on a stream of tasks, into a run folder, as ``spark-train run``.

    The same options give the same files, but for dates and the typed command. The same
    call resumes an interrupted run, and only checks a complete one.

    Parameters
    ----------
    data
        Files of ``sa.write_examples``, or folders of them: train rows are trained on,
        test rows answered after each stage.
    base
        The pretrained model: a folder or ``hf:ORG/NAME``.
    output
        Run folder.
    method
        Name of one of :func:`~spark_train.method_summaries.methods`.
    order
        1, 2 or 3 (the paper's; those of its tasks that are there), or the tasks as they
        come. Data of one task needs none.
    dp
        Privacy option, which goes with every method.
    settings
        Settings that differ from their defaults: ``TrainingSettings(epochs=1)``, or
        ``{"epochs": 1, "ptpc.steps": 100}``.
    seed
        Seed of everything random.
    gradient_checkpointing
        Compute the forward pass twice to save memory.
    lora_targets
        Last names of linear layers, where q, k, v and o are not found.
    device
        Where to compute: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    dtype
        Number format of the base; trained weights are float32.
    tokenizer, revision, trust_remote_code
        How the base is opened; see
        :class:`~spark_audit.checkpoints.specs.Loading`.
    progress
        Whether to show progress; default: if a person waits.

    Raises
    ------
    SparkError
        For any input of the user that cannot be used, before anything is trained. The
        same call resumes.
    ArgumentError
        If there is no such argument (the error names the nearest), or a value has a
        wrong type.

    Examples
    --------
    >>> import spark_train
    >>> try:
    ...     spark_train.run("data", base="models/base", output="runs/a", setings={})
    ... except TypeError as error:
    ...     print(error)
    run() has no argument 'setings'; did you mean 'settings'?
    """
    request = _request(
        data,
        base=base,
        output=output,
        method=method,
        order=order,
        dp=dp,
        settings=settings,
        seed=seed,
        gradient_checkpointing=gradient_checkpointing,
        lora_targets=lora_targets,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    with shown(quiet=not _is_shown(progress)) as show:
        record = train(request, progress=show, note=say)
    return TrainingRun(folder=request.output, tasks=tuple(record.tasks), record=record)


@checked_call
def stages(
    data: str | Path | Sequence[str | Path],
    *,
    base: str | Path,
    output: str | Path,
    method: str = "spark",
    order: str | int | Sequence[str] = "",
    dp: PrivacyName = "none",
    settings: GivenSettings | None = None,
    seed: int | None = None,
    gradient_checkpointing: bool = False,
    lora_targets: str | Sequence[str] = (),
    device: str = "auto",
    dtype: TrainedDtype = "float32",
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: bool | None = None,
) -> Iterator[TrainedStage]:
    """Train as :func:`run` does, and stop after each stage to look at the model.

    The run folder is the same as that of :func:`run`, byte for byte: the trained
    weights, gradients, modes and random numbers of training are restored when the next
    stage is asked for. Leave the base's weights and the model's hooks as they are (do
    not merge the adapter into the base). The loop may be left: the same call goes on
    later. Stages that are in the folder already come first, so that a loop over a
    complete run gives all of its stages again, and trains none.

    Parameters
    ----------
    data, base, output, method, order, dp, settings, seed, gradient_checkpointing
        As in :func:`run`.
    lora_targets, device, dtype, tokenizer, revision, trust_remote_code, progress
        As in :func:`run`.

    Raises
    ------
    SparkError
        As in :func:`run`, when the first stage is asked for.
    ArgumentError
        As in :func:`run`, at the call.

    Examples
    --------
    >>> import spark_train
    >>> try:
    ...     for stage in spark_train.stages("data", base="b", output="r", methd="er"):
    ...         print(stage.number, stage.task)
    ... except TypeError as error:
    ...     print(error)
    stages() has no argument 'methd'; did you mean 'method'?
    """
    request = _request(
        data,
        base=base,
        output=output,
        method=method,
        order=order,
        dp=dp,
        settings=settings,
        seed=seed,
        gradient_checkpointing=gradient_checkpointing,
        lora_targets=lora_targets,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    return _stages(request, is_shown=_is_shown(progress))


def _stages(request: TrainRequest, *, is_shown: bool) -> Iterator[TrainedStage]:
    """Yield the stages of a run; progress is shown only while it is trained."""
    show: Update

    def update(activity: str, done: int, total: int) -> None:
        show(activity, done, total)

    # Left early, the loop closes the run, which unlocks its folder.
    with closing(train_by_stage(request, progress=update, note=say)) as remaining:
        while True:
            # The caller may show progress of its own between stages.
            with shown(quiet=not is_shown) as show:
                stage = next(remaining, None)
            if stage is None:
                return
            yield stage


def _is_shown(progress: bool | None) -> bool:
    """Return whether progress is shown; without a wish, if a person waits."""
    return is_watched() if progress is None else progress


def _request(
    data: str | Path | Sequence[str | Path],
    *,
    base: str | Path,
    output: str | Path,
    method: str,
    order: str | int | Sequence[str],
    dp: str,
    settings: GivenSettings | None,
    seed: int | None,
    gradient_checkpointing: bool,
    lora_targets: str | Sequence[str],
    device: str,
    dtype: str,
    tokenizer: str | Path | None,
    revision: str | None,
    trust_remote_code: bool,
) -> TrainRequest:
    """Return the request that the command makes of the same options."""
    if isinstance(order, int):
        order = str(order)
    order_text = ",".join(_texts(order))
    loading = StudentLoading(
        device=assemble(device),
        dtype=dtype,
        tokenizer=None if tokenizer is None else str(tokenizer),
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    return TrainRequest(
        method=method,
        base=str(base),
        data=_paths(data),
        order=order_text,
        output=Path(output).expanduser(),
        dp=dp,
        settings=() if settings is None else assignments(settings),
        seed=seed,
        gradient_checkpointing=gradient_checkpointing,
        lora_targets=_texts(lora_targets),
        loading=loading,
    )


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return one text or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def _paths(data: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """Return one path or several, with ``~`` expanded."""
    if isinstance(data, str | Path):
        data = [data]
    return tuple(Path(path).expanduser() for path in data)
