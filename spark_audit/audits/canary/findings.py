"""What the canary audit says, and the conditions that it says it under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.canary.chance import LEVEL, Judged, Tested, p_risen, two_ended
from spark_audit.audits.canary.epsilon import STATED
from spark_audit.audits.canary.ranks import (
    changes,
    held_out,
    hits_of,
    resolved,
    tied_note,
    trained,
)
from spark_audit.audits.contract import (
    BASE,
)
from spark_audit.audits.ratio_rows import (
    moved,
)
from spark_audit.audits.wording import (
    adjusted_p,
    change_finding,
    confidence,
    figure,
    limits,
    p_value,
    share,
    unseen,
)
from spark_audit.data.canaries import RANKED
from spark_audit.results import (
    Claim,
    Contrast,
    Finding,
    Guard,
    number,
)
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.chance_ranks import chance_mde, null_mean, null_moments
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import with_mde

Tables: TypeAlias = "Mapping[str, Sequence[Mapping[str, Any]]]"

INSENSITIVE = "insensitive: nothing can be concluded"
LIFTED = (
    "held-out canaries rank as high: strings of this kind became likelier, memory is "
    "not shown."
)


SUNK = (
    "held-out canaries rank as far back: strings of this kind became less likely, "
    "suppression that tells who was in the data is not shown."
)


def absent(reason: str) -> Finding:
    """That nothing can be said of any checkpoint, and why."""
    sentence = f"Not estimable: {reason}."
    return Finding(audit="canary", claim="not_tested", sentence=sentence)


def finding(name: str, claim: Claim, said: str, **figures: Any) -> Finding:
    """A finding of one checkpoint."""
    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        sentence=f"{name}: {said}",
        **figures,
    )


def rankable(evidence: pd.DataFrame) -> list[Guard]:
    """A warning where parts of canaries have no candidates."""
    if evidence.empty:
        return []
    first = evidence[evidence["checkpoint"] == evidence["checkpoint"].iloc[0]]
    whole = first[first["kind"] != "context"]
    lost = int((whole["kind"] == "unrankable").sum())
    if not lost:
        return []
    detail = (
        f"{lost} of {len(whole)} canary parts have no candidates to be ranked among"
    )
    return [Guard(name="canaries rankable", passed=None, detail=detail)]


def guards(judged: Judged, evidence: pd.DataFrame) -> list[Guard]:
    """What can void the figures: no positive control, or a base that knows canaries."""
    return [_control_guard(judged), _base_guard(judged, evidence), *rankable(evidence)]


def _control_guard(judged: Judged) -> Guard:
    control = judged.control
    shown = list(dict.fromkeys(t.checkpoint for t in control if t.detected))
    passed: bool | None = bool(shown)
    if shown:
        detail = (
            f"the {control[0].n} canaries that stand in most rows are found in "
            f"{', '.join(shown)} ({control[0].part}: mean exposure "
            f"{number(control[0].value)} bits, {control[0].said})"
        )
        if judged.lost:
            passed = None
            lost = ", ".join(judged.lost)
            detail += f"; not by {lost}: nothing can be concluded there"
    elif control:
        detail = (
            "the canaries that stand in most rows are found in no audited checkpoint "
            f"and part (smallest {control[0].said}); audit the unprotected "
            "fine-tune too, or plant canaries in more rows (--doses)"
        )
    else:
        detail = "no fine-tuned checkpoint was audited"
    return Guard(name="positive control", passed=passed, detail=detail)


def _base_guard(judged: Judged, evidence: pd.DataFrame) -> Guard:
    name = "base ranks canaries by chance"
    if judged.base:
        worst = judged.base[0]
        rank = number(worst.value, 1)
        detail = f"smallest {worst.said} ({worst.part}, mean rank {rank})"
        if worst.detected:
            detail += (
                ": the canaries are not exchangeable with their candidates, "
                "or the base knows them; only changes since it mean anything"
            )
        passed = not worst.detected
        return Guard(name=name, checkpoint=BASE, passed=passed, detail=detail)
    detail = "the base was not scored: give --base to check the draw"
    if BASE in set(evidence.loc[evidence["kind"] == "canary", "checkpoint"]):
        detail = "the base ranks nothing: its candidates are tied"
    if judged.supposed:
        detail += "; the draw is not one of ours"
    return Guard(name=name, passed=None, detail=detail)


def findings(judged: Judged, tables: Tables) -> list[Finding]:
    """What is said of every checkpoint; ``tables`` are those of the report."""
    told = []
    if judged.sensitive and judged.lost:
        sentence = (
            f"Of {', '.join(judged.lost)}: {INSENSITIVE}. The positive control was "
            "found by "
            f"{', '.join(part for part in RANKED if part in judged.sensitive)} only."
        )
        told.append(Finding(audit="canary", claim="not_tested", sentence=sentence))
    for name in dict.fromkeys(trained(judged.frame)["checkpoint"]):
        told += _of_checkpoint(name, judged, tables)
    return told


def _of_checkpoint(name: str, judged: Judged, tables: Tables) -> Iterator[Finding]:
    ours = trained(judged.frame[judged.frame["checkpoint"] == name])
    if gone := [part for one, part in judged.tied if one == name]:
        yield _not_resolvable(name, gone, judged.tied)
        ours = ours[~ours["part"].isin(gone)]
        if ours.empty:
            return
    if known := set(ours["part"]) & judged.sensitive:
        ours = ours[ours["part"].isin(known)]
    size = int(ours["n_candidates"].iloc[0])
    n = max(1, int(resolved(ours).groupby(ours["part"]).sum().min()))
    mde = f"{number(chance_mde(n, n_candidates=size).bits)} bits"
    if not known:
        said = (
            f"{INSENSITIVE}. The positive control was found in no checkpoint; with "
            f"{n} canaries, shifts of the mean exposure below {mde} go unseen "
            "anyway."
        )
        yield finding(name, "not_tested", said)
        return
    if name == BASE:
        if not judged.uniform:
            said = (
                "ranks of canaries differ from chance before any training on "
                "them; only changes since it mean anything."
            )
            yield finding(name, "confounded", said)
        return
    beside = _HeldOut.of(
        record
        for record in tables["canary_streisand"]
        if record["checkpoint"] == name and record["part"] in known
    )
    if not judged.uniform:
        tests = [test for test in judged.control if test.part in known]
        yield _rise(name, judged.frame, tests, ahead=beside.ahead)
        return
    condition = "if the canaries were drawn uniformly, " if judged.supposed else ""
    for claim, said in _ends(name, ours, judged, beside, mde):
        yield finding(name, claim, condition + said)
    # The table holds canaries of our own draw only: no condition.
    if said := _epsilon_words(name, tables["canary_epsilon"]):
        yield finding(name, "memory", said)


def _ends(
    name: str, ours: pd.DataFrame, judged: Judged, beside: _HeldOut, mde: str
) -> list[tuple[Claim, str]]:
    """Both ends of the ranks, against chance and against never-inserted canaries."""
    # Adjusted over all parts, before those that tell nothing are left out.
    known, kinds = set(ours["part"]), judged.kinds[name]
    remembered, suppressed = (
        [test for test in tests if test.part in known]
        for tests in two_ended(judged.frame[judged.frame["checkpoint"] == name])
    )
    told = [_end_words(name, ours, remembered[0], judged.control, mde)]
    if told[0][0] == "memory" and "ahead" in kinds:
        # Chance is no null here: only the held-out canaries tell.
        told = [] if beside.ahead else [("confounded", LIFTED)]
    sunk = "behind" in kinds
    return told + _streisand_words(beside, suppressed[0], remembered[0], sunk=sunk)


def _not_resolvable(
    name: str, parts: Sequence[str], why: Mapping[tuple[str, str], str]
) -> Finding:
    reasons = dict.fromkeys(why[name, part] for part in parts)
    said = f"canaries are not resolvable ({', '.join(parts)}): {'; '.join(reasons)}."
    return finding(name, "not_tested", said, status="not_resolvable")


def _end_words(
    name: str,
    ours: pd.DataFrame,
    best: Tested,
    control: Sequence[Tested],
    mde: str,
) -> tuple[Claim, str]:
    part = ours[ours["part"] == best.part]
    size = int(part["n_candidates"].iloc[0])
    low, high = null_mean([size] * best.n).band()
    first = hits_of(part, k=1)
    mean = number(null_moments(size).exposure_mean, 2)
    chance = f"{mean}{limits(low, high, digits=2)}"
    figures = (
        f"mean exposure {number(best.value, 2)} bits ({best.part}) where chance gives "
        f"{chance}, {round(first.hits, 2):g} of {best.n} canaries ranked first of "
        f"{size}"
    )
    if note := tied_note(part):
        figures += f" ({note})"
    own = [t for t in control if t.checkpoint == name and t.detected]
    if best.detected:
        return "memory", f"canaries are REMEMBERED: {figures}, {best.said}."
    if own:
        return "memory", (
            f"canaries that stand in most rows are REMEMBERED ({own[0].part}: "
            f"mean exposure {number(own[0].value, 2)} bits, {own[0].said}); over all "
            f"canaries {figures}."
        )
    return "nothing_shown", (
        f"memorisation of canaries not detected: {figures}. Not excluded: shifts of "
        f"the mean below {mde}, up to {share(first.high)}% ranked first "
        "(exact 95% limit)."
    )


def _rise(
    name: str, frame: pd.DataFrame, control: Sequence[Tested], *, ahead: str
) -> Finding:
    """What a checkpoint adds to a base that does not rank by chance."""
    best = next(test for test in control if test.checkpoint == name)
    parts = trained(frame[frame["part"] == best.part])
    ours, base = (parts[parts["checkpoint"] == one] for one in (name, BASE))
    change, both = changes(ours, base, "exposure")
    rise = with_mde(ratio_estimate(change, np.ones(len(both))))
    figures = f"mean change of exposure {number(rise.value, 2)} bits ({best.part})"
    if best.detected:
        never = held_out(frame[frame["part"] == best.part])
        kind, before = (never[never["checkpoint"] == one] for one in (name, BASE))
        if len(kind) and not ahead and p_risen(kind, before) <= 1 - LEVEL:
            return finding(name, "confounded", f"{figures}, but {LIFTED}")
        said = (
            f"canaries are REMEMBERED beyond what the base knows: {figures}, of those "
            f"in most rows {best.said}."
        )
        return finding(name, "memory", said)
    tail = unseen(rise.mde, "", unit="bits", digits=2)
    said = f"no rise of exposure since the base detected: {figures}{tail}."
    return finding(name, "nothing_shown", said)


@dataclass(frozen=True)
class _HeldOut:
    """A checkpoint's true canaries beside never-inserted ones, by Holm over parts."""

    records: list[Mapping[str, Any]]
    ps: list[float]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> _HeldOut:
        """From the records of the table; parts without held-out canaries are none."""
        compared = [record for record in records if record["p"] is not None]
        ps = holm([record["p"] for record in compared]).tolist() if compared else []
        return cls(compared, ps)

    @property
    def ahead(self) -> str:
        """Where true strings rank ahead of never-inserted ones; else empty."""
        return self._clearest(ahead=True)

    @property
    def behind(self) -> str:
        """Where they rank behind."""
        return self._clearest(ahead=False)

    def _clearest(self, *, ahead: bool) -> str:
        for at in np.argsort(self.ps, kind="stable"):
            side = self.records[at]["trained_ahead"] > 0.5
            if self.ps[at] <= 1 - LEVEL and side == ahead:
                return self.place(at)
        return ""

    def place(self, at: int) -> str:
        """The mean ranks of one part's two sides."""
        record = self.records[at]
        return (
            f"mean rank {number(record['rank_mean_trained'], 1)} against "
            f"{number(record['rank_mean_held_out'], 1)} ({record['part']}, "
            f"{adjusted_p(self.ps[at], len(self.ps))})"
        )


