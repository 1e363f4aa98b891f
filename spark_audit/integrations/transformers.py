"""A callback that audits a model while transformers' Trainer, or TRL's, trains it.

It looks at a fixed part of a manifest. Each look is a checkpoint of one report,
``step-N``. So what is claimed of it holds once corrected over the tests of all looks
until then: who looks often enough would else find something by chance.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import (
    broadcast_object_list,
    extract_model_from_parallel,
    gather_object,
)

from spark_audit.audits import TRAINING_AUDITS, Audit, Matched, find, metric_of
from spark_audit.audits.base import Plan
from spark_audit.checkpoints.loaded import Loaded, live, undisturbed
from spark_audit.errors import InputError, SparkError, one_of
from spark_audit.integrations.trainer_batches import STEPS, BatchReader, Seen
from spark_audit.manifest.file import check_fit, limited, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import example_of, items_for
from spark_audit.names import ANY_NAME, BASE
from spark_audit.pipeline.conclude import manifest_facts
from spark_audit.pipeline.job import facts_of
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.report.assemble import assemble
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.report.glance import main_rows
from spark_audit.results import CheckpointFacts, Finding, Report, Row
from spark_audit.scoring.score import score
from spark_audit.scoring.table import ITEMS, Pass, TokenTable

MAX_TIME_SHARE = 0.02
"""Of the time of training, what looks may take where no interval is given."""
MAX_CALLBACK_ROWS = 256
MAX_BASE_DIFFERENCE = 0.02
"""Nats a token up to which a model is the one that the manifest was built with."""
Scores = dict[Pass, TokenTable]
Part = tuple[str, Any, Mapping[str, Any]]

_log = logging.getLogger("spark_audit")
_Base: Any = transformers.TrainerCallback


@dataclass
class Pace:
    """At which step the next look is due, so that all looks take their share of time.

    Attributes
    ----------
    every
        Steps between looks; ``None``: as many as ``MAX_TIME_SHARE`` asks for.
    start
        The step at which the training began.
    spent, cost
        Seconds that looks took: all, and the last.
    """

    every: int | None
    start: int = 0
    began: float = field(default_factory=time.perf_counter)
    spent: float = 0.0
    cost: float = 0.0

    @property
    def trained(self) -> float:
        """Seconds since the beginning that no look took."""
        return time.perf_counter() - self.began - self.spent

    def wait(self, step: int) -> int:
        """Steps to wait until a look is due; 0: it is due now.

        What the last look of a run will take is kept back.
        """
        if self.every is not None:
            return -step % self.every
        trained = max(self.trained, 1e-9)
        lacking = (self.spent + 2 * self.cost) / MAX_TIME_SHARE - trained
        return max(math.ceil(lacking * (step - self.start) / trained), 0)


class AuditCallback(_Base):  # type: ignore[misc]
    """Look at the model that is trained, at times, and log what an audit would say.

    ``Trainer(..., callbacks=[AuditCallback("manifests/reviews.json")])`` scores a fixed
    part of the manifest with the model as it is, before the first step, at times, and
    after the last one. Main figures go into ``trainer.log``, and so to whatever
    ``report_to`` names; sentences to Python's logger ``spark_audit``; the looks stand
    in ``looks``. Model, random numbers and the order of rows stay as without it.

    Parameters
    ----------
    manifest
        A file, or what ``load_manifest`` gives: of the model that training starts
        from, with its tokenizer.
    every
        Steps between looks; by default so many that looks take at most 2% of the time
        of training, the first and the last, which always are, included.
    audits
        By name, or with their options; ``canary`` and ``twins`` score candidates and
        take longer.
    rows
        Rows of the manifest that are scored, at most.
    fail_if
        Rules as those of ``spark-audit gate``, without ``for`` and ``except``; one that
        is broken ends the training in order, and stands in :attr:`tripped`.
    tokenizer
        By default the trainer's ``processing_class``.
    preset, seed
        Of the audits.

    Attributes
    ----------
    looks
        What each look came to, in order.
    batches
        What the trainer's own first batches hold: which identifiers have loss, whether
        rows are packed (:class:`~spark_audit.integrations.trainer_batches.Seen`).
        ``None`` before training.

    Raises
    ------
    SparkError
        When training begins, if manifest and model do not fit; later only where a rule
        is given that could then not be judged. What fails else is logged as a warning.
    """

    def __init__(
        self,
        manifest: str | Path | Manifest,
        *,
        every: int | None = None,
        audits: str | Audit | Sequence[str | Audit] = TRAINING_AUDITS,
        rows: int = MAX_CALLBACK_ROWS,
        fail_if: str | Sequence[str] = (),
        tokenizer: Any = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        if every is not None and (type(every) is not int or every < 1):
            raise InputError("is no number of steps", where=f"every={every!r}")
        self._every, self._tokenizer, self._seed = every, tokenizer, seed
        self._preset, self._audits = preset, dict[str, Audit]()
        for one in [audits] if isinstance(audits, str | Audit) else audits:
            if one == Matched.name:  # what no look shows is left out
                one = Matched(placebo_draws=0, rematched=False)
            audit = find(one)() if isinstance(one, str) else one
            if audit.of_series:
                raise InputError(f"{audit.name} looks at series", where="audits")
            self._audits[audit.name] = audit
        texts = [fail_if] if isinstance(fail_if, str) else fail_if
        self._rules = [*map(parse_rule, texts)]
        for text, rule in zip(texts, self._rules, strict=True):
            if rule.audit:
                one_of(rule.audit, f"rule {text!r}", [*self._audits])
            if rule.checkpoint is not None or rule.but is not None:
                what = "speaks of checkpoints; here it is of the model that is trained"
                fix = "leave out for and except"
                raise InputError(what, where=f"rule {text!r}", fix=fix)
        if not self._audits or rows < 1:
            raise InputError("needs an audit and a row at least", where="AuditCallback")
        whole = self._whole = original(load_manifest(manifest))
        self.manifest = limited(whole, chosen(whole, self._plan(whole), rows))
        self.plan = self._plan(self.manifest)
        if not self.plan:
            what = f"holds nothing for {', '.join(self._audits)}"
            raise InputError(what, where=f"manifest {whole.name!r}")
        self.looks: list[AuditLook] = []
        self._due = 0
        self._reader: BatchReader | None = None

    def _plan(self, manifest: Manifest) -> Plan:
        audits = [*self._audits.values()]
        return union(make_plans(manifest, audits, preset=self._preset)[1])

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check that manifest and model fit; look at the base."""
        self.looks, self._facts = [], list[CheckpointFacts]()
        self._said: dict[str, list[Finding]] = {name: [] for name in self._audits}
        self._pace = Pace(self._every, state.global_step)
        model, tokenizer = given["model"], self._tokenizer or given["processing_class"]
        if getattr(args, "fsdp", None):
            what, fix = "are shards under FSDP", "audit the checkpoints that are saved"
            raise InputError(what, where="AuditCallback: parameters", fix=fix)
        self._given, started = (model, tokenizer), _now()
        with _alone(model) as own:
            loaded = live(own, tokenizer, name=BASE)
            check_fit(self._whole, loaded, base_sha256=None)
            self._items = items_for(self.manifest, loaded, self.plan)
            self._base = self._scored_base(own, tokenizer, fresh=not state.global_step)
            self._reader = BatchReader.of(self._whole, loaded)
        if state.global_step:
            self._looked(state.global_step, started)
        else:
            self._look(state, control, started)
        # A hook would be compiled with the model.
        if not getattr(args, "torch_compile", False):
            self._reader.attach(extract_model_from_parallel(model))
        self._steps_read = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Look, where that is due, and after the last step."""
        step = state.global_step
        self._steps_read += 1
        if self._steps_read >= min(STEPS, state.max_steps):
            self._tell_batches()
        if step >= state.max_steps:
            self._look(state, control)
        elif step >= self._due:
            (wait,) = broadcast_object_list([self._pace.wait(step)])
            if wait:
                self._due = step + wait
            else:
                self._look(state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Look once more where training ended before its last step."""
        self._tell_batches()
        looked = self.looks and self.looks[-1].step == state.global_step
        if not looked and not args.load_best_model_at_end:
            self._look(state, control)

    @property
    def batches(self) -> Seen | None:
        """What was seen in the trainer's own batches, of this process."""
        return None if self._reader is None else self._reader.seen

    def _tell_batches(self) -> None:
        """Say once what the trainer's first batches hold; read no further ones."""
        reader = self._reader
        if reader is None or not reader.is_attached:
            return
        reader.detach()
        if PartialState().is_main_process:
            for sentence in reader.seen.sentences():
                _log.warning("%s", sentence)

    def _looked(self, step: int, started: float) -> float:
        """Count what was just done, and say when to look again; seconds it took."""
        # Of the first process, so that all decide alike.
        (self._pace.cost,) = broadcast_object_list([_now() - started])
        self._pace.spent += self._pace.cost
        self._due = step + 1
        return self._pace.cost

    def _look(self, state: Any, control: Any, started: float | None = None) -> None:
        """Score, conclude, log; end the training where a rule says so."""
        step, (model, tokenizer) = state.global_step, self._given
        started = _now() if started is None else started
        name = BASE if self._base is not None and not step else f"step-{step}"
        try:
            with _alone(model) as own:
                loaded = live(own, tokenizer, name=name)
                tables = {} if self._base is None else {BASE: self._base}
                if name != BASE:
                    tables[name] = self._scores(loaded)
                look = _together(
                    lambda: self._concluded(loaded, step, tables), first=True
                )
        except SparkError as error:
            if self._rules:
                raise
            _log.warning("no look at step %d: %s", step, error)
            look = None
        seconds = self._looked(step, started)
        if look is None:
            return
        self.looks.append(look)
        self._tell(look, control, seconds, last=step >= state.max_steps)
        if look.tripped:
            control.should_training_stop = True

    @property
    def tripped(self) -> list[str]:
        """Rules that were broken, each with its look: what a script ends on."""
        return [f"{one.name}: {text}" for one in self.looks for text in one.tripped]

    def _tell(
        self, look: AuditLook, control: Any, seconds: float, *, last: bool
    ) -> None:
        told = look.figures() | {f"{LOG_PREFIX}seconds": seconds}
        if look.step:
            told[f"{LOG_PREFIX}share_of_time"] = self._pace.spent / self._pace.trained
        if self._rules:
            told[f"{LOG_PREFIX}tripped"] = float(len(look.tripped))
        # Logging takes away that the trainer was about to log itself.
        due = control.should_log
        _tell_trainer(told)
        control.should_log = due
        # Logs are sent to services: figures and sentences are those of shared files.
        for one in look.shared.findings:
            level = logging.WARNING if one.detected else logging.INFO
            _log.log(level, "%s", one.sentence)
        for text in look.tripped:
            late = "; training has ended" if last else ""
            _log.warning("%s: rule tripped: %s%s", look.name, text, late)

    def _scored_base(self, model: Any, tokenizer: Any, *, fresh: bool) -> Scores | None:
        """Scores of the manifest's base, if the model shows it; else a warning.

        With its adapter off a model is its base, but where the adapter's start has
        changed that (PiSSA); before the first step it is so as it stands.
        """
        states = [model.disable_adapter] if hasattr(model, "disable_adapter") else []
        apart: list[float] = []
        for activate in (*states, *([nullcontext] if fresh else [])):
            tables = self._scores(live(model, tokenizer, name=BASE, activate=activate))
            table = tables.get(Pass())
            if table is None or not len(table):  # no text is scored whole
                return tables
            known = [
                self.manifest.by_id[key].unll[table.position[table.rows(key)]] / 1e6
                for key in table.ids
            ]
            apart_by = np.abs(table.columns["nll"] - np.concatenate(known))
            distance = float(apart_by.mean())
            if distance <= MAX_BASE_DIFFERENCE:
                return tables
            apart.append(distance)
        why = (
            f"{min(apart):.3g} nats per token away" if apart else "training was resumed"
        )
        _log.warning("the manifest's base cannot be looked at here: %s", why)
        return None

    def _concluded(
        self, loaded: Loaded, step: int, tables: Mapping[str, Scores]
    ) -> AuditLook:
        """What is said from the tables of the base (where there is one) and of a look.

        Parameters
        ----------
        loaded
            The model that was looked at; ``tables`` has it by its name.
        """
        name: str = loaded.name
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
            for one in check(report, self._rules, allow_missing=True)
            if one.checkpoint == name and one.state == "tripped"
        )
        # What the base gives away, this training did not teach it.
        return AuditLook(step, name, report, () if name == BASE else tripped)

    def _scores(self, loaded: Loaded) -> Scores:
        """Tables of all passes; processes with the same model score a part each."""
        state = PartialState()
        mine = slice(state.process_index, None, state.num_processes)

        def own() -> list[list[Part]]:
            return [
                [*score(loaded, items[mine], passes=[kind])[kind].items()]
                for kind, items in self._items.items()
            ]

        shares = _together(own)
        return {
            kind: TokenTable.from_items(
                [part for share in shares for part in share[i]], kind=kind.kind
            )
            for i, kind in enumerate(self._items)
        }


