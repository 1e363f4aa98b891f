"""What decides a manifest besides its data and its reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from spark_audit.errors import InputError
from spark_audit.manifest.schema import Settings
from spark_audit.terminal.flags import HOW, NO_OPTION, Seed, fields_in, one_of

PRESETS: Mapping[str, tuple[int, int | None]] = {"robust": (1, 1), "paper": (0, None)}
"""``buffer`` and ``canary_contexts`` (``None``: all) of each preset."""


@fields_in(HOW)
@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """How identifiers are matched, and canaries ranked.

    Attributes
    ----------
    caliper
        Largest difference of mean NLL between a span and its control, nats per token.
    preset
        ``robust`` or ``paper``: the defaults of ``buffer`` (1; 0) and
        ``canary_contexts`` (1; all), and what audits report.
    distance
        What makes a span and a control alike: their mean NLLs, or (``profile``) the
        sorted NLLs of their tokens.
    controls
        Where controls stand: anywhere in the text, or ``before`` the identifier.
    max_length
        Tokens that are read of a text; default and upper bound: the model's context.
    buffer
        Tokens beside an identifier that no control may touch.
    exclude_template
        Controls stay out of the tasks' fixed wording.
    canary_contexts
        Rows that a canary is ranked in, the first by id; ``"all"``: every one.
    n_candidates
        Strings that a canary is ranked among, itself included.
    tau
        A token is of low sensitivity up to the Score ``tau``; ``alpha`` weights its
        two terms (see :mod:`spark_audit.data.sensitivity_score`).
    alpha
        A token is of low sensitivity up to the Score ``tau``; ``alpha`` weights its
        two terms (see :mod:`spark_audit.data.sensitivity_score`).

    Raises
    ------
    InputError
        If a name is unknown or a number out of range.
    """

    caliper: float = 0.5
    preset: Annotated[str, Parameter(choices=tuple(PRESETS))] = "robust"
    distance: Literal["mean", "profile"] = "mean"
    controls: Literal["any", "before"] = "any"
    max_length: Annotated[int | None, Parameter(validator=Number(gte=2))] = None
    seed: Seed = 0
    buffer: Annotated[int | None, NO_OPTION] = None
    exclude_template: Annotated[bool, NO_OPTION] = True
    canary_contexts: Annotated[int | Literal["all"] | None, NO_OPTION] = None
    n_candidates: Annotated[int, NO_OPTION] = 512
    tau: Annotated[float, NO_OPTION] = 0.6
    alpha: Annotated[float, NO_OPTION] = 0.5

    def __post_init__(self) -> None:
        self.recorded()

    def recorded(self, *, max_positions: int | None = None) -> Settings:
        """What a manifest says of them: presets resolved, the model's context applied.

        Raises
        ------
        InputError
            If ``max_length`` does not fit into the model's context.
        """
        buffer, contexts = PRESETS[one_of(self.preset, "preset", PRESETS)]
        if self.n_candidates < 2:
            raise InputError(f"{self.n_candidates} is below 2", where="n_candidates")
        if self.canary_contexts is not None:
            whole = self.canary_contexts == "all"
            contexts = None if whole else int(self.canary_contexts)
        length = max_positions if self.max_length is None else self.max_length
        if max_positions is not None and length is not None and length > max_positions:
            raise InputError(
                f"{length} tokens do not fit into the model's context of "
                f"{max_positions}",
                where="max_length",
                fix=f"give at most {max_positions}",
            )
        values = vars(self) | {
            "buffer": buffer if self.buffer is None else self.buffer,
            "max_length": length,
            "canary_contexts": contexts,
        }
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            what = f"{first['input']!r}: {first['msg'].lower()}"
            raise InputError(what, where=str(first["loc"][0])) from error
