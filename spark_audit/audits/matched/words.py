"""What the matched audit says, a sentence a finding: no more than figures show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from spark_audit.audits.wording import figure, p_value, unseen
from spark_audit.results import Claim, Contrast, Estimate, Finding, Row, number
from spark_audit.stats.memory import claim_of
from spark_audit.stats.selectivity import unlike_drift

NO_PAIRS = "there is no matched span in this group"
NO_LOW = "the drift of low-sensitivity text is not known"
Told: TypeAlias = "Mapping[tuple[str, str, str], Row]"
"""Rows of a checkpoint by metric, variant and group."""
SIDES = ("trained", "never-trained")
SEEDS = "This is over sources alone; over seeds too, see below."


def memory_finding(
    name: str, rows: Told, kind: Estimate, *, entry: bool = False
) -> Finding:
    """Whether identifiers that were trained on moved as others of their kind did."""
    row = rows["memory", "", "pooled"]
    claim = claim_of(row)
    if row.value is None:
        sentence = f"{name}: memory of identifiers not tested: {row.note}."
        return Finding.on(row, claim, sentence)
    trained, never = (
        figure(rows["pii_change", of, "pooled"]) for of in ("trained", "never-trained")
    )
    text = (
        f"{name}: since the reference, identifiers changed by {trained} nats a token "
        f"in trained rows and by {never} in rows never trained on: "
    )
    if claim == "memory":
        text += (
            "more likely on trained rows than on never-trained ones by "
            f"{figure(row, sign=-1)}."
        )
    elif claim == "betrays":
        text += (
            "LESS likely on trained rows than on never-trained ones by "
            f"{figure(row)}, which tells the trained ones from others."
        )
    elif row.low is None or row.high is None:
        text += "without an interval nothing can be concluded."
    elif not row.low <= 0 <= row.high:
        text += (
            f"a difference of {figure(row)}, but by {number(row.null_high)} the two "
            "were unequally hard on the reference already, and drift can turn that "
            "into as much: no memory shown."
        )
    else:
        text += (
            "the same on rows never trained on: formats or drift, no memory shown. The "
            f"difference is {figure(row)}; one of {number(row.mde)} would have been "
            "seen."
        )
        if _clear(rows["pii_change", "never-trained", "pooled"])[1] and _clear(kind)[1]:
            claim = "formats"
            text += (
                f" Those never trained on moved by {figure(kind)} against equally "
                "hard text."
            )
    return Finding.on(row, claim, f"{text} {SEEDS}" if entry else text)


def selectivity_finding(
    name: str, rows: Told, moved: Estimate, *, reference: bool, entry: bool = False
) -> Finding:
    """How Delta_sel moved, in plain words.

    What is read is the change since the reference: what matching left over there is
    no finding about a checkpoint.
    """
    row = rows["delta_sel", "", "pooled"]
    change = rows.get(("delta_sel", "change", "pooled"))
    if row.value is None:
        sentence = f"{name}: Delta_sel is not estimable ({row.note})."
        return Finding.on(row, "not_tested", sentence)
    over = f"over {row.n} tokens of matched identifiers in {row.clusters} clusters"
    if entry:
        over = f"for the mean of its seeds, {over}"
    if reference:
        sentence = (
            f"{name} scores as the matching reference does: its Delta_sel of "
            f"{number(row.value)} nats {over} is what matching leaves over, and no "
            "finding."
        )
        return Finding.on(row, "nothing_shown", sentence)
    if change is None or change.value is None:
        reason = NO_PAIRS if change is None else change.note
        sentence = f"{name}: Delta_sel {figure(row)}; its change: {reason}."
        return Finding.on(row, "not_tested", sentence)
    other = rows.get(("delta_sel", "change", "split:test"))
    beside = ""
    if other is not None and other.value is not None:
        beside = f" ({figure(other)} on test rows)"
    clear = any(_clear(change))
    reading = SEEDS if entry else _reading(change, moved)
    sentence = (
        f"{name}: Delta_sel {figure(row)} nats {over}, a change of "
        f"{figure(change)} since the reference{beside}; "
        f"{_mechanism(rows.get(('rtm_bias', 'change', 'pooled')))}. {reading}"
    )
    return Finding.on(change, "moved" if clear else "nothing_shown", sentence)


def _mechanism(bias: Row | None) -> str:
    """R1, called what it is."""
    value = "an unknown one" if bias is None else number(bias.value)
    if value == "-":
        value = "an unknown one"
    return f"regression to the mean, if all text drifted alike, would give {value}"


def _reading(change: Row, moved: Estimate) -> str:
    """What the change says; ``moved`` is that of the identifiers' own NLL.

    Delta_sel grows as well when other text is learned faster than identifiers.
    """
    up, down = _clear(change)
    by = f"by themselves they changed by {figure(moved)}"
    if up or down:
        way = "less" if up else "more"
        return (
            f"Relative to equally hard text, identifiers became {way} likely ({by}). "
            "Ordinary fine-tuning does this too."
        )
    return f"No move relative to equally hard text was shown ({by})." + unseen(
        change.mde, "Changes", unit="nats", before=" ", after="."
    )


def _clear(moved: Row | Estimate) -> tuple[bool, bool]:
    """Whether a change is clearly above, and clearly below 0."""
    if moved.value is None:
        return False, False
    if moved.low is None or moved.high is None:  # all clusters agree
        return moved.value > 0, moved.value < 0
    return moved.low > 0, moved.high < 0


def contrast_finding(
    row: Contrast,
    contrasts: Mapping[tuple[str, str, str, str], Contrast],
    told: Mapping[tuple[str, str, str, str], Row],
    *,
    entry: bool = False,
) -> Finding:
    """How identifiers moved against the baseline, and what the drift of both was."""
    who = f"{row.checkpoint} against {row.baseline}"
    if row.value is None:
        return Finding.on(row, "not_tested", f"{who}: not estimable ({row.note}).")

    def own(name: str, metric: str) -> Row | None:
        return told.get((name, metric, "", "pooled"))

    place = (row.checkpoint, row.baseline)
    drift = contrasts.get((*place, "low_change", row.group))
    value = row.p if row.p_adjusted is None else row.p_adjusted
    kind = "" if row.p_adjusted is None else "adjusted "
    p = "no p value" if value is None else f"{kind}{p_value(value, places=4)}"
    claim: Claim = "nothing_shown"
    if value is None or value >= 1 - row.level:
        reading = "No difference relative to equally hard text was shown."
        reading += unseen(row.mde, "Effects", unit="nats", before=" ", after=".")
    elif drift is None or drift.value is None:
        reading = "How text drifts in the two runs is not known: nothing is claimed."
    elif unlike_drift(row.value, drift.value, drift.low, drift.high):
        reading = (
            "That differs from the baseline as unequal drift can make it: nothing is "
            "claimed."
        )
    else:
        claim = "moved"
        way = "less" if row.value > 0 else "more"
        reading = (
            f"Where other text drifted alike, identifiers are {way} likely relative to "
            f"equally hard text{_themselves(*(own(n, 'nll_pii') for n in place))}."
        )
    text = (
        f"{who}: DiD {figure(row)} nats, {p}; "
        f"{_mechanism(contrasts.get((*place, 'rtm_bias', row.group)))}. "
        f"{_drifts(drift, *(own(n, 'low_change') for n in place))} "
    )
    return Finding.on(row, claim, text + (SEEDS if entry else reading))


def _drifts(drift: Contrast | None, ours: Row | None, theirs: Row | None) -> str:
    """The drift of low-sensitivity text of both runs."""
    if drift is None or drift.value is None:
        return f"{NO_LOW[0].upper()}{NO_LOW[1:]}."

    def said(row: Row | None) -> str:
        # Nothing has drifted on the reference itself.
        return number(0.0 if row is None or row.value is None else row.value)

    return (
        f"Low-sensitivity text drifted by {said(ours)} nats a token, the baseline's by "
        f"{said(theirs)} (apart by {figure(drift)})."
    )


def _themselves(mine: Row | None, other: Row | None) -> str:
    """How the identifiers' own NLL differs: a relative change alone can mislead."""
    if mine is None or other is None or mine.value is None or other.value is None:
        return ""
    change = mine.value - other.value
    way = "more" if change < 0 else "less"
    return (
        f" (taken by themselves they are {way} likely, by {number(abs(change))} nats)"
    )