@contextmanager
def _alone(model: Any) -> Iterator[Any]:
    """The model without what wraps it, and as it was afterwards."""
    own = extract_model_from_parallel(model, keep_torch_compile=False)
    with undisturbed(own):
        yield own


def _now() -> float:
    """Seconds; what a GPU was still asked to do counts to what was before."""
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.synchronize()
    return time.perf_counter()


def _tell_trainer(told: dict[str, float]) -> None:
    """Hand figures to the trainer's ``log``; TRL's, which clears its own, is left out.

    A trainer hands out no self: it is looked for among those that called.
    """
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, transformers.Trainer):
            kinds = [kind for kind in type(trainer).__mro__ if "log" in vars(kind)]
            own: Any = next(k for k in kinds if not k.__module__.startswith("trl."))
            own.log(trainer, told)
            return
        frame = frame.f_back
    _log.info("%s", told)


# --- several processes ----------------------------------------------------------------


def _together(work: Callable[[], object], *, first: bool = False) -> Any:
    """What all processes come to, as a list; with ``first`` what the first does.

    An error of one is raised by all: none waits for another that has given up.
    """
    done: Any = None
    if not first or PartialState().is_main_process:
        try:
            done = work()
        except SparkError as error:
            done = error
    found = (broadcast_object_list if first else gather_object)([done])
    for one in found:
        if isinstance(one, SparkError):
            raise one
    return found[0] if first else found


