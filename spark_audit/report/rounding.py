"""How finely a figure may be shown: as the number of its clusters allows.

What two figures differ by, of a whole and its part or of reports before and after a row
was removed, is the contribution of few rows. It stays open by what an average cluster
contributes, to each side.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Iterable, Iterator

from spark_audit.results import CheckpointFacts, ManifestFacts, Row

APART = 1.0
"""Nats, bits or a whole share: the least rounding step, times clusters."""
NOISE = 1e-6
"""Below this a figure is rounding error."""


def step_of(row: Row) -> float | None:
    """The rounding step of a row's figures; none where nothing asks for one.

    It is at least what ``APART`` asks for, in other units the figure itself over the
    clusters, and at least what a cluster of one standard deviation, as the interval
    tells it, adds. Of a share, n clusters of equal weight have a standard error ``se``
    of 0.5 / sqrt(n) at the most, so that one weighs 4 se^2 or less; where each row or
    span is in or out (all but tokens), a count would follow from one step: two are
    taken. Of ranks few may be as large as all others together.
    """
    if row.unit == "log10 tries":
        return 0.5
    if row.audit == "utility" or (row.audit == "canary" and row.unit != "nats"):
        return None
    clusters = max(row.clusters, 1)
    se = 0.0 if row.low is None or row.high is None else (row.high - row.low) / 4
    least = APART if row.unit in ("nats", "bits", "") else abs(row.value or 0.0)
    least /= clusters
    if row.unit == "":
        step = max(least * (1 if row.audit == "rank" else 2), 4 * se**2)
    else:
        least *= math.sqrt(clusters) if row.unit == "ranks" else 1
        step = max(least, se / math.sqrt(clusters))
    return step_above(step) if step > 0 else None


def count_of(n: int, clusters: int) -> int:
    """Tokens or spans, to what an average cluster has: a difference would tell them."""
    return int(rounded(n, step_above(n / clusters))) if n > clusters > 0 else n


def step_above(least: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 5, 10, 15 ... that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    steps = (k * power for k in (1, 1.5, 2, 3, 5, 10))
    return next(step for step in steps if step >= least * (1 - 1e-9))


def rounded(value: float, step: float) -> float:
    """The nearest multiple of a step; half a step for what would else be zero.

    So no leak is shown as none, and every limit stays on its side of zero.
    """
    steps: float = round(value / step)
    if steps == 0 and abs(value) > NOISE:
        steps = math.copysign(0.5, value)
    return float(f"{steps * step:.12g}") + 0.0


def count_step(n: int, clusters: int) -> float:
    """The step of a count of some of ``n``: twice what an average cluster has."""
    return max(step_above(2 * n / max(clusters, 1)), 2.0)


def decade(tries: float) -> float:
    """Tries are a span's NLL: a decade is 2.3 nats."""
    return 10.0 ** round(math.log10(tries)) if tries > 0 else tries


KEYED = "hmac-sha256:"
_PATH = re.compile(
    r"(?<![\w./:\\-])(?:[A-Za-z]:)?[/\\](?:[^/\\\n:=,]*[/\\])*(?=[^/\\])"
)
"""Folders of an absolute path: they tell whose machine it was."""


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """The digest of a text with six unknown digits is found in seconds: it is keyed."""
    given = facts.digest
    if facts.key:
        made = hmac.new(facts.key.encode(), given.encode(), "sha256").hexdigest()
        given = f"{KEYED}{made}"
    elif not given.startswith(KEYED):
        given = "not shown"
    tokens = count_of(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": given, "key": "", "n_tokens": tokens})


def checkpoint_facts(facts: CheckpointFacts) -> CheckpointFacts:
    """A checkpoint by the names of its files, without their absolute paths."""
    paths = {"source": facts.source, "base": facts.base}
    return facts.model_copy(
        update={name: path and _PATH.sub("", path) for name, path in paths.items()}
    )


def command_line(words: Iterable[str]) -> Iterator[str]:
    """A command without absolute paths, and without its seed.

    The noise of DP-SGD follows from that.
    """
    after = False
    for word in words:
        named, equals, _ = word.partition("=")
        seed = named == "--seed" and bool(equals)
        yield "..." if after else "--seed=..." if seed else _PATH.sub("", word)
        after = word == "--seed"
