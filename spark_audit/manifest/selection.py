"""What a manifest selects: pairs, low sensitivity, canaries, members, clusters.

Everything follows from the layouts and the reference model's micro-nats; no checkpoint
is looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_audit.data import occurrences
from spark_audit.data.canaries import (
    NO_CANDIDATES,
    RANKED,
    Encode,
    canary_ranges,
    candidates,
)
from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import (
    Canary,
    Example,
    Part,
    Span,
    parts_outside,
    template_ranges,
)
from spark_audit.errors import InputError
from spark_audit.manifest import layout
from spark_audit.manifest.schema import Settings
from spark_audit.provenance import seed_for
from spark_audit.stats.duplicates import cluster_labels, duplicate_groups
from spark_audit.stats.matching import balance_rows, match_spans

CUT_OFF = "cut off: text longer than the context"
NO_TOKEN = "no token of its own"

Record = dict[str, Any]


# --- pairs and their balance ----------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Matched and unmatched spans as the manifest's records.

    ``scored`` are ``(example, start, length)`` of all spans that can be compared,
    matched or not, ``matched`` and ``controls`` those of the pairs' sides.
    """

    pairs: list[Record] = field(default_factory=list)
    unmatched: list[Record] = field(default_factory=list)
    scored: list[tuple[int, int, int]] = field(default_factory=list)
    matched: list[tuple[int, int, int]] = field(default_factory=list)
    controls: list[tuple[int, int, int]] = field(default_factory=list)


def match(texts: layout.Corpus, eligible: np.ndarray, settings: Settings) -> Pairs:
    """Match every span that is no part of a canary with text of its own example.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    """
    found = Pairs()
    for i, row in enumerate(texts.rows):
        unll = texts.unll[texts.of(i)]
        spans = [(span, at) for span, at in row.spans if span.part is None]
        reasons = {
            span: CUT_OFF if at else NO_TOKEN
            for span, at in spans
            if not row.within(at)
        }
        placed = [(span, at) for span, at in spans if at and span not in reasons]
        if placed:
            matching = match_spans(
                unll,
                eligible[texts.of(i)],
                [(at.start, at.end) for _, at in placed],
                caliper_u=round(1e6 * settings.caliper),
                distance=settings.distance,
                controls=settings.controls,
                shows=row.encoding.start < row.encoding.end,
            )
            reasons |= {placed[n][0]: why for n, why in matching.unmatched.items()}
            for pair in matching.pairs:
                span, at = placed[pair.span]
                found.pairs.append(_pair(row, span, at, pair.start, unll))
                found.matched.append((i, at.start, at.end - at.start))
                found.controls.append((i, pair.start, at.end - at.start))
        found.scored.extend(
            (i, at.start, at.end - at.start)
            for _, at in placed
            if (unll[at.start : at.end] >= 0).all()
        )
        found.unmatched.extend(
            {
                "example": row.example.id,
                "char_start": span.start,
                "char_end": span.end,
                "type": span.type,
                "reason": reasons[span],
            }
            for span, _ in spans
            if span in reasons
        )
    return found


def _pair(
    row: layout.Layout, span: Span, tokens: TokenSpan, control: int, unll: np.ndarray
) -> Record:
    """The record of a span and its control, which begins at a token."""
    start, end, _ = tokens
    length = end - start

    def side(at: int, char_start: int, char_end: int) -> Record:
        return {
            "token_start": at,
            "token_end": at + length,
            "char_start": int(char_start),
            "char_end": int(char_end),
            "nll": int(unll[at : at + length].sum()) / (1e6 * length),
        }

    apart = int((unll[start:end] - unll[control : control + length]).sum())
    edges = row.encoding.start[control], row.encoding.end[control + length - 1]
    return {
        "example": row.example.id,
        "pii": {**side(start, span.start, span.end), "type": span.type},
        "control": side(control, *edges),
        "distance": abs(apart) / (1e6 * length),
        "weight": 1.0,
    }


CONTROLS_ONLY = {
    "distance_to_pii": "tokens between the control and its span",
    "control_before": "share of controls before their span",
}
"""Covariates of controls alone, and what is noted of them."""