# --- a look ---------------------------------------------------------------------------

LOG_PREFIX = "spark_audit/"
"""What names of logged figures begin with."""


@dataclass(frozen=True)
class AuditLook:
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
    def shared(self) -> AuditLook:
        """The same look, its figures rounded or withheld as in files for others."""
        return replace(self, report=disclosed(self.report))

    def figures(self) -> dict[str, float]:
        """What is logged: names as rules of the gate write them, figures as shared."""
        told = {f"{LOG_PREFIX}severity": 0.0}
        for one in self.findings:
            for of in ("", f"{one.audit}." if one.checkpoint else ""):
                key = f"{LOG_PREFIX}{of}severity"
                told[key] = max(told.get(key, 0.0), float(one.severity))
        report = self.shared.report
        mine = [one for one in report.results if one.checkpoint == self.name]
        shown: list[Row] = []
        for _, declared, rows in main_rows(report):
            shown += (row for row in rows if row.checkpoint == self.name)
            if declared == ANY_NAME:  # of those that vary, what stays the same too
                own = rows[0].audit, rows[0].metric
                fixed = metric_of(*own).headline
                alike = [one for one in mine if (one.audit, one.metric) == own]
                shown += (o for o in alike if o.group == "pooled" and o.of in fixed)
        for row in shown:
            of = f".{row.of}" if row.of else ""
            for end in ("value", "low", "high"):
                if (value := getattr(row, end)) is not None:
                    told[f"{LOG_PREFIX}{row.audit}.{row.metric}{of}.{end}"] = float(
                        value
                    )
        return told


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
    left = [o for o in manifest.examples if o.id in asked and o.id not in taken]
    left.sort(key=lambda one: (one.id not in pairs, not one.spans, place(one.id)))
    train, test = (
        [o.id for o in left if o.split == side] for side in ("train", "test")
    )
    room = rows - len(taken)
    held_out = min(len(test), max(room // 2, room - len(train)))
    return taken | {*train[: room - held_out], *test[:held_out]}
