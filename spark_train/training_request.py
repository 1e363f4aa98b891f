"""Requests of a user for training; their fields are the options of the command line.

A further option is a field here, with a line under ``Attributes``, which is its help. A
field with ``NO_OPTION`` is set by the command itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from spark_audit import options
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError

NO_PRIVACY = "none"
"""The value of ``--dp`` for the method alone."""

DP = (NO_PRIVACY, "dpsgd", "fn")
"""Values of ``--dp``, named here: importing ``spark_train.privacy`` takes seconds."""


@dataclass(frozen=True, kw_only=True)
class StudentLoading(Loading):
    """How a model is opened to be trained: some fields are no options.

    Attributes
    ----------
    device
        Where to compute.
    dtype
        Type of the base; trained weights are float32.
    """

    device: Annotated[str, Parameter(metavar="auto|cpu|cuda|cuda:N")] = "auto"
    dtype: Annotated[
        str, Parameter(metavar="float32|bfloat16", choices=("float32", "bfloat16"))
    ] = "float32"
    device_map: Annotated[str | None, options.NO_OPTION] = None
    lora_alpha: Annotated[float | None, options.NO_OPTION] = None
    quantize: Annotated[tuple[str, ...], options.NO_OPTION] = ()
    model: Annotated[str | None, options.NO_OPTION] = None
    agree: Annotated[str | None, options.NO_OPTION] = None
    base: Annotated[str | None, options.NO_OPTION] = None
    include_base: Annotated[bool, options.NO_OPTION] = False


Base: TypeAlias = Annotated[
    str,
    Parameter(
        group=options.WHAT, help="Base model: a folder or hf:ORG/NAME.", metavar="MODEL"
    ),
]


@options.fields_in(options.WHAT)
@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A method over a stream of tasks, into a run folder.

    Attributes
    ----------
    method
        One of ``spark-train methods``.
    base
        The pretrained model, theta_0.
    data
        JSONL of ``spark-audit data``, or folders of it; train rows are trained on,
        test rows answered after each stage.
    order
        1, 2 or 3 (the paper's; those of its tasks that are there), or the tasks as
        they come, with commas between them. Data of one task needs none.
    output
        Run folder.
    dp
        Privacy option; works with every method.
    settings
        Settings that differ; ``spark-train methods`` lists them.
    seed
        Seed of everything random.
    gradient_checkpointing
        Compute the forward pass twice to save memory.
    lora_targets
        Last names of linear layers, where q, k, v and o are not found.
    command
        What was typed.
    first_phase_of
        Folder of a run on the same data whose first phase is taken, if this run would
        train the same, byte for byte.
    """

    method: Annotated[str, Parameter(metavar="NAME")]
    base: Base
    data: Annotated[tuple[Path, ...], Parameter(metavar="DIR|DATA...")]
    order: Annotated[str, Parameter(metavar="1|t1,t2,...")] = ""
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")]
    dp: Annotated[str, Parameter(choices=DP)] = NO_PRIVACY
    settings: Annotated[
        tuple[str, ...], Parameter(metavar="NAME=VALUE...", name="--set")
    ] = ()
    seed: NonNegativeInt | None = None
    gradient_checkpointing: bool = False
    lora_targets: Annotated[
        tuple[str, ...],
        Parameter(group=options.WHERE, metavar="NAME...", converter=options.by_commas),
    ] = ()
    loading: Annotated[Loading, options.NO_OPTION] = StudentLoading()
    command: Annotated[tuple[str, ...], options.NO_OPTION] = ()
    first_phase_of: Annotated[Path | None, options.NO_OPTION] = None


@options.fields_in(options.WHAT)
@dataclass(frozen=True, kw_only=True)
class RelearnRequest:
    """A short fine-tune of a checkpoint without identifiers.

    Attributes
    ----------
    ckpt
        Any checkpoint that ``open_checkpoint`` opens; of a series its last stage.
    data
        JSONL of ``spark-audit data``, or folders of it.
    output
        Folder of the new checkpoint, empty or not there yet. When anything fails, it
        is as it was.
    base
        Default: the base an adapter names.
    steps
        Steps of the optimizer.
    lr
        Peak of the learning rate.
    batch_size
        Rows per step.

    Raises
    ------
    InputError
        If the learning rate is out of its range.
    """

    ckpt: Annotated[str, options.NO_OPTION] = ""
    data: Annotated[tuple[Path, ...], Parameter(metavar="DATA...")]
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")]
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None
    steps: PositiveInt = 50
    lr: float = 5e-4
    batch_size: PositiveInt = 8
    seed: options.Seed = 0
    loading: Annotated[Loading, options.NO_OPTION] = StudentLoading()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise InputError(
                f"{self.lr} is not a learning rate",
                where="--lr",
                fix="give a number above 0",
            )
