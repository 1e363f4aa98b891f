"""Settings of a manifest, besides its data and its reference model.

A further setting is a field here, with its documentation for the command line, and a
field of the same name in :class:`spark_audit.manifest.schema.ManifestSettings`, which
checks its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from spark_audit.errors import InputError, one_of
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.options import HOW, NO_OPTION, Seed, fields_in

PRESETS: Mapping[str, tuple[int, int | None]] = {"robust": (1, 1), "paper": (0, None)}
"""Preset -> its ``buffer`` in tokens, and its ``canary_contexts`` (``None``: all)."""

FIXED_SETTINGS = {"exclude_template": True, "tau": 0.6, "alpha": 0.5}
"""Settings that are the same in every manifest."""


@fields_in(HOW)
@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings for the matching of identifiers and the ranking of canaries.

    Attributes
    ----------
    caliper
        Largest difference of mean NLL between a span and its control, nats per token.
    preset
        ``robust`` or ``paper``. It sets the defaults of ``buffer`` (1; 0) and
        ``canary_contexts`` (1; all), and what audits report.
    distance
        Measure of likeness of a span and its control: their mean NLLs, or (``profile``)
        the sorted NLLs of their tokens.
    controls
        Allowed places of controls: anywhere in the text, or only ``before`` the
        identifier.
    max_length
        Most tokens of a text that are read; default and upper bound: the model's
        context.
    n_candidates
        Number of strings in a canary's set, itself included.

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
    n_candidates: Annotated[int, NO_OPTION] = 512

    def __post_init__(self) -> None:
        """Refuse settings that cannot be recorded."""
        self.recorded()

    def recorded(self, *, max_positions: int | None = None) -> ManifestSettings:
        """Return the manifest's settings, with the preset and the context resolved.

        Parameters
        ----------
        max_positions
            Length of the model's context, in tokens; ``None``: no limit, or not known
            yet.

        Raises
        ------
        InputError
            If a value is out of range, or if ``max_length`` does not fit into the
            model's context.
        """
        buffer, canary_contexts = PRESETS[one_of(self.preset, "preset", PRESETS)]
        if self.n_candidates < 2:
            raise InputError(
                f"{self.n_candidates} is below 2",
                where="n_candidates",
                fix="rank a canary among at least one other string",
            )

        # The schema of the file refuses values that are out of range.
        try:
            return ManifestSettings.model_validate(
                {
                    **vars(self),
                    **FIXED_SETTINGS,
                    "buffer": buffer,
                    "canary_contexts": canary_contexts,
                    "max_length": self._length_within(max_positions),
                }
            )
        except ValidationError as error:
            # The values are options of the user, so an error may show them.
            problem = error.errors(include_url=False)[0]
            raise InputError(
                f"{problem['input']!r}: {problem['msg'].lower()}",
                where=str(problem["loc"][0]),
            ) from None

    def _length_within(self, max_positions: int | None) -> int | None:
        """Return the most tokens that are read of a text; ``None``: no limit."""
        if self.max_length is None:
            return max_positions
        if max_positions is None:
            return self.max_length

        if self.max_length > max_positions:
            raise InputError(
                f"{self.max_length} tokens do not fit into the model's context of "
                f"{max_positions}",
                where="max_length",
                fix=f"give at most {max_positions}",
            )
        return self.max_length
