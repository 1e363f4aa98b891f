"""What the canary audit says, and the conditions that it says it under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.canary.epsilon import STATED
from spark_audit.audits.canary.ranks import (
    LEVEL,
    Judged,
    Tested,
    changes,
    held_out,
    hits_of,
    p_risen,
    resolved,
    risen_power,
    tied_note,
    trained,
    two_ended,
)
from spark_audit.audits.contract import BASE
from spark_audit.audits.ratio_rows import moved
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
from spark_audit.results import Claim, Contrast, Family, Finding, Row, number
from spark_audit.results.findings import Power
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.chance_ranks import null_mean, null_moments
from spark_audit.stats.intervals import ratio_estimate

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


ALL_COUNT = "not shown once all tests of the report count"


class Said(NamedTuple):
    """What is said of a checkpoint, on which p, and what without its detection."""

    claim: Claim
    text: str
    p: float | None = None
    otherwise: str = ""
    on: Mapping[str, Any] = MappingProxyType({})

    def of(self, name: str, *, groups: int, condition: str = "") -> Finding:
        """The finding; ``groups`` of tests of one checkpoint could have claimed."""
        p = None if self.p is None else min(1.0, groups * self.p)
        said = f"{name}: {condition}{self.otherwise}" if self.otherwise else ""
        family: Family = "exploratory" if p is None else "primary"
        tests = self.on.get("power", ())
        power = [one.model_copy(update={"over": one.over * groups}) for one in tests]
        own = {"p": p, "family": family, "otherwise": said, "power": power}
        return finding(name, self.claim, condition + self.text, **{**self.on, **own})


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


def findings(judged: Judged, tables: Tables, rows: Iterable[Row]) -> list[Finding]:
    """What is said of every checkpoint; ``tables`` and ``rows`` are of the report."""
    limits_of = {
        (row.checkpoint, row.metric, row.of): {"low": row.low, "high": row.high}
        for row in rows
        if row.group == "pooled"
    }
    told = []
    if judged.sensitive and judged.lost:
        sentence = (
            f"Of {', '.join(judged.lost)}: {INSENSITIVE}. The positive control was "
            "found by "
            f"{', '.join(part for part in RANKED if part in judged.sensitive)} only."
        )
        told.append(Finding(audit="canary", claim="not_tested", sentence=sentence))
    for name in dict.fromkeys(trained(judged.frame)["checkpoint"]):
        for one in _of_checkpoint(name, judged, tables):
            place = (one.checkpoint, one.metric, one.of)
            told.append(one.model_copy(update=limits_of.get(place)))
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
    if not known:
        said = f"{INSENSITIVE}. The positive control was found in no checkpoint."
        own = [test.p for test in judged.control if test.checkpoint == name]
        yield Said("not_tested", said, min(own, default=None)).of(name, groups=1)
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
    # Both ends, those in most rows, bounds of epsilon, and held-out canaries.
    groups = 3 + bool(beside.ps)
    for one in _ends(name, ours, judged, beside, n):
        yield one.of(name, groups=groups, condition=condition)
    # The table holds canaries of our own draw only: no condition.
    if bound := _epsilon_words(name, tables["canary_epsilon"], size):
        yield bound.of(name, groups=groups)


def _ends(
    name: str, ours: pd.DataFrame, judged: Judged, beside: _HeldOut, n: int
) -> list[Said]:
    """Both ends of the ranks, against chance and against never-inserted canaries."""
    # Adjusted over all parts, before those that tell nothing are left out.
    known, kinds = set(ours["part"]), judged.kinds[name]
    remembered, suppressed = (
        [test for test in tests if test.part in known]
        for tests in two_ended(judged.frame[judged.frame["checkpoint"] == name])
    )
    told = [_end_words(name, ours, remembered[0], judged.control, n)]
    if told[0].claim == "memory" and "ahead" in kinds:
        # Chance is no null here: only the held-out canaries tell.
        lifted = Said("confounded", LIFTED, min(beside.ps, default=told[0].p))
        told = [] if beside.ahead else [lifted]
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
    n: int,
) -> Said:
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
    nothing = (
        f"memorisation of canaries not detected: {figures}; up to "
        f"{share(first.high)}% ranked first are not excluded (exact 95% limit)."
    )

    null = null_moments(size).exposure_mean
    on: dict[str, Any] = {"unit": "bits", "null": null, "value": best.value}
    on |= {"metric": "exposure_mean", "of": best.part}
    # Of the part with the fewest canaries that can be ranked.
    on["power"] = [Power(test="exposure", n=n, size=size, over=best.over)]
    if best.detected:
        said = f"canaries are REMEMBERED: {figures}, {best.said}."
        without = f"memorisation of canaries {ALL_COUNT}: {figures}, {best.said}."
        return Said("memory", said, best.p, without, on)
    if own:
        said = (
            f"canaries that stand in most rows are REMEMBERED ({own[0].part}: "
            f"mean exposure {number(own[0].value, 2)} bits, {own[0].said}); over all "
            f"canaries {figures}."
        )
        of_few = {"value": own[0].value, "metric": "", "of": "", "power": ()}
        return Said("memory", said, own[0].p, nothing, {**on, **of_few})
    return Said("nothing_shown", nothing, best.p, on=on)


def _rise(
    name: str, frame: pd.DataFrame, control: Sequence[Tested], *, ahead: str
) -> Finding:
    """What a checkpoint adds to a base that does not rank by chance."""
    best = next(test for test in control if test.checkpoint == name)
    parts = trained(frame[frame["part"] == best.part])
    ours, base = (parts[parts["checkpoint"] == one] for one in (name, BASE))
    change, both = changes(ours, base, "exposure")
    rise = ratio_estimate(change, np.ones(len(both)))
    on = {"unit": "bits", "power": risen_power(parts, name, best)}
    figures = f"mean change of exposure {number(rise.value, 2)} bits ({best.part})"
    if best.detected:
        never = held_out(frame[frame["part"] == best.part])
        kind, before = (never[never["checkpoint"] == one] for one in (name, BASE))
        if len(kind) and not ahead and p_risen(kind, before) <= 1 - LEVEL:
            lifted = Said("confounded", f"{figures}, but {LIFTED}", best.p)
            return lifted.of(name, groups=1)
        figures = f"{figures}, of those in most rows {best.said}"
        said = f"canaries are REMEMBERED beyond what the base knows: {figures}."
        without = f"rise of exposure since the base {ALL_COUNT}: {figures}."
        return Said("memory", said, best.p, without).of(name, groups=1)
    said = f"no rise of exposure since the base detected: {figures}."
    return Said("nothing_shown", said, best.p, on=on).of(name, groups=1)


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
        at = self.clear(ahead=ahead)
        return "" if at is None else self.place(at)

    def clear(self, *, ahead: bool) -> int | None:
        """The clearest part with a difference to that side."""
        for at in np.argsort(self.ps, kind="stable"):
            side = self.records[at]["trained_ahead"] > 0.5
            if self.ps[at] <= 1 - LEVEL and side == ahead:
                return int(at)
        return None

    def place(self, at: int) -> str:
        """The mean ranks of one part's two sides."""
        record = self.records[at]
        return (
            f"mean rank {number(record['rank_mean_trained'], 1)} against "
            f"{number(record['rank_mean_held_out'], 1)} ({record['part']}, "
            f"{adjusted_p(self.ps[at], len(self.ps))})"
        )

    def power(self, at: int) -> Power:
        """Of one part's rank-sum test, ranks never trained on being uniform."""
        record = self.records[at]
        n, m, middle = (record[k] for k in ("trained", "held_out", "chance_rank"))
        spread = null_moments(round(2 * middle - 1)).rank_sd
        return Power(
            test="t",
            se=spread * np.sqrt(1 / n + 1 / m),
            least_p=min(1.0, 2 / scipy.special.comb(n + m, n)),
            most=middle - 1,
            over=len(self.ps),
        )


