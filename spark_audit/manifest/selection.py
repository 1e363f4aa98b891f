"""What a manifest selects: pairs, low sensitivity, canaries, members, clusters.

Everything follows from the layouts and the reference model's micro-nats; no checkpoint
is looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spark_audit.data.canaries import RANKED, canary_ranges
from spark_audit.data.canary_candidates import NO_CANDIDATES, Encode, candidates
from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import Canary, Example, Part, Span, parts_outside
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.occurrences import SHORT, finder, folded, string_of
from spark_audit.data.sensitivity import score2, sensitivity, stop_word_ranges
from spark_audit.errors import InputError
from spark_audit.manifest import layout
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.provenance import seed_for
from spark_audit.stats.balance import balance_rows
from spark_audit.stats.duplicates import cluster_labels, duplicate_groups
from spark_audit.stats.matching import match_spans

CUT_OFF = "cut off: text longer than the context"
NO_TOKEN = "no token of its own"

Record = dict[str, Any]


# --- pairs and their balance ----------------------------------------------------------


class SelectedPairs(NamedTuple):
    """Matched and unmatched spans as the manifest's records.

    ``places`` has shape ``(n, 4)``, int64: example (its index), first token, length and
    first token of the control, or -1, of all spans that can be compared.
    """

    pairs: list[Record]
    unmatched: list[Record]
    places: np.ndarray


def match(
    texts: layout.TokenCorpus, eligible: np.ndarray, settings: ManifestSettings
) -> SelectedPairs:
    """Match every span that is no part of a canary with text of its own example.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    """
    pairs, unmatched, places = list[Record](), list[Record](), list[int]()
    for i, row in enumerate(texts.rows):
        unll = texts.unll[texts.of(i)]
        spans = [(span, at) for span, at in row.spans if span.part is None]
        kept = [(span, at) for span, at in spans if at and row.within(at)]
        matching = match_spans(
            unll,
            eligible[texts.of(i)],
            [(at.start, at.end) for _, at in kept],
            caliper_u=round(1e6 * settings.caliper),
            distance=settings.distance,
            controls=settings.controls,
            shows=row.encoding.start < row.encoding.end,
        )
        controls = {kept[one.span][0]: one.start for one in matching.pairs}
        reasons = {kept[n][0]: why for n, why in matching.unmatched.items()}
        for span, at in spans:
            control = controls.get(span, -1)
            if at and (unll[at.start : at.end] >= 0).all():
                places += [i, at.start, at.end - at.start, control]
            if at and control >= 0:
                pairs.append(_pair(row, span, at, control, unll))
                continue
            unmatched.append(
                {
                    "example": row.example.id,
                    "char_start": span.start,
                    "char_end": span.end,
                    "type": span.type,
                    "reason": reasons.get(span, CUT_OFF if at else NO_TOKEN),
                }
            )
    return SelectedPairs(pairs, unmatched, np.array(places, np.int64).reshape(-1, 4))


def _pair(
    row: layout.ManifestLayout,
    span: Span,
    tokens: TokenSpan,
    control: int,
    unll: np.ndarray,
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


SIDES = ("spans", "pool", "matched", "controls")


class Balance:
    """Balance over the train rows, which are what is audited, from slices of rows."""

    def __init__(self) -> None:
        # By covariate and side: what one slice has after that of another.
        self._parts: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def add(
        self, texts: layout.TokenCorpus, eligible: np.ndarray, pairs: SelectedPairs
    ) -> None:
        """Take a slice's spans, windows and pairs."""
        train = np.array([row.example.split == "train" for row in texts.rows])
        places = pairs.places[train[pairs.places[:, 0]]]
        if not len(places):
            return
        spans, both = places[:, :3], places[places[:, 3] >= 0]
        _, start, length, control = both.T
        for side, ranges in zip(
            SIDES,
            (
                spans,
                layout.pool(eligible, texts, spans),
                both[:, :3],
                both[:, [0, 3, 2]],
            ),
            strict=True,
        ):
            for name, values in layout.covariates(texts, ranges).items():
                self._parts[name, side].append(values)
        between = np.abs(control - start) - length
        self._parts["distance_to_pii", "controls"].append(between)
        self._parts["control_before", "controls"].append(control < start)

    def records(self) -> list[Record]:
        """As :func:`spark_audit.stats.balance.balance_rows`; none without a span.

        Two more rows have values for controls only: their distance to the PII span in
        tokens, and the share of them that stand before it. What was taken is gone
        afterwards.
        """
        rows: list[Record] = []
        for name in dict.fromkeys(name for name, _ in self._parts):
            spans, windows, matched, controls = (
                {name: np.concatenate([*self._parts.pop((name, side), []), []])}
                for side in SIDES
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
    texts: layout.TokenCorpus,
    settings: ManifestSettings,
    *,
    counts: Mapping[str, np.ndarray],
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
    masks = (
        (row.pii, row.fixed, row.encoding.mask(stop_word_ranges(row.example.text)))
        for row in texts.rows
    )
    pii, fixed, stop = map(np.concatenate, zip(*masks, strict=True))
    by_token = score2([counts[name] for name in sorted(counts)])
    score = sensitivity(
        texts.unll.clip(0) / 1e6,
        by_token[texts.tokens],
        alpha=settings.alpha,
        zero_mask=stop,
    )
    plain = ~(pii | fixed | texts.special) & (texts.unll >= 0)
    return np.asarray(plain & (score <= settings.tau))


# --- canaries -------------------------------------------------------------------------


def canary_sets(
    rows: Sequence[tuple[layout.ManifestLayout, bool]],
    settings: ManifestSettings,
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
    standing: dict[str, list[tuple[layout.ManifestLayout, bool]]] = defaultdict(list)
    for row, scored in rows:
        if row.example.canary is not None:
            standing[row.example.canary.id].append((row, scored))
    records = list[Record]()
    for _, held in sorted(standing.items()):
        canary, parts = _one_canary([row.example for row, _ in held])
        whole = [row for row, scored in held if scored][: settings.canary_contexts]
        for part in RANKED:
            places = [(row.example, *canary_ranges(row.example)[part]) for row in whole]
            record: Record = {
                "canary_id": canary.id,
                "part": part,
                "contexts": [
                    {"example": example.id, "char_start": start, "char_end": end}
                    for example, start, end in places
                ],
                **NO_CANDIDATES,
                "reason": CUT_OFF,
                "n_tokens": None,
                "format": canary.format,
                "dose": canary.dose,
                "held_out": canary.held_out,
                **({"pair": canary.pair} if canary.pair else {}),
            }
            if places:
                tokens = whole[0].encoding.span(*places[0][1:])
                record["n_tokens"] = tokens and tokens.end - tokens.start
                record |= candidates(
                    canary.format,
                    parts,
                    part,
                    encode=encode,
                    contexts=[(row.text, start, end) for row, start, end in places],
                    seed=seed_for(settings.seed, canary.id, part),
                    n=settings.n_candidates,
                )
            records.append(record)
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


def is_whole(row: layout.ManifestLayout, unll: np.ndarray) -> bool:
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
    plain = [
        (example, len(splits[group]) > 1)
        for example, group in zip(examples, groups.tolist(), strict=True)
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

LARGE_CLUSTER_SHARE = 0.25
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
    if largest > max(LARGE_CLUSTER_SHARE * len(examples), 2):
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
        for string, tells in _annotated(example).items():
            if tells:
                number.setdefault(string, len(number))
            else:
                bare[string] += 1
    # A password may be a plain word: it is one only where it is annotated.
    find = finder({string for string in number if not string.isalpha()})
    held = []
    for example in examples:
        told = _annotated(example).keys() & number.keys()
        held.append([number[one] for one in find(folded(example.text)) | told])
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


def _annotated(example: Example) -> dict[str, bool]:
    """The strings that are annotated in a row, and whether each tells who it is."""
    found: dict[str, bool] = {}
    for span in example.spans:
        string = string_of(example, span)
        word = len(string.split()) == 1 and not any(map(str.isdigit, string))
        bare = len(string) < SHORT or (word and span.type in BARE)
        found[string] = found.get(string, False) or not bare
    return found


def _sharing(keys: Sequence[Collection[Hashable]]) -> int:
    """How many rows have a key that another row has too."""
    count = Counter(key for own in keys for key in own)
    return sum(any(count[key] > 1 for key in own) for own in keys)
