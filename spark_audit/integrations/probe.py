"""Looks at a model while it is trained: a fixed part of a manifest, the same audits.

Each look is a checkpoint of one report, ``step-N``. So what is claimed of it holds once
corrected over the tests of all looks until then: who looks often enough would else find
something by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.audits import Audit, Matched, find, metric_of
from spark_audit.errors import InputError
from spark_audit.manifest.file import check_fit, limited, original
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import example_of, items_for
from spark_audit.names import ANY, BASE
from spark_audit.pipeline.job import facts_of
from spark_audit.pipeline.lineup import make_plans
from spark_audit.pipeline.run import manifest_facts
from spark_audit.report.assemble import assemble
from spark_audit.report.disclosure import disclosed
from spark_audit.report.gate import Rule, check, parse_rule
from spark_audit.report.tables import main_rows
from spark_audit.results import CheckpointFacts, Finding, Report, Row
from spark_audit.scoring.table import ITEMS, Pass, TokenTable
from spark_audit.terminal.flags import one_of

if TYPE_CHECKING:
    from spark_audit.audits.base import Plan
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.items import AnyItem

PREFIX = "spark_audit/"
"""What names of logged figures begin with."""
Tables = Mapping[Pass, TokenTable]


@dataclass(frozen=True)
class Look:
    """What one look came to.

    Attributes
    ----------
    name
        The checkpoint in the report; ``base`` before the first step.
    report
        Figures of this look, findings of all looks until it.
    tripped
        The rules that it breaks, each with what was found.
    """

    step: int
    name: str
    report: Report = field(repr=False)
    tripped: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """What is said of this look, or of the report as a whole; severest first."""
        own = ("", self.name)
        return [one for one in self.report.findings if one.checkpoint in own]

    @cached_property
    def shared(self) -> Look:
        """The same look, its figures rounded or withheld as in files for others."""
        return replace(self, report=disclosed(self.report))

    def figures(self) -> dict[str, float]:
        """What is logged: names as rules of the gate write them, figures as shared."""
        told = {
            f"{PREFIX}severity": max((f.severity for f in self.findings), default=0)
        }
        for one in self.findings:
            if one.checkpoint:
                key = f"{PREFIX}{one.audit}.severity"
                told[key] = max(told.get(key, 0), one.severity)
        for row in _main(self.shared.report, self.name):
            of = f".{row.of}" if row.of else ""
            for end in ("value", "low", "high"):
                if (value := getattr(row, end)) is not None:
                    told[f"{PREFIX}{row.audit}.{row.metric}{of}.{end}"] = value
        return {key: float(value) for key, value in told.items()}


def _main(report: Report, name: str) -> Iterator[Row]:
    """Main figures of one checkpoint; of those that vary, what stays the same too."""
    for _, declared, rows in main_rows(report):
        yield from (row for row in rows if row.checkpoint == name)
        if declared == ANY:
            own = rows[0].audit, rows[0].metric
            yield from (
                row
                for row in report.results
                if (row.checkpoint, row.group) == (name, "pooled")
                and (row.audit, row.metric) == own
                and row.of in metric_of(*own).headline
            )


class Probe:
    """A fixed part of a manifest, and what was said of a model on it so far.

    Parameters
    ----------
    manifest
        Of the model that training starts from.
    audits
        Their names, or audits with their options; none that looks at series. By its
        name ``matched`` leaves out what no look shows.
    rows
        How many rows are scored at most.
    rules
        Of the gate, without a scope: each is about the look itself.
    preset, seed
        As of :meth:`~spark_audit.audits.Audit.__call__`.

    Raises
    ------
    InputError
        If a name or a rule cannot be used, or the manifest holds nothing for it.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        audits: Sequence[str | Audit],
        rows: int,
        rules: Sequence[str] = (),
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        self._preset, self._seed = preset, seed
        self._audits = {one.name: one for one in map(_audit, audits)}
        self.audits = tuple(self._audits)
        self.rules = [_rule(text, self.audits) for text in rules]
        if not self.audits or rows < 1:
            raise InputError("needs an audit and a row at least", where="probe")
        manifest = original(manifest)
        self.manifest = limited(manifest, chosen(manifest, self._plan(manifest), rows))
        self.plan = self._plan(self.manifest)
        if not self.plan:
            raise InputError(
                f"holds nothing for {', '.join(self.audits)}",
                where=f"manifest {manifest.name!r}",
            )
        self._whole = manifest
        self._said: dict[str, list[Finding]] = {name: [] for name in self.audits}
        self._facts: list[CheckpointFacts] = []

    def _plan(self, manifest: Manifest) -> Plan:
        audits = [*self._audits.values()]
        return make_plans(manifest, audits, preset=self._preset)[1].whole

    def items(self, loaded: Loaded) -> dict[Pass, Sequence[AnyItem]]:
        """What a model reads, by pass.

        Raises
        ------
        InputError
            If the manifest was made for another model or tokenizer.
        """
        check_fit(self._whole, loaded, base_sha256=None)
        return items_for(self.manifest, loaded, self.plan)

    def apart(self, tables: Tables) -> float | None:
        """Mean difference, in nats a token, from the reference of the manifest.

        ``None``: no text was scored whole.
        """
        table = tables.get(Pass())
        if table is None or not len(table):
            return None
        own = [
            table.columns["nll"][table.rows(key)]
            - self.manifest.by_id[key].unll[table.position[table.rows(key)]] / 1e6
            for key in table.ids
        ]
        return float(np.abs(np.concatenate(own)).mean())

    def look(self, loaded: Loaded, step: int, tables: Mapping[str, Tables]) -> Look:
        """Conclude from the tables of the base (where there is one) and of a look.

        Parameters
        ----------
        loaded
            The model that was looked at; ``tables`` has it by its name.
        """
        name = loaded.name
        self._facts.append(facts_of(loaded))
        results = {}
        for key, audit in self._audits.items():
            result = audit(tables, self.manifest, preset=self._preset, seed=self._seed)
            said = self._said[key]
            said += [
                one
                for one in result.findings
                if one.checkpoint == name or (not one.checkpoint and one not in said)
            ]
            results[key] = replace(result, findings=[*said])
        report = assemble(
            results,
            # A probe is no audit: what it lacks passes, what it shows does not.
            status="partial",
            command=[],
            settings={
                "preset": self._preset,
                "seed": self._seed,
                "baseline": None,
                "probe": len(self.manifest.examples),
            },
            manifest=manifest_facts(self.manifest),
            checkpoints=[*self._facts],
        )
        tripped = tuple(
            f"{one.rule}: {one.detail}"
            for one in check(report, self.rules, allow_missing=True)
            if one.checkpoint == name and one.state == "tripped"
        )
        # What the base gives away, this training did not teach it.
        return Look(step, name, report, () if name == BASE else tripped)


