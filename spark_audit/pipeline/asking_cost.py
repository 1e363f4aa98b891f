"""Say how many requests an endpoint will get, and what they cost, before the first one.

:func:`asking_cost` counts them. The terminal shows :func:`cost_lines`, and
``--dry-run --json`` the fields as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_audit.checkpoints.text_server import LIMIT, TextRequest
from spark_audit.errors import shown
from spark_audit.pipeline.endpoint_job import EndpointJob, PlannedAsking

CHARACTERS_PER_TOKEN = 4
"""Characters of an average token of English text, for the estimate of the cost."""

TOKENS_PER_PRICE = 1000


@dataclass(frozen=True)
class AskingCost:
    """What is asked of an endpoint, and at most what it costs.

    Attributes
    ----------
    url, model, endpoint
        Its address, the model's name there, and the kind of endpoint.
    requests, answered
        Requests that are left, and those whose answers are stored.
    identifiers, left_out
        Identifiers and parts of canaries that are asked for, and those that
        ``--max-requests`` leaves out.
    answers_each
        Answers to each prompt.
    tokens_read, tokens_written
        Of the requests that are left: about so many, and at most so many.
    price_per_1k, price
        Price of 1,000 tokens, and of all of them at most; ``None``: not known.
    """

    url: str
    model: str
    endpoint: str
    requests: int
    answered: int
    identifiers: int
    left_out: int
    answers_each: int
    tokens_read: int
    tokens_written: int
    price_per_1k: float | None
    price: float | None


def asking_cost(
    planned: PlannedAsking, left: Mapping[str, TextRequest], job: EndpointJob
) -> AskingCost:
    """Return what the requests of a job cost.

    Parameters
    ----------
    left
        The requests whose answers are not stored yet.
    """
    asking = job.request.asking
    n_read = 0
    n_written = 0
    for request in left.values():
        texts = [str(request.body.get("prompt", ""))]
        for message in request.body.get("messages", ()):
            texts.append(message["content"])
        n_characters = sum(len(text) for text in texts)
        n_read += n_characters // CHARACTERS_PER_TOKEN + 1
        n_written += int(request.body[LIMIT])

    price = None
    if asking.price_per_1k is not None:
        price = (n_read + n_written) / TOKENS_PER_PRICE * asking.price_per_1k
    return AskingCost(
        url=job.url,
        model=job.model,
        endpoint=job.endpoint,
        requests=len(left),
        answered=len(planned.requests) - len(left),
        identifiers=len({unit.place for unit in planned.units}),
        left_out=planned.n_left_out,
        answers_each=asking.answers_each,
        tokens_read=n_read,
        tokens_written=n_written,
        price_per_1k=asking.price_per_1k,
        price=price,
    )


def cost_lines(cost: AskingCost) -> list[str]:
    """Return the cost in lines for a terminal."""
    answered = ""
    if cost.answered:
        answered = f", {cost.answered:,} more are answered already"

    each = "one answer"
    if cost.answers_each > 1:
        each = f"{cost.answers_each} answers"

    identifiers = f"{cost.identifiers:,} identifiers"
    if cost.left_out:
        n_all = cost.identifiers + cost.left_out
        identifiers = f"{cost.identifiers:,} of {n_all:,} identifiers"

    price = "their price is not known (--price-per-1k)"
    if cost.price is not None:
        price = f"at most about {cost.price:,.2f} at {cost.price_per_1k:g} per 1,000"
    return [
        f"{cost.requests:,} requests to {shown(cost.model)} at {cost.url} "
        f"({cost.endpoint}){answered}",
        f"they ask for {identifiers}, with {each} to each prompt",
        f"about {cost.tokens_read:,} tokens are read and at most "
        f"{cost.tokens_written:,} written; {price}",
    ]
