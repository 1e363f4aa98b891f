"""The columns of each audit's evidence: what a file is checked for when it is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from spark_audit.scoring.table import Column

_TEXT = Column("text")
_COUNT = Column("whole", low=0)
_FLAG = Column("flag")
_NUMBER = Column("number")
_POSITIVE = Column("number", low=0)
_MAYBE = Column("number", null=True)


def _texts(*names: str) -> dict[str, Column]:
    return dict.fromkeys(names, _TEXT)


def _counts(*names: str) -> dict[str, Column]:
    return dict.fromkeys(names, _COUNT)


EVIDENCE: Mapping[str, Mapping[str, Column]] = {
    "matched": {
        **_texts("example", "cluster", "task", "split", "role", "type", "checkpoint"),
        **dict.fromkeys(("pair", "start"), Column("whole", low=-1)),
        "n_tokens": Column("whole", low=1),
        "ref_sum": _POSITIVE,
        "nll_sum": _POSITIVE,
    },
    "rank": {
        **_texts("checkpoint", "set", "split", "task", "type", "cluster"),
        "rank": Column("whole", low=1),
        "ties": _COUNT,
    },
    "nll": {
        **_texts("checkpoint", "of", "split", "task", "type", "cluster"),
        "num": _POSITIVE,
        "den": Column("number", low=1e-9),
    },
    "canary": {
        **_texts("checkpoint", "kind", "canary_id", "part", "example", "format"),
        **_counts("dose", "contexts", "n_candidates", "ties"),
        "rank": Column("number", low=0),
        "held_out": _FLAG,
        "nll_sum": _MAYBE,
        "nll_mean": _MAYBE,
        "posterior_bits": _MAYBE,
        "extrapolated": _MAYBE,
        "extrapolated_ks": _MAYBE,
        "extrapolated_clipped": _FLAG,
    },
    "mia": {
        **_texts("checkpoint", "example", "task", "cluster"),
        **_counts("label", "length", "zlib_bytes"),
        **_counts("duplicates_left", "duplicates_removed"),
        "member": _FLAG,
        "loss": _NUMBER,
        **dict.fromkeys(("response", "mink10", "minkpp10", "zlib"), _MAYBE),
        **dict.fromkeys(("reference", "blind", "blind_auc", "blind_p"), _MAYBE),
        **dict.fromkeys(("blind_null", "blind_null_low", "blind_null_high"), _MAYBE),
        **dict.fromkeys(("blind_permutations", "blind_rows"), _MAYBE),
    },
    "extract": {
        **_texts("checkpoint", "set", "split", "task", "type", "origin", "cluster"),
        **_texts("canary_id", "part"),
        "dose": _COUNT,
        "n_tokens": Column("whole", low=1),
        **dict.fromkeys(("first", "greedy", "greedy_sure"), _FLAG),
        "logp_t1": Column("number", high=0),
        # Minus infinity where sampling cannot give it.
        "logp_top40": Column("number", low=float("-inf"), high=1e-3),
    },
    "noise": {
        **_texts("checkpoint", "kind", "task", "cluster"),
        "draw": _COUNT,
        "n": Column("whole", low=1),
        **dict.fromkeys(("sigma", "relative", "clean", "noisy"), _POSITIVE),
    },
    "utility": {
        **_texts("checkpoint", "example", "task", "cluster", "scorer", "reason"),
        "place": Column("whole", low=-1),
        "correct": Column("whole", low=-1, high=1),
        "empty": Column("whole", low=-1),
        "chance": Column("number", low=0, high=1),
    },
}
"""Audit -> the columns that its conclusion reads."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "matched": ("checkpoint", "example", "role", "pair", "start", "n_tokens", "type"),
    "canary": ("checkpoint", "kind", "canary_id", "part", "example"),
    "mia": ("checkpoint", "example"),
    "utility": ("checkpoint", "example"),
}
"""Audit -> the columns that no two rows share all of."""

LATER: Mapping[str, Mapping[str, Column]] = {
    "matched": {
        "trained": Column("number", low=-1, high=1, null=True),
        **dict.fromkeys(("form", "cue"), Column("number", low=-1, null=True)),
    }
}
"""Audit -> columns that earlier versions had not: all of them, or none."""

FACTS: Mapping[str, tuple[str, ...]] = {
    "matched": (*KEYS["matched"][1:], "cluster", "task", "split"),
    "mia": ("example", "task", "cluster", "member"),
}
"""Audit -> the columns that are the same for every checkpoint, row by row."""


def columns_of(audit: str, given: Collection[str]) -> Mapping[str, Column]:
    """The columns that a file of an audit's evidence must have."""
    later = LATER.get(audit, {})
    needed = EVIDENCE.get(audit, {"checkpoint": _TEXT})
    return needed if later.keys().isdisjoint(given) else {**needed, **later}


def row_flaw(audit: str, evidence: pd.DataFrame) -> str:
    """What is wrong between rows and columns; nothing, if all is well."""
    if audit == "utility":  # what was not asked has no example
        evidence = evidence[evidence["correct"] >= 0]
    if audit in KEYS and evidence.duplicated([*KEYS[audit]]).any():
        return "holds a row twice"
    if audit == "matched":  # earlier versions had no others
        evidence = evidence[evidence["role"] != "low"]
    if audit in FACTS:
        names = evidence["checkpoint"].nunique()
        if len(evidence) != names * len(evidence.drop_duplicates([*FACTS[audit]])):
            return "does not hold the same rows of every checkpoint"
    if audit == "canary":
        ranked = evidence[evidence["kind"].isin(["canary", "context"])]
        # A missing rank fails the comparison too.
        if not ranked["rank"].between(1, ranked["n_candidates"]).all():
            return "holds a rank that is none of the candidates'"
    if audit == "extract":
        planted = evidence[evidence["canary_id"] != ""]
        if (
            not planted.groupby(["checkpoint", "canary_id", "part"])["first"]
            .any()
            .all()
        ):
            return "holds a canary without its first row"
    return ""
