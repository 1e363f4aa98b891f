"""What the matched audit says, a sentence a finding: no more than figures show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy

from spark_audit.audits.wording import figure, of_rows, p_value, unseen
from spark_audit.results import Claim, Contrast, Estimate, Finding, Row, number
from spark_audit.stats.memory import claim_of
from spark_audit.stats.selectivity import unlike_drift

if TYPE_CHECKING:
    from spark_audit.audits.identifier_facts import Moved

NO_PAIRS = "there is no matched span in this group"
NO_LOW = "the drift of low-sensitivity text is not known"
Told: TypeAlias = "Mapping[tuple[str, str, str], Row]"
"""Rows of a checkpoint by metric, variant and group."""
FEWEST = 5
"""Clusters of trained identifiers of a dose whose smallest effect is told."""
SEEDS = "This is over sources alone; over seeds too, see below."


def memory_findings(
    name: str,
    rows: Told,
    tests: Mapping[str, Moved],
    *,
    entry: bool = False,
    doubt: str = "",
    lost: str = "",
) -> list[Finding]:
    """Whether identifiers that were trained on moved as others of their kind did.

    Of all of them, and of those that stand in most trained rows: these two are tests
    declared beforehand; ``tests`` are by group. ``doubt`` says why a difference is no
    memory, ``lost`` who was left out.
    """
    row = rows["memory", "", "pooled"]
    if row.value is None:
        sentence = f"{name}: memory of identifiers not tested: {row.note}.{lost}"
        return [Finding.on(row, "not_tested", sentence)]
    if doubt:
        sentence = (
            f"{name}: trained identifiers moved by {figure(row)} nats per token "
            f"against held-out ones, but {doubt}: this may have another cause than "
            f"training.{lost}"
        )
        return [Finding.on(row, "confounded", sentence)]
    doses = [key[2] for key in rows if key[0] == "memory" and key[2][:5] == "dose:"]
    found = [_memory(name, row, rows, tests, doses, entry=entry, lost=lost)]
    if doses:
        found.append(_highest(name, rows["memory", "", doses[-1]], tests))
    return found


def _memory(
    name: str,
    row: Row,
    rows: Told,
    tests: Mapping[str, Moved],
    doses: Sequence[str],
    *,
    entry: bool,
    lost: str,
) -> Finding:
    kind, test = rows["kind", "", "pooled"], tests["pooled"]
    # By themselves too: beside text that drifted up, what stood still looks learned.
    never = rows["pii_change", "never-trained", "pooled"]
    claim, p = claim_of(row), test.p
    tested = "" if p is None else f", {p_value(p)}"
    moved = (
        f"{figure(row)} nats a token against never-trained ones (0 without "
        f"memory{tested})"
    )
    power = [
        each.model_copy(update={"of": f"those in {of_rows(group.partition(':')[2])}"})
        for group in doses
        # Of fewer it says next to nothing, and nothing that may be shared.
        if rows["pii_change", "trained", group].clusters >= FEWEST
        for each in tests[group].power
    ]
    nothing = f"{name}: no memory of identifiers shown: {moved}.{lost}"
    if claim == "memory":
        text = f"{name}: REMEMBERS trained identifiers: {moved}.{lost}"
    elif claim == "betrays":
        text = (
            f"{name}: trained identifiers are LESS likely than others of their kinds, "
            f"which tells who was in the data: {moved}.{lost}"
        )
    elif row.low is None or row.high is None:
        text = f"{name}: {moved}: without an interval nothing can be concluded."
    elif not row.low <= 0 <= row.high:
        text = (
            f"{name}: no memory of identifiers shown: {moved}, but the two were "
            f"unequally hard on the reference already, by {number(row.null_high)}."
        )
    elif _clear(never)[1] and _clear(kind)[1]:
        claim = "formats"
        text = (
            f"{name}: no memory shown: {moved}. It learned the formats of "
            f"identifiers: those never trained on moved by {figure(kind)} against "
            "equally hard text."
        )
    else:
        text = nothing
    options: dict[str, Any] = {"p": p, "family": "primary", "otherwise": nothing}
    options["power"] = [*test.power, *power]
    if claim not in ("memory", "betrays"):
        del options["otherwise"]
    return Finding.on(row, claim, f"{text} {SEEDS}" if entry else text, **options)


def _highest(name: str, row: Row, tests: Mapping[str, Moved]) -> Finding:
    """Of the identifiers that stand in most trained rows."""
    dose = of_rows(row.grouping[1])
    dose = f"{name}: identifiers that stand in {dose} trained rows"
    if row.value is None:
        said = f"{dose}: not estimable ({row.note})."
        return Finding.on(row, "nothing_shown", said)
    claim, test = claim_of(row), tests[row.group]
    tested = "" if test.p is None else f", {p_value(test.p)}"
    figures = f"{figure(row)} nats a token against never-trained ones (0 without"
    figures += f" memory{tested})"
    nothing = f"{dose}: no memory shown: {figures}."
    options = {"p": test.p, "family": "primary", "power": list(test.power)}
    if claim == "memory":
        said = f"{dose} are REMEMBERED: {figures}."
        return Finding.on(row, claim, said, otherwise=nothing, **options)
    if claim == "betrays":
        said = f"{dose} are LESS likely than others of their kinds: {figures}."
        return Finding.on(row, claim, said, otherwise=nothing, **options)
    return Finding.on(row, "nothing_shown", nothing, **options)


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
    if down and _clear(moved)[0]:
        return (
            f"Identifiers became less likely ({by}), equally hard text even more so. "
            "Ordinary fine-tuning does this too."
        )
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
    beside: Mapping[str, Contrast],
    drifts: tuple[Row | None, Row | None],
    ordinary: Sequence[float],
    *,
    entry: bool = False,
) -> Finding:
    """How identifiers moved against the baseline, and what the drift of both was.

    Parameters
    ----------
    beside
        Other contrasts of the same two: ``low_change``, ``nll_pii``, ``did_alike``.
    drifts
        Drift of low-sensitivity text, of the checkpoint and of the baseline.
    ordinary
        DiD of runs that nobody corrected against the same baseline.
    """
    who = f"{row.checkpoint} against {row.baseline}"
    if row.value is None:
        return Finding.on(row, "not_tested", f"{who}: not estimable ({row.note}).")
    value = row.p if row.p_adjusted is None else row.p_adjusted
    kind = "" if row.p_adjusted is None else "adjusted "
    p = "no p value" if value is None else f"{kind}{p_value(value, places=4)}"
    claim: Claim = "nothing_shown"
    if value is None or value >= 1 - row.level:
        reading = "No difference relative to equally hard text was shown."
        reading += unseen(row.mde, "Effects", unit="nats", before=" ", after=".")
    else:
        claim, reading = _against(row, beside, ordinary)
    text = (
        f"{who}: DiD {figure(row)} nats, {p}. "
        f"{_drifts(beside.get('low_change'), *drifts)} "
    )
    return Finding.on(row, claim, text + (SEEDS if entry else reading))


def _against(
    row: Contrast, beside: Mapping[str, Contrast], ordinary: Sequence[float]
) -> tuple[Claim, str]:
    """What a DiD that differs from 0 says.

    Suppressed is said of identifiers that are less likely by themselves, than equally
    hard text, and than text that looks like them, where other text drifted alike.
    """
    drift = beside.get("low_change")
    own, alike = beside.get("nll_pii"), beside.get("did_alike")
    if ordinary:
        if within(row, ordinary):
            return "nothing_shown", (
                "Ordinary runs differ from the baseline as much: nothing is claimed."
            )
    elif drift is None or drift.value is None:
        return "nothing_shown", (
            "How text drifts in the two runs is not known: nothing is claimed."
        )
    elif unlike_drift(row.value or 0.0, drift.value, drift.low, drift.high):
        looks = ""
        if alike is not None and alike.value is not None:
            looks = f" (against text that looks like them {figure(alike)})"
        return "nothing_shown", (
            f"That differs from the baseline as unequal drift can make it{looks}: "
            "nothing is claimed."
        )
    up, down = _clear(row)
    if down:
        return "moved", "Identifiers are more likely relative to equally hard text."
    lacking = [
        words
        for words, other in (
            ("by themselves they are not less likely", own),
            ("against text that looks like them they are not", alike),
        )
        if other is None or not _clear(other)[0]
    ]
    if lacking or own is None or alike is None or not up:
        return "moved", (
            f"Identifiers are less likely relative to equally hard text, but "
            f"{' and '.join(lacking)}: suppression is not claimed."
        )
    return "suppressed_kind", (
        f"Identifiers are SUPPRESSED as a kind: by themselves by {figure(own)}, "
        f"against text that looks like them by {figure(alike)}."
    )


def within(row: Contrast, ordinary: Sequence[float]) -> bool:
    """Whether a DiD may be that of one more ordinary run: its interval must clear it.

    The prediction interval of one more run, by Student's t; of a single one, twice its
    own distance from 0.
    """
    values = np.asarray(ordinary, dtype=np.float64)
    reach = float(np.abs(values).max()) * (2.0 if len(values) == 1 else 1.0)
    if len(values) > 1:
        spread = float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        t = float(scipy.special.stdtrit(len(values) - 1, 0.975))
        reach = max(reach, abs(float(values.mean())) + t * spread)
    ends = [end for end in (row.value, row.low, row.high) if end is not None]
    return not (min(ends) > reach or max(ends) < -reach)


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
