"""Scenarios of ``known_truth.py``: checkpoints, set-ups, and what is true of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLAIMS = {
    "memory": ("memory", "verbatim"),
    "membership": ("membership",),
    "suppressed where trained": ("betrays",),
    "suppressed kind": ("suppressed_kind",),
    "formats": ("formats",),
}
"""Families of claims, and the claims of findings in each."""

MEMORY_BUT_CANARIES = "memory, canaries apart"
"""The family ``memory`` of all audits but that of canaries."""

DETECTIONS = tuple(list(CLAIMS)[:4])
GUARDS = ("held_out_back", "base_read_rows", "broken_model")
"""The guards of the set-up that decide state and gate."""
NONE = dict.fromkeys(DETECTIONS, False)
NO_IDENTIFIER = {name: False for name in DETECTIONS if name != "membership"}
MEMORY = {
    "memory": True,
    "memory, dose 4": True,
    "memory, dose 16": True,
    "membership": True,
    "suppressed where trained": False,
    "suppressed kind": False,
}
RETURNED = {"memory": True}
LESS = {"less memory": True}
BETRAYS = {"suppressed where trained": True, "memory": False}

LEAKS, DETECTABLE = "LEAKS", "DETECTABLE"
CLEAN, UNTESTED = "NO LEAK FOUND", "NOT TESTED"


@dataclass(frozen=True)
class Scenario:
    """A checkpoint and what is true of it; what is not named is only counted.

    Attributes
    ----------
    truth
        Family of claims -> whether it must be claimed (True) or must not be (False).
    states
        States that are right; empty: any is.
    gate
        The exit code of ``gate`` without rules that is right.
    guard
        The guard that must fail.
    allowed
        A guard that may fail without being a false alarm.
    """

    name: str
    checkpoint: str
    truth: dict[str, bool]
    states: tuple[str, ...] = ()
    gate: int | None = None
    guard: str = ""
    allowed: str = ""


@dataclass(frozen=True)
class Group:
    """Scenarios that one command audits together, over one manifest.

    Attributes
    ----------
    sets
        Sets of rows of the manifest.
    base
        The checkpoint that is named as the base.
    baseline
        The checkpoint that is named as the baseline; empty: none.
    flags
        Further options of the command.
    name_suffix
        The end of the names of copies that the command makes, as ``+int8``; empty:
        the checkpoints themselves are meant.
    """

    scenarios: tuple[Scenario, ...]
    sets: tuple[str, ...] = ("member", "other")
    base: str = "base"
    baseline: str = ""
    flags: tuple[str, ...] = ()
    name_suffix: str = ""


def _clean(name: str, checkpoint: str, truth: dict[str, bool] = NONE) -> Scenario:
    return Scenario(name, checkpoint, truth, (CLEAN,), 0)


def _labels(name: str, checkpoint: str) -> Scenario:
    """Answers were learned, so membership may be found."""
    return Scenario(name, checkpoint, NO_IDENTIFIER, (CLEAN, DETECTABLE))


def _unseen(name: str, checkpoint: str) -> Scenario:
    """Rows that were never seen, with nothing or little to compare them with."""
    return Scenario(name, checkpoint, NONE, (CLEAN, UNTESTED))


def _learned(name: str, checkpoint: str) -> Scenario:
    """Memory that the set-up may make untestable; the gate must not open."""
    return Scenario(name, checkpoint, {}, (LEAKS, DETECTABLE, UNTESTED), 1)


def _void(name: str, checkpoint: str, guard: str, *more: str) -> Scenario:
    """A set-up or model that cannot be audited; ``more`` states that are true too."""
    return Scenario(name, checkpoint, {}, (UNTESTED, *more), 1, guard)


def _last_four(kind: str, name: str, **more: Any) -> Group:
    form = f"{kind}-of-{{}}" if kind else "{}"
    return Group(
        tuple(
            Scenario(f"{TITLES[of]}, {name}", form.format(of), *true)
            for of, true in STAGES.items()
        ),
        baseline=form.format("full"),
        **more,
    )


TITLES = {
    "full": "full text, doses 1, 4, 16",
    "corrected": "the same after SPARK's correction",
    "over": "after over-correction of trained strings",
    "relearned": "corrected, after relearning",
}
STAGES: dict[str, tuple[Any, ...]] = {
    "full": (MEMORY, (LEAKS,), 1),
    "corrected": ({},),
    "over": (BETRAYS, (DETECTABLE,)),
    "relearned": (RETURNED, (LEAKS,), 1),
}
HEART = ("heart", "heart_held")
GROUPS = (
    Group(
        (
            # Nothing tells it from a checkpoint that was named as its own base.
            Scenario(
                "untouched base",
                "untouched",
                NONE,
                (UNTESTED,),
                1,
                guard="base_read_rows",
            ),
            _clean("final norm divided by up to 2", "scaled-of-down"),
            _clean("final norm times up to 2", "scaled-of-up"),
            _clean("weights with noise", "noisy"),
            _clean("continued on unrelated text", "unrelated"),
            Scenario(
                "all candidates tied",
                "collapsed",
                NONE,
                (CLEAN, UNTESTED),
                allowed="broken_model",
            ),
            _clean(
                "full text, audited on rows it never saw",
                "foreign",
                NONE | {"formats": True},
            ),
        ),
    ),
    Group(
        (
            _labels("labels only", "labels"),
            _labels("labels only, another rate", "labels_rate"),
            _labels("labels only, fewer epochs", "labels_epochs"),
            _labels("labels only, another seed", "labels_seed"),
        ),
        baseline="labels",
    ),
    Group(
        (_clean("members of another topic, trained on third rows", "topics"),),
        sets=("first", "second"),
    ),
    Group(
        (
            Scenario(
                "rows repeated, identifiers out of the loss",
                "rows",
                # Its baseline learned identifiers: that they are less likely is true.
                # Words behind a masked canary tell it from others
                # (``known_truth_masked.py``): memory of it is true, too.
                {MEMORY_BUT_CANARIES: False, "membership": True},
                (DETECTABLE, LEAKS),
            ),
            Scenario(TITLES["full"], "full", *STAGES["full"]),
            Scenario(TITLES["corrected"], "corrected", LESS),
            Scenario(TITLES["over"], "over", *STAGES["over"]),
            Scenario(TITLES["relearned"], "relearned", *STAGES["relearned"]),
        ),
        baseline="full",
    ),
    _last_four("merged", "merged bfloat16"),
    _last_four("", "int8", flags=("--quantize", "int8"), name_suffix="+int8"),
    _last_four("stacked", "adapter on adapter"),
    # What users mistake, and what rows give away.
    Group(
        (Scenario("rows by heart", "heart", RETURNED, (LEAKS,), 1),),
        sets=HEART,
    ),
    Group(
        (
            # Memory is true, and may still show.
            _void(
                "held-out rows trained on too", "contaminated", "held_out_back", LEAKS
            ),
        ),
        sets=HEART,
    ),
    Group(
        (
            Scenario(
                "addresses and few phones by heart", "mails", RETURNED, (LEAKS,), 1
            ),
            _void(
                "addresses and few phones, held-out rows trained on too",
                "mails_all",
                "held_out_back",
                LEAKS,
            ),
            _void(
                "addresses and few phones, 60% of held-out rows trained on too",
                "mails_part",
                "held_out_back",
                LEAKS,
            ),
        ),
        sets=("mails", "mails_held"),
    ),
    Group(
        (
            Scenario("names by heart", "names", RETURNED, (LEAKS,), 1),
            _void(
                "names only, held-out rows trained on too",
                "names_all",
                "held_out_back",
                LEAKS,
            ),
        ),
        sets=("names", "names_held"),
    ),
    Group(
        (_void("trained and held-out lists swapped", "heart", "held_out_back"),),
        sets=("swapped",),
    ),
    Group(
        (_void("the checkpoint as its own base", "heart", "base_read_rows"),),
        sets=HEART,
        base="heart",
    ),
    Group(
        (
            _void("its copy in other files as base", "copy", "base_read_rows"),
            _void("its unrounded twin as base", "rounded", "base_read_rows"),
            _void(
                "base that read the rows, trained on others", "after", "base_read_rows"
            ),
            _void(
                "base that read the rows, trained on them",
                "again",
                "base_read_rows",
                LEAKS,
            ),
        ),
        sets=HEART,
        base="heart",
    ),
    Group(
        (_void("gradient ascent until broken", "broken", "broken_model"),), sets=HEART
    ),
    Group(
        (_unseen("half-given dates, none held out, rows unseen", "dates"),),
        sets=("dates",),
    ),
    Group(
        (
            _unseen("held-out phones of another form, rows unseen", "phones_unseen"),
            _learned("held-out phones of another form, rows learned", "phones"),
        ),
        sets=("phones", "phones_held"),
    ),
    Group(
        (
            _unseen("three identifiers against one, rows unseen", "three_unseen"),
            _learned("three identifiers against one, rows learned", "three"),
        ),
        sets=("three", "three_held"),
    ),
    Group(
        (
            # The strings were learned, and so were sentences of the audited rows.
            Scenario(
                "public numbers, learned from other rows",
                "public",
                {"suppressed where trained": False},
                (LEAKS,),
                1,
            ),
        ),
        sets=("public", "public_held"),
    ),
    Group(
        (Scenario("few rows by heart, none held out", "few", RETURNED, (LEAKS,), 1),),
        sets=("few",),
    ),
    Group(
        (
            _labels("identifiers in prompts, long answers learned", "answers_labels"),
            Scenario(
                "identifiers in prompts, all text learned",
                "answers",
                RETURNED,
                (LEAKS,),
                1,
            ),
        ),
        sets=("answers", "answers_held"),
    ),
)
SCENARIOS = {s.name: s for group in GROUPS for s in group.scenarios}
