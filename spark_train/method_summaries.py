"""The methods and privacy options with a line each, for lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_train import privacy, training_methods
from spark_train.privacy import PRIVACY
from spark_train.training_methods import METHODS
from spark_train.training_settings import names


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """A method or a privacy option.

    Attributes
    ----------
    name
        The value of ``method=`` or ``dp=``.
    summary
        What it does, in a line.
    groups
        Groups, or single names, of the settings that it reads beside those without a
        dot in their names.
    settings
        Names of all settings that it reads.
    """

    name: str
    summary: str
    groups: tuple[str, ...]
    settings: tuple[str, ...]


def methods() -> tuple[MethodSummary, ...]:
    """Return the methods by which a model can be trained.

    Examples
    --------
    >>> import spark_train
    >>> seqft = spark_train.methods()[8]
    >>> seqft.name, seqft.groups
    ('seqft', ('loss', 'lora'))
    >>> [one.name for one in spark_train.methods() if "ptpc.steps" in one.settings]
    ['er-ptpc', 'spark']
    """
    summaries = []
    for name, method in METHODS.items():
        groups = training_methods.groups(name)
        summaries.append(_summary(name, method.phases, groups))
    return tuple(summaries)


def privacy_options() -> tuple[MethodSummary, ...]:
    """Return the privacy options, each of which goes with every method."""
    summaries = []
    for name, option in PRIVACY.items():
        summaries.append(_summary(name, option, privacy.groups(name)))
    return tuple(summaries)


def _summary(
    name: str, function: Callable[..., object], groups: Sequence[str]
) -> MethodSummary:
    """Return a summary, with the first line of the function's docstring."""
    return MethodSummary(
        name=name,
        summary=(function.__doc__ or "").partition("\n")[0],
        groups=tuple(groups),
        settings=tuple(names(groups)),
    )
