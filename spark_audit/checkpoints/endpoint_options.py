"""Options of endpoints that give only text: what is asked, and how much of it."""

# Annotations are evaluated here, not later: command lines read them.

import math
from dataclasses import dataclass, fields
from typing import Annotated, Literal, TypeAlias, get_args

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from spark_audit import options
from spark_audit.arguments import CheckedFields
from spark_audit.errors import InputError, one_of

Endpoint: TypeAlias = Literal["completions", "chat", "chat-prefix"]
"""Kind of an endpoint; :mod:`spark_audit.manifest.text_prompts` says what is sent."""

ENDPOINTS = get_args(Endpoint)


@options.fields_in(options.ENDPOINT)
@dataclass(frozen=True, kw_only=True)
class Asking(CheckedFields):
    """How an endpoint is asked that gives only text; fields are named like the flags.

    Attributes
    ----------
    endpoint
        ``chat-prefix`` sends the beginning of an answer as an unfinished turn; default:
        chat for rows that are chats, else completions.
    samples
        Answers to each prompt beside the one at temperature 0.
    temperature
        Of these samples.
    stream
        Ask for streams of text.
    max_requests
        Most requests; identifiers are left out, by hash, to need no more.
    parallel
        Requests at once.
    price_per_1k
        Price of 1,000 tokens, for the estimate of the cost.
    yes
        Send the requests without a question.

    Examples
    --------
    >>> asking = sa.Asking(samples=4, max_requests=500, yes=True)
    >>> asking.answers_each
    5
    """

    endpoint: Annotated[Endpoint | None, Parameter(choices=ENDPOINTS)] = None
    samples: NonNegativeInt = 0
    temperature: float = 1.0
    stream: bool = False
    max_requests: PositiveInt | None = None
    parallel: PositiveInt = 4
    price_per_1k: float | None = None
    yes: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range; the command line checks counts itself."""
        self.check_fields()
        one_of(self.endpoint, "--endpoint", (None, *ENDPOINTS))
        is_wrong = {
            "--samples": not (self.samples == 0 or options.is_count(self.samples)),
            "--temperature": not 0 < self.temperature < math.inf,
            "--max-requests": self.max_requests is not None
            and not options.is_count(self.max_requests),
            "--parallel": not options.is_count(self.parallel),
            "--price-per-1k": self.price_per_1k is not None
            and not 0 <= self.price_per_1k < math.inf,
        }
        for option, wrong in is_wrong.items():
            if wrong:
                raise InputError("is out of range", where=option, fix=_RANGES[option])

    @property
    def answers_each(self) -> int:
        """Return the number of answers to each prompt."""
        return 1 + self.samples

    @property
    def given_options(self) -> list[str]:
        """Return the options that say how to ask, as flags; ``--yes`` says nothing."""
        flags = []
        for field in fields(self):
            is_usual = getattr(self, field.name) == field.default
            if field.name != "yes" and not is_usual:
                flags.append("--" + field.name.replace("_", "-"))
        return flags


DEFAULT_ASKING = Asking()
"""How an endpoint is asked where nothing is said about it."""

_RANGES = {
    "--samples": "give a whole number from 0",
    "--temperature": "give a number above 0: one answer is at temperature 0 anyway",
    "--max-requests": "give a whole number from 1",
    "--parallel": "give a whole number from 1",
    "--price-per-1k": "give a price from 0",
}
"""Values that options may have."""
