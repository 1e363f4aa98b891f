"""What a study is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_audit.errors import InputError
from spark_train.training_request import StudentLoading


@dataclass(frozen=True, kw_only=True)
class ClaimsRequest:
    """The paper's claims on given data: trained, audited and judged.

    Attributes
    ----------
    data, base
        Injected JSON lines and the model that learns them; without both they are made,
        as the demo makes its own.
    second_base
        Of another family, for the paper's table of two.
    seeds
        Of the first task order; the others have one, as in the paper.
    systems
        ``core``: those that claims are of; ``all``: the paper's 20 rows too.
    by
        ``paper``: the settings printed; ``rule``: those that a written rule finds for
        small models on made-up tasks. Default: the paper's with ``data``.
    settings
        ``NAME=VALUE`` texts for all systems that know the name.
    rows
        Train rows of a task where data are made.
    engine, address
        What trains: processes here, or the nodes of a Ray cluster that share the disk.
    quick
        One seed, one task order, little data.
    no_training
        Judge what is trained already.

    Raises
    ------
    InputError
        If a number is out of its range.
    """

    output: Path
    data: tuple[Path, ...] = ()
    base: str | None = None
    second_base: str | None = None
    seeds: int = 3
    systems: str = "core"
    by: str | None = None
    settings: tuple[str, ...] = ()
    candidates: int = 512
    rows: int | None = None
    processes: int = 1
    engine: str = "local"
    address: str | None = None
    quick: bool = False
    no_training: bool = False
    loading: StudentLoading = StudentLoading()

    def __post_init__(self) -> None:
        if min(self.seeds, self.processes) < 1:
            raise InputError("must be at least 1", where="--seeds, --processes")
        if self.candidates < 2:
            raise InputError("must be at least 2", where="--candidates")
        if self.rows is not None and (self.rows < 1 or self.data):
            raise InputError(
                "is the size of made tasks, at least 1",
                where="--rows",
                fix="leave out --rows or --data",
            )
        if self.address is not None and self.engine != "ray":
            raise InputError(
                "is that of a Ray cluster", where="--address", fix="add --engine ray"
            )
        for text in self.settings:
            if "=" not in text:
                raise InputError(
                    f"{text!r} has no value", where="--set", fix="give NAME=VALUE"
                )
