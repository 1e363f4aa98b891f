"""What a user asks of training; the fields are the flags of the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt
from cyclopts.validators import Number

from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError
from spark_audit.terminal.flags import (
    NO_OPTION,
    WHAT,
    WHERE,
    Seed,
    ShowText,
    fields_in,
    hidden,
    one_of,
)
from spark_train.training_settings import parse

NONE = "none"
"""Of ``--dp``: the method alone."""
METHODS = tuple("er er-ptpc ewc gem mtl olora pecl sd-replay seqft spark".split())
"""Those of ``spark_train.methods``; named here, as importing them takes seconds."""
DP = (NONE, "dpsgd", "fn")


@hidden(
    "device_map", "lora_alpha", "quantize", "model", "agree", "base", "include_base"
)
class Opening(Loading):
    """How a model is opened to be trained.

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


Base: TypeAlias = Annotated[
    str,
    Parameter(group=WHAT, help="Base model: a folder or hf:ORG/NAME.", metavar="MODEL"),
]
LoraTargets: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        group=WHERE, help="Layers with LoRA; default: q, k, v and o.", metavar="NAME..."
    ),
]


@fields_in(WHAT)
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
        they come, with commas between them.
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

    Raises
    ------
    InputError
        If there is no such method, option or setting, or two seeds are given.
    """

    method: Annotated[str, Parameter(metavar="NAME")]
    base: Base
    data: Annotated[tuple[Path, ...], Parameter(metavar="DIR|DATA...")]
    order: Annotated[str, Parameter(metavar="1|t1,t2,...")]
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")]
    dp: Annotated[str, Parameter(choices=DP)] = NONE
    settings: Annotated[
        tuple[str, ...], Parameter(metavar="NAME=VALUE...", name="--set")
    ] = ()
    seed: NonNegativeInt | None = None
    gradient_checkpointing: bool = False
    lora_targets: LoraTargets = ()
    loading: Annotated[Loading, NO_OPTION] = Opening()
    command: Annotated[tuple[str, ...], NO_OPTION] = ()

    def __post_init__(self) -> None:
        one_of(self.method, "--method", METHODS)
        one_of(self.dp, "--dp", DP)
        chosen = parse(self.settings)
        if self.seed not in (None, chosen.seed) and "seed" in chosen.model_fields_set:
            # One of them would be dropped in silence.
            what = f"is {self.seed}, and --set gives the seed {chosen.seed}"
            raise InputError(what, where="--seed", fix="give one of them")


@fields_in(WHAT)
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
    lora_targets
        Last names of linear layers, where q, k, v and o of full weights are not
        found.

    Raises
    ------
    InputError
        If a number is out of its range.
    """

    ckpt: str
    data: Annotated[tuple[Path, ...], Parameter(metavar="DATA...")]
    output: Annotated[Path, Parameter(metavar="DIR", alias="-o")]
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None
    steps: PositiveInt = 50
    lr: float = 5e-4
    batch_size: PositiveInt = 8
    seed: Seed = 0
    lora_targets: LoraTargets = ()
    loading: Annotated[Loading, NO_OPTION] = Opening()

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size) < 1:
            raise InputError("must be at least 1", where="--steps, --batch-size")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise InputError(f"{self.lr} is no learning rate", where="--lr")


@fields_in(WHAT)
@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """The sensitivity scores of a data set's train rows.

    Attributes
    ----------
    ckpt
        Checkpoint to score; default: the base.
    alpha
        Weight of the NLL relative to how a token distinguishes tasks.
    limit
        Examples to print.
    """

    data: tuple[Path, ...]
    base: Base
    ckpt: Annotated[str | None, Parameter(metavar="PATH")] = None
    alpha: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5
    limit: PositiveInt = 5
    show_text: ShowText = False


def layer_names(given: tuple[str, ...]) -> tuple[str, ...]:
    """Names, with blanks or commas between them; a set, so in one order."""
    parts = {part.strip() for text in given for part in text.split(",")}
    return tuple(sorted(parts - {""}))
