"""Mean log-probability of a text's tokens, in nats."""

from __future__ import annotations

from spark_audit.audits.mia.attacks import SCORES, Scored


@SCORES.register(order=1)
def loss(one: Scored) -> float:
    """The NLL of the text with its sign turned."""
    return float(one.logp.mean())
