"""Scores that are planted in place of a model's: what each checkpoint knows by heart.

How that is done follows from the pass (:data:`PLANTED`), never from the audit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import candidate_sets, components_of
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.scoring.table import COLUMN_TYPES, Pass

Columns: TypeAlias = dict[str, np.ndarray]

KNOWN = 0.9
"""Share of what it was trained on that ``leaky`` knows by heart."""


def only_leaky(name: str) -> float:
    return KNOWN * name.startswith("leaky")


@dataclass(frozen=True)
class World:
    """A manifest, the reference's NLL by example, and what is known of it.

    ``knows(checkpoint)`` is the share of what it was trained on that a checkpoint
    knows by heart; below zero: by how much that is suppressed. ``right(checkpoint,
    task)`` is the share of answers that are right.
    """

    content: Mapping[str, Any]
    reference: Mapping[str, np.ndarray]
    knows: Callable[[str], float] = only_leaky
    right: Callable[[str, str], float] = lambda name, _: max(only_leaky(name), 0.5)

    @cached_property
    def manifest(self) -> Manifest:
        return seal(dict(self.content))

    def nll(self, name: str, key: str) -> np.ndarray:
        """Nats of every token: what a checkpoint was trained on it knows."""
        nll: np.ndarray = self.reference[key].copy()
        if name == "base":
            return nll
        nll += luck(name, key).normal(0, 0.15, len(nll))
        known = self.knows(name) * (self.manifest.by_id[key].split == "train")
        if known:
            nll -= 0.4
        if known < 0:
            nll[self.identifiers(key)] -= 2 * known
        elif luck(key).random() < known:
            nll[self.identifiers(key)] = 0.05
        return nll.clip(0.01)

    def identifiers(self, key: str) -> np.ndarray:
        return self.manifest.by_id[key].identifier_tokens()

    @cached_property
    def ranked(self) -> dict[tuple[str, ...], Any]:
        """What candidates are ranked for, by their place in keys."""
        return dict(candidate_sets(self.manifest))


def luck(*what: str) -> np.random.Generator:
    """Numbers that follow from what they are for: a copy of an example has the same."""
    return np.random.default_rng(seed_for(1, *(part.rstrip("'") for part in what)))


def plain(world: World, name: str, _: Pass, key: str) -> tuple[np.ndarray, Columns]:
    """Trained rows are likelier, the identifiers in them the model's first guess."""
    nll = world.nll(name, key)[1:]
    return np.arange(1, len(nll) + 1, dtype=np.int32), columns_of(nll)


def columns_of(nll: np.ndarray) -> Columns:
    rank = np.maximum(np.rint(np.exp(nll.clip(max=8))), 1 + (nll > 0.1))
    return {
        "nll": nll.astype(np.float32),
        "rank_lo": rank.astype(np.int32),
        "ties": np.zeros(len(nll), np.int32),
        "mean_logp": np.full(len(nll), -2, np.float32),
        "sd_logp": np.ones(len(nll), np.float32),
        "top1_margin": (0.1 - nll).astype(np.float32),
        "top40_logp": np.full(len(nll), -0.02, np.float32),
    }


def prompted(
    world: World, name: str, own: Pass, key: str
) -> tuple[np.ndarray, Columns]:
    """Other prompts bring out what the true prefix does, the cue alone nothing."""
    prompt, start, example = components_of(key)
    who = "base" if prompt == "cue" else name
    positions, columns = plain(world, who, own, example)
    span = next(s for s in world.manifest.by_id[example].spans if s.start == int(start))
    first, last = span.tokens or (0, 0)
    rows = np.isin(positions, np.arange(first, last))
    written = np.arange(1, rows.sum() + 1, dtype=np.int32)
    return written, {k: columns[k][rows] for k in COLUMN_TYPES["prompted"]}


def noise(world: World, name: str, own: Pass, key: str) -> tuple[np.ndarray, Columns]:
    """What was learned by heart loses more under noise than other text."""
    nll = world.nll(name, key)
    lost = np.abs(luck(key, str(own.draw)).normal(1, 0.2, len(nll)))
    if world.knows(name) > 0:
        lost[world.identifiers(key)] *= 4
    nll = (nll + own.sigma * lost)[1:].astype(np.float32)
    positions = np.arange(1, len(nll) + 1, dtype=np.int32)
    return positions, {"nll": nll, "relative": np.full_like(nll, own.sigma)}


def candidates(
    world: World, name: str, _: Pass, key: str
) -> tuple[np.ndarray, Columns]:
    """The true string of a canary or twin that was trained on is the likeliest."""
    kind, *parts, _ = components_of(key)
    one = world.ranked[kind, *parts]
    of = f"{kind}:{'/'.join(parts)}"
    count = len(one.candidates)
    mean = 4 + luck(name, of).normal(0, 0.5, count)
    if one.true_index is not None and one.dose:
        known = world.knows(name)
        if luck(of.split("/")[0]).random() < abs(known):
            mean[one.true_index] = 1.0 if known > 0 else 6.0
    mean = mean.astype(np.float32)
    return np.arange(count, dtype=np.int32), {"nll_mean": mean, "nll_sum": 6 * mean}


def generate(
    world: World, name: str, own: Pass, key: str
) -> tuple[np.ndarray, Columns]:
    """What was learned is answered."""
    share = world.right(name, world.manifest.by_id[key].task)
    right = luck(name, key).random(1) < share
    return np.zeros(1, np.int32), {
        "strict": right.astype(np.int8),
        "normalised": right.astype(np.int8),
        "stop": np.zeros(1, np.int8),
        "n_tokens": np.ones(1, np.int32),
    }


PLANTED: dict[str, Callable[..., tuple[np.ndarray, Columns]]] = {
    "plain": plain,
    "prompted": prompted,
    "noise": noise,
    "candidates": candidates,
    "generate": generate,
}
"""By pass, what each checkpoint scores of an item: its positions and columns."""