def _streisand_words(
    beside: _HeldOut, low: Tested, best: Tested, *, sunk: bool
) -> list[tuple[Claim, str]]:
    """True strings against never-inserted ones, at either end."""
    ahead, behind = beside.ahead, beside.behind
    told: list[tuple[Claim, str]] = []
    if low.detected and sunk and not behind:
        told.append(("confounded", SUNK))
    elif low.detected:
        said = (
            f"true canaries stand FURTHER BACK than chance ({low.part}: lower-tail "
            f"exposure {number(low.value, 2)} bits, {low.said}): over-suppression "
            "tells who was in the data, as memorisation does."
        )
        told.append(("betrays", said))
    differ = "true canaries differ from never-inserted ones, they rank"
    if ahead:
        told.append(("memory", f"{differ} AHEAD: {ahead}."))
    elif behind and not low.detected:
        said = f"{differ} behind, though not behind chance: {behind}."
        told.append(("confounded", said))
    # Chance has told more than so few held-out canaries can.
    if told or best.detected:
        return told
    if not beside.ps:
        return [("not_tested", "no held-out canaries to compare true ones with.")]
    at = int(np.argmin(beside.ps))
    mde = beside.records[at]["mde_ranks"]
    said = (
        "no difference between true and never-inserted canaries detected: "
        f"{beside.place(at)}{unseen(mde, 'differences', unit='ranks', digits=1)}."
    )
    return [("nothing_shown", said)]