def _audit(one: str | Audit) -> Audit:
    if one == Matched.name:
        return Matched(placebo_draws=0, rematched=False)
    audit = find(one)() if isinstance(one, str) else one
    if audit.of_series:
        raise InputError(f"{audit.name} looks at series", where="audits")
    return audit


def _rule(text: str, audits: Sequence[str]) -> Rule:
    rule = parse_rule(text)
    if rule.audit:
        one_of(rule.audit, f"rule {text!r}", audits)
    if rule.checkpoint is not None or rule.but is not None:
        raise InputError(
            "speaks of checkpoints; here it is of the model that is trained",
            where=f"rule {text!r}",
            fix="leave out for and except",
        )
    return rule


def chosen(manifest: Manifest, plan: Plan, rows: int) -> set[str]:
    """Rows of a probe: half of them trained on, those with identifiers first.

    Where the plan asks for candidates, whole sets (canaries, twins) come before, up to
    half of the rows. What is taken of equals is decided by a hash.
    """

    def place(key: object) -> bytes:
        return hashlib.sha256(str(key).encode()).digest()

    asked = {example_of(one, key) for one, keys in plan.items() for key in keys}
    taken: set[str] = set()
    if any(ITEMS[one.kind] == "candidates" for one in plan):
        sets = [[c.example for c in one.contexts] for one in manifest.canaries]
        sets += [[c.example for c in one.contexts] for one in manifest.twins]
        for contexts in sorted(sets, key=place):
            new = {*contexts} - taken
            if new <= asked and len(taken) + len(new) <= rows // 2:
                taken |= new
    pairs = {pair.example for pair in manifest.pairs}
    sides: dict[str, list[str]] = {"train": [], "test": []}
    for one in manifest.examples:
        if one.id in asked and one.id not in taken:
            sides[one.split].append(one.id)
    for side in sides.values():
        side.sort(key=lambda k: (k not in pairs, not manifest.by_id[k].spans, place(k)))
    left = rows - len(taken)
    test = min(len(sides["test"]), max(left // 2, left - len(sides["train"])))
    return taken | {*sides["train"][: left - test], *sides["test"][:test]}