def _streisand_words(
    beside: _HeldOut, low: Tested, best: Tested, *, sunk: bool
) -> list[Said]:
    """True strings against never-inserted ones, at either end."""
    behind = beside.behind
    told: list[Said] = []
    if low.detected and sunk and not behind:
        told.append(Said("confounded", SUNK))
    elif low.detected:
        figures = (
            f"({low.part}: lower-tail exposure {number(low.value, 2)} bits, {low.said})"
        )
        said = (
            f"true canaries stand FURTHER BACK than chance {figures}: "
            "over-suppression tells who was in the data, as memorisation does."
        )
        without = f"over-suppression of true canaries {ALL_COUNT} {figures}."
        told.append(Said("betrays", said, low.p, without))
    differ = "true canaries differ from never-inserted ones, they rank"
    if (at := beside.clear(ahead=True)) is not None:
        place = beside.place(at)
        without = f"that true canaries rank ahead of never-inserted ones is {ALL_COUNT}"
        said = f"{differ} AHEAD: {place}."
        told.append(Said("memory", said, beside.ps[at], f"{without}: {place}."))
    elif behind and not low.detected:
        said = f"{differ} behind, though not behind chance: {behind}."
        told.append(Said("confounded", said))
    # Chance has told more than so few held-out canaries can.
    if told or best.detected:
        return told
    if not beside.ps:
        return [Said("not_tested", "no held-out canaries to compare true ones with.")]
    at = int(np.argmin(beside.ps))
    said = "no difference between true and never-inserted canaries detected: "
    on = {"unit": "ranks", "power": [beside.power(at)]}
    return [Said("nothing_shown", f"{said}{beside.place(at)}.", on=on)]


def _epsilon_words(
    name: str, table: Sequence[Mapping[str, Any]], size: int
) -> Said | None:
    """The bound declared beforehand, and the largest of the others if it is more.

    p is that of guesses as good by chance, among ``size`` candidates.
    """
    here = [r for r in table if r["checkpoint"] == name and r["epsilon_per_record"]]
    told: list[str] = []
    ps: list[float] = []
    largest = 0.0
    for kind in (True, False):
        some = [r for r in here if r["declared"] == kind]
        best = max(some, key=lambda r: r["epsilon_per_record"], default=None)
        if best is None or best["epsilon_per_record"] <= largest:
            continue
        largest = best["epsilon_per_record"]
        by_chance = scipy.stats.binom.sf(
            best["hits"] - 1, best["canaries"], best["k"] / size
        )
        ps.append(float(by_chance) * (1 - LEVEL) / best["significance"])
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
        return None
    said = (
        f"the training run is not eps-DP for eps < {', nor for eps < '.join(told)}: "
        f"pure DP (delta 0), if {STATED}."
    )
    # The declared bounds and the others are two looks.
    p = min(1.0, 2 * min(ps))
    return Said("memory", said, p, f"a lower bound of epsilon is {ALL_COUNT}.")


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