def _epsilon_words(name: str, table: Sequence[Mapping[str, Any]]) -> str:
    """The bound declared beforehand, and the largest of the others if it is more."""
    here = [r for r in table if r["checkpoint"] == name and r["epsilon_per_record"]]
    told: list[str] = []
    largest = 0.0
    for kind in (True, False):
        some = [r for r in here if r["declared"] == kind]
        best = max(some, key=lambda r: r["epsilon_per_record"], default=None)
        if best is None or best["epsilon_per_record"] <= largest:
            continue
        largest = best["epsilon_per_record"]
        which = "declared beforehand" if kind else "largest of the others, corrected"
        dose = "" if best["dose"] == "all" else f"dose {best['dose']}, "
        level = confidence(best["significance"])
        of = "" if told else " a record"
        sure = "" if told else " confidence"
        told.append(
            f"{largest:.3f}{of} at {level}{sure} "
            f"({best['part']}, {dose}k = {best['k']}, {which})"
        )
    if not told:
        return ""
    return (
        f"the training run is not eps-DP for eps < {', nor for eps < '.join(told)}: "
        f"pure DP (delta 0), if {STATED}."
    )


def contrast_findings(
    contrasts: Sequence[Contrast],
    paired: Sequence[Mapping[str, Any]],
    judged: Judged,
) -> list[Finding]:
    """How exposure of whole canaries changed against each baseline."""
    if "full" not in judged.sensitive:
        return []
    wilcoxon = {(r["checkpoint"], r["part"]): r["wilcoxon_p"] for r in paired}
    found = []
    for row in contrasts:
        if (row.metric, row.of) != ("exposure_mean", "full"):
            continue
        if row.status == "not_resolvable":
            continue
        head = f"{row.checkpoint} against {row.baseline}: exposure of canaries"
        if row.value is None or row.low is None or row.high is None:
            said = f"{head} did not change, or it cannot be estimated ({row.note})."
            found.append(Finding.on(row, "nothing_shown", said))
            continue
        p = wilcoxon.get((row.checkpoint, row.of))
        change = f"{figure(row, digits=2)} bits" + (
            "" if p is None else f" (Wilcoxon {p_value(p)})"
        )
        found.append(
            change_finding(
                row,
                head,
                change,
                changed=moved(row),
                tail=unseen(row.mde, "", digits=2),
            )
        )
    return found