class Balance:
    """Balance over the train rows, which are what is audited, from slices of rows."""

    def __init__(self) -> None:
        # By covariate and side: what one slice has after that of another.
        self._parts: dict[str, dict[str, list[np.ndarray]]] = defaultdict(
            lambda: {side: [] for side in ("spans", "pool", "matched", "controls")}
        )

    def add(self, texts: layout.Corpus, eligible: np.ndarray, pairs: Pairs) -> None:
        """Take a slice's spans, windows and pairs."""
        train = [row.example.split == "train" for row in texts.rows]
        spans, matched, controls = (
            layout.token_ranges([at for at in places if train[at[0]]])
            for places in (pairs.scored, pairs.matched, pairs.controls)
        )
        if not len(spans):
            return
        for side, ranges in (
            ("spans", spans),
            ("pool", layout.pool(eligible, texts, spans)),
            ("matched", matched),
            ("controls", controls),
        ):
            for name, values in layout.covariates(texts, ranges).items():
                self._parts[name][side].append(values)
        apart = controls[:, 1] - matched[:, 1]
        between = np.abs(apart) - matched[:, 2]
        self._parts["distance_to_pii"]["controls"].append(between)
        self._parts["control_before"]["controls"].append(apart < 0)

    def records(self) -> list[Record]:
        """As :func:`spark_audit.stats.matching.balance_rows`; none without a span.

        Two more rows have values for controls only: their distance to the PII span in
        tokens, and the share of them that stand before it. What was taken is gone
        afterwards.
        """
        rows: list[Record] = []
        for name in [*self._parts]:
            sides = self._parts.pop(name).values()
            spans, windows, matched, controls = (
                {name: np.concatenate([*held, []])} for held in sides
            )
            own = balance_rows(spans, windows, controls, covariates_matched=matched)
            for row in own:
                if name in CONTROLS_ONLY and len(controls[name]):
                    row["note"] = CONTROLS_ONLY[name]
                # The last digits of a mean depend on the machine.
                rounded = {
                    k: round(v, 9) for k, v in row.items() if isinstance(v, float)
                }
                rows.append(row | rounded)
        return rows


# --- tokens of low sensitivity --------------------------------------------------------


def low_sensitivity(
    texts: layout.Corpus, settings: Settings, *, counts: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Scored tokens of plain text with a sensitivity Score of at most ``settings.tau``.

    **[ours]** Score_1 is the reference model's NLL, Score_2 is taken over all tasks and
    rows of the manifest. No identifier, special or template token is among them.

    Parameters
    ----------
    counts
        How often each token stands in the rows of each task: shape ``(V,)`` each.

    Returns
    -------
    numpy.ndarray
        Shape ``(N,)``, bool.
    """
    pii = np.concatenate([row.pii for row in texts.rows])
    fixed = np.concatenate([row.fixed for row in texts.rows])
    stop = np.concatenate(
        [
            row.encoding.mask(occurrences.stop_word_ranges(row.example.text))
            for row in texts.rows
        ]
    )
    scored = texts.unll >= 0
    low = np.zeros(len(scored), dtype=bool)
    low[scored] = (
        occurrences.sensitivity(
            texts.unll[scored] / 1e6,
            occurrences.score2([counts[name] for name in sorted(counts)])[
                texts.tokens[scored]
            ],
            alpha=settings.alpha,
            pii_mask=pii[scored],
            zero_mask=(stop | fixed)[scored],
        )
        <= settings.tau
    )
    return np.asarray(low & ~pii & ~fixed & ~texts.special)


# --- canaries -------------------------------------------------------------------------


def canary_sets(
    rows: Sequence[tuple[layout.Layout, bool]],
    settings: Settings,
    *,
    encode: Encode,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """Candidates for every canary and part, each from a pool of its own.

    Parameters
    ----------
    rows
        Those with a canary, and whether all of it was scored.
    settings
        ``canary_contexts``: rows that a canary is ranked in, the first by id that hold
        all of it; ``None``: all. ``n_candidates``: strings in a set.
    encode
        Token ids of texts, special tokens included.
    """
    standing: dict[str, list[tuple[layout.Layout, bool]]] = defaultdict(list)
    for row, scored in rows:
        if row.example.canary is not None:
            standing[row.example.canary.id].append((row, scored))
    records = list[Record]()
    for _, held in sorted(standing.items()):
        canary, parts = _one_canary([row.example for row, _ in held])
        whole = [row for row, scored in held if scored][: settings.canary_contexts]
        for part in RANKED:
            places = [(row, *canary_ranges(row.example)[part]) for row in whole]
            tokens, found = None, NO_CANDIDATES | {"reason": CUT_OFF}
            if places:
                tokens = whole[0].encoding.span(*places[0][1:])
                found = candidates(
                    canary.format,
                    parts,
                    part,
                    encode=encode,
                    contexts=[
                        (row.example.text, low, high) for row, low, high in places
                    ],
                    seed=seed_for(settings.seed, canary.id, part),
                    n=settings.n_candidates,
                )
            record = {
                "canary_id": canary.id,
                "part": part,
                "contexts": [
                    {"example": row.example.id, "char_start": start, "char_end": end}
                    for row, start, end in places
                ],
                **found,
                "n_tokens": tokens.end - tokens.start if tokens else None,
                "format": canary.format,
                "dose": canary.dose,
                "held_out": canary.held_out,
            }
            records.append(record | ({"pair": canary.pair} if canary.pair else {}))
            progress(len(records), len(standing) * len(RANKED))
    return records


def _one_canary(held: Sequence[Example]) -> tuple[Canary, dict[Part, str]]:
    """What all rows of a canary agree on: the canary and its parts."""
    (canary, parts), *others = {
        (e.canary, tuple((s.part, e.text[s.start : s.end]) for s in e.spans if s.part))
        for e in held
    }
    assert canary is not None
    if others:
        raise InputError(
            "rows of one canary hold different strings or facts",
            where=f"canary {canary.id!r}",
            fix="inject again",
        )
    return canary, {part: text for part, text in parts if part is not None}


def is_whole(row: layout.Layout, unll: np.ndarray) -> bool:
    """Whether every token of a row's canary was scored."""
    tokens = row.encoding.span(*canary_ranges(row.example)["full"])
    return tokens is not None and bool((unll[tokens.start : tokens.end] >= 0).all())


# --- duplicates and membership --------------------------------------------------------


def duplicates(rows: layout.Rows) -> np.ndarray:
    """Near-duplicate group of each row, shape ``(n,)``, int64.

    Fixed wording is left out: all rows of a task share it.
    """
    texts = []
    for example in rows.examples:
        fixed = template_ranges(example, rows.templates)
        parts = parts_outside(fixed, len(example.text))
        text = " ".join(example.text[start:end] for start, end in parts)
        texts.append(text if text.strip() else example.text)
    return duplicate_groups(texts)


def membership(
    examples: Sequence[Example], groups: np.ndarray
) -> tuple[dict[str, list[str]], int]:
    """Members and non-members, and how many rows near-duplicates cost.

    Members are the train rows without a canary, non-members the test rows without one.
    Rows whose near-duplicate group stands in both splits are neither.
    """
    splits: dict[int, set[str]] = defaultdict(set)
    for example, group in zip(examples, groups.tolist(), strict=True):
        splits[group].add(example.split)
    crosses = [len(splits[group]) > 1 for group in groups.tolist()]
    plain = [
        (example, both)
        for example, both in zip(examples, crosses, strict=True)
        if example.canary is None
    ]
    sides = {
        side: [one.id for one, both in plain if one.split == split and not both]
        for side, split in (("members", "train"), ("non_members", "test"))
    }
    return sides, sum(both for _, both in plain)


# --- clusters -------------------------------------------------------------------------


WIDESPREAD_ROWS, WIDESPREAD_SHARE = 100, 0.1
"""A string in more than so many rows, and in more than this share of all, joins none.

It is nobody's, like a shop's own telephone number, and would make a tenth of the data
and whatever hangs on it one unit **[ours]**. No fewer rows: sixteen of sixty that hold
the same number are one person's sixteen, and a dose of 64 is one string.
"""

BARE = ("NAME", "ADDRESS")
"""Types whose strings of one word ("Anna", "Berlin") many share: they join no rows, or
they would chain people together who have nothing to do with each other. Nor do strings
of one or two characters, whatever their type **[ours]**."""

LARGE = 0.25
"""A cluster with more than this share of the rows is told of in a note."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row, and for people how they came about."""

    labels: list[str]
    counts: dict[str, int]
    notes: list[str]


def clusters(examples: Sequence[Example], groups: np.ndarray) -> Clusters:
    """Clusters of rows: joined by source, canary, identifier and near-duplicate text.

    An identifier joins the rows that it stands in, annotated there or not; one of a
    single word that may be many people's, and one that stands nearly everywhere, join
    none (:data:`BARE`, :data:`WIDESPREAD_SHARE`).

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    strings, notes = _strings(examples)
    sources = [example.source_id for example in examples]
    canaries = [row.canary.id if row.canary else None for row in examples]
    labels = cluster_labels(sources, canaries, groups, strings)
    sizes = Counter(labels)
    largest = max(sizes.values(), default=0)
    if largest > max(LARGE * len(examples), 2):
        apart = Counter(cluster_labels(sources, canaries, groups))
        notes.append(
            f"one cluster holds {largest} of {len(examples)} rows "
            f"({max(apart.values())} if shared identifiers joined none): intervals "
            f"over {len(sizes)} clusters are wide, or there are none. If a value that "
            "belongs to no person joins them, remove its annotations"
        )
    return Clusters(
        labels,
        {
            "clusters": len(sizes),
            "largest_cluster": largest,
            "rows_joined": sum(n for n in sizes.values() if n > 1),
            "joined_by_source": _sharing([[key] for key in sources]),
            "joined_by_canary": _sharing([[key] if key else [] for key in canaries]),
            "joined_by_string": _sharing(strings),
            "joined_by_near_duplicate": _sharing([[key] for key in groups.tolist()]),
        },
        notes,
    )


def _strings(examples: Sequence[Example]) -> tuple[list[list[int]], list[str]]:
    """Numbers of the identifiers in each row that join it to others, and notes."""
    number: dict[str, int] = {}
    bare: Counter[str] = Counter()
    for example in examples:
        own = _annotated(example)
        telling = {string for string, tells in own if tells}
        for string in telling:
            number.setdefault(string, len(number))
        bare.update({string for string, _ in own} - telling)
    # A password may be a plain word: it is one only where it is annotated.
    find = occurrences.finder({string for string in number if not string.isalpha()})
    held = []
    for example in examples:
        told = {string for string, _ in _annotated(example)} & number.keys()
        stands = find(occurrences.folded(example.text)) | told
        held.append(sorted(number[string] for string in stands))
    most = max(WIDESPREAD_ROWS, WIDESPREAD_SHARE * len(examples))
    spread = Counter(one for own in held for one in own)
    wide = {one for one, count in spread.items() if count > most}
    notes = []
    if wide:
        notes.append(
            f"{len(wide)} annotated strings stand in more than {most:g} of "
            f"{len(examples)} rows, up to {max(spread.values())}: they are "
            "not counted as personal and join no rows into a cluster"
        )
        held = [[one for one in own if one not in wide] for own in held]
    if shared := sum(n > 1 for string, n in bare.items() if string not in number):
        notes.append(
            f"{shared} annotated strings occur in several rows and are too short to "
            "identify a person (a name or place of one word, one or two characters): "
            "they join no rows into a cluster"
        )
    return held, notes


def _annotated(example: Example) -> set[tuple[str, bool]]:
    """The strings that are annotated in a row, and whether each tells who it is."""
    found = set()
    for span in example.spans:
        string = occurrences.string_of(example, span)
        word = len(string.split()) == 1 and not any(map(str.isdigit, string))
        bare = word and span.type in BARE
        found.add((string, len(string) >= occurrences.SHORT and not bare))
    return found


def _sharing(keys: Sequence[Collection[Hashable]]) -> int:
    """How many rows have a key that another row has too."""
    count = Counter(key for own in keys for key in own)
    return sum(any(count[key] > 1 for key in own) for own in keys)
