"""Audit a model while transformers' Trainer, or TRL's, trains it.

The callback looks at a fixed part of a manifest. Each look is a checkpoint ``step-N``
of one report. A claim about it must hold after a correction over the tests of all looks
so far: otherwise frequent looks would find something by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, extract_model_from_parallel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from spark_audit.arguments import checked_call
from spark_audit.audits import TRAINING_AUDITS
from spark_audit.audits.base import Plan
from spark_audit.audits.setup_guards import failed_at_look
from spark_audit.audits.setup_units import identifiers_of_rows
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.given import GivenCheckpoint, check_open
from spark_audit.checkpoints.in_memory import in_memory, undisturbed, unwrapped
from spark_audit.errors import InputError, SparkError
from spark_audit.integrations.given_base import open_given_base
from spark_audit.integrations.history import (
    LookCost,
    history_of,
    looks_html,
    summary_of,
)
from spark_audit.integrations.look import LOG_PREFIX, AuditLook
from spark_audit.integrations.look_settings import (
    audits_by_name,
    rules_of,
    tripped_rules,
)
from spark_audit.integrations.pace import Pace, seconds_now
from spark_audit.integrations.probe import probe_rows, with_plain_text
from spark_audit.integrations.processes import result_of_first
from spark_audit.integrations.shared_scoring import (
    PassScores,
    ScoredBase,
    score_together,
)
from spark_audit.integrations.trainer_batches import STEPS, BatchReader, Seen
from spark_audit.integrations.trainer_log import log_by_trainer, log_sentence
from spark_audit.manifest.file import check_fit, original, read_manifest, restricted_to
from spark_audit.manifest.grown_vocabulary import over_reference_tokens
from spark_audit.manifest.reference_distance import (
    MAX_BASE_DIFFERENCE,
    distance_from_manifest,
    is_reference,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.names import BASE
from spark_audit.pipeline.conclude import manifest_facts
from spark_audit.pipeline.job import facts_of
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.pipeline.request import GivenAudits
from spark_audit.report.assemble import assemble
from spark_audit.results import CheckpointFacts, Finding, Guard
from spark_audit.scoring.table import Pass

MAX_CALLBACK_ROWS = 256
"""Rows of the manifest that a look scores unless the user says another number."""


class AuditCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Look at the model at intervals during its training, and log what an audit says.

    ``Trainer(..., callbacks=[AuditCallback("manifests/reviews.json")])`` scores a fixed
    part of the manifest with the current model: before the first step, at intervals,
    and after the last step. The main figures go to ``trainer.log``, and so to the
    services in ``report_to``. Sentences go to Python's logger ``spark_audit``, and the
    looks to ``looks``. The model, random numbers and the order of rows are not
    affected.

    Parameters
    ----------
    manifest
        A file, or a result of ``read_manifest``, made with the model from which
        training starts and with its tokenizer.
    every
        Steps between looks. By default, all looks take at most 2% of the training time,
        including the first and the last one, which always happen.
    audits
        Names or classes of audits, or audits with their options. ``canary`` and
        ``twins`` score candidates and take longer.
    rows
        Most rows of the manifest that are scored.
    fail_if
        Rules as for ``spark-audit gate``, without ``for`` and ``except``. A broken rule
        ends the training in an orderly way and is listed in :attr:`tripped`.
    tokenizer
        Default: the trainer's ``processing_class``.
    base
        The base of the manifest, with which looks are compared: a path, an open
        checkpoint, or a model in memory. Needed if training begins with other full
        weights, such as those that a method is to make forget. Default: the model with
        its adapter off, or as it stands before the first step.
    preset, seed
        Preset and seed of the audits.

    Attributes
    ----------
    looks, costs
        The results of all looks in order, and the time that each took.
    batches
        Counts from the trainer's own first batches: which identifiers have loss, and
        whether rows are packed
        (:class:`~spark_audit.integrations.trainer_batches.Seen`). ``None`` before
        training.

    Raises
    ------
    SparkError
        At the beginning of training, if manifest and model do not fit. Later, only if
        an error prevents the check of a rule. All other failures are logged as
        warnings.
    """

    @checked_call
    def __init__(
        self,
        manifest: str | Path | Manifest,
        *,
        every: int | None = None,
        audits: GivenAudits = TRAINING_AUDITS,
        rows: int = MAX_CALLBACK_ROWS,
        fail_if: str | Sequence[str] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
        base: GivenCheckpoint | None = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> None:
        if base is not None and not isinstance(base, str | Path):
            check_open(base, "base")
        if every is not None and every < 1:
            raise InputError(
                "is no number of steps",
                where=f"every={every!r}",
                fix="give a whole number of 1 or more, or leave it out",
            )
        self._every = every
        self._given_tokenizer = tokenizer
        self._given_base = base
        self.seed = seed
        self._preset = preset
        self.audits = audits_by_name(audits)
        self._rules = rules_of(
            [fail_if] if isinstance(fail_if, str) else fail_if, self.audits
        )
        if not self.audits or rows < 1:
            raise InputError(
                "needs an audit and a row at least",
                where="AuditCallback",
                fix="give audits=['matched'] and rows=256, or leave them out",
            )

        full_manifest = original(read_manifest(manifest))
        self._full_manifest = full_manifest
        row_ids = probe_rows(full_manifest, self._plan(full_manifest), rows)
        self.manifest = restricted_to(full_manifest, row_ids)
        self.plan = with_plain_text(self._plan(self.manifest), self.manifest)
        if not self.plan:
            raise InputError(
                f"holds nothing for {', '.join(self.audits)}",
                where=f"manifest {full_manifest.name!r}",
                fix="name other audits, or build the manifest from more rows",
            )

        self.looks: list[AuditLook] = []
        self.costs: list[LookCost] = []

        # Scores of the base, and whether training begins with its weights.
        self._base: PassScores | None = None
        self._begins_at_base = False
        # No look is due before this step.
        self._due_step = 0
        self._reader: BatchReader | None = None

    def _plan(self, manifest: Manifest) -> Plan:
        """Return the passes and items that the audits need."""
        audits = [*self.audits.values()]
        return union(make_plans(manifest, audits, preset=self._preset)[1])

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: PreTrainedModel,
        processing_class: PreTrainedTokenizerBase | None = None,
        **unused: object,
    ) -> None:
        """Check that manifest and model fit, and look at the base."""
        if getattr(args, "fsdp", None):
            raise InputError(
                "are shards under FSDP",
                where="AuditCallback: parameters",
                fix="audit the checkpoints that are saved",
            )

        self.begin(
            model, self._given_tokenizer or processing_class, step=state.global_step
        )
        # torch.compile would compile a hook with the model.
        if self._reader is not None and not getattr(args, "torch_compile", False):
            self._reader.attach(extract_model_from_parallel(model))

    def begin(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        step: int = 0,
    ) -> None:
        """Check that manifest and model fit, score the base, and look at the start.

        Parameters
        ----------
        step
            The step at which training begins; above 0 it was resumed.

        Raises
        ------
        SparkError
            If manifest and model do not fit.
        """
        self.looks = []
        self.costs = []
        # Facts of the base and of all looks, findings of all looks by audit, and the
        # setup guards that failed at any look.
        self._facts: list[CheckpointFacts] = []
        self._findings: dict[str, list[Finding]] = {name: [] for name in self.audits}
        self._setup_guards: list[Guard] = []
        # Names of the setup guards that failed at the last look.
        self._faults_at_last_look: set[str] = set()
        # The whole manifest knows which held-out identifiers stand in trained rows.
        self._identifiers = identifiers_of_rows(self._full_manifest)

        self._pace = Pace(self._every, step)
        self._model = model
        self._used_tokenizer = tokenizer
        # Steps of this process whose batches were read.
        self._steps_read = 0

        started = seconds_now()
        is_fresh = not step
        with _unwrapped(model) as inner:
            loaded = in_memory(inner, self._used_tokenizer, name=BASE, is_hashed=False)
            loaded = over_reference_tokens(self._full_manifest, loaded)
            check_fit(self._full_manifest, loaded, base_sha256=None)
            # Pass -> the items that each look scores; they do not change in training.
            self._items = items_for(self.manifest, loaded, self.plan)
            self._score_base(inner, loaded, is_fresh=is_fresh)
            self._reader = BatchReader.of(self._full_manifest, loaded)

        if is_fresh:
            self.look_at(step, started=started)
        else:
            # The start of a resumed training is not a look: the earlier run made it.
            self._count_look(step, started)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **unused: object,
    ) -> None:
        """Look if it is due, and after the last step."""
        step = state.global_step
        self._steps_read += 1
        if self._steps_read >= min(STEPS, state.max_steps):
            self._report_batches()

        if step >= state.max_steps:
            self._look(state, control)
        elif step >= self._due_step:
            # The first process decides, so that all look at the same steps.
            (n_steps_to_wait,) = broadcast_object_list([self._pace.wait(step)])
            if n_steps_to_wait:
                self._due_step = step + n_steps_to_wait
            else:
                self._look(state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **unused: object,
    ) -> None:
        """Look once more if training ended before its last step."""
        self._report_batches()

        # The weights that are loaded at the end may be those of an earlier step.
        has_looked = self.looks and self.looks[-1].step == state.global_step
        if not has_looked and not args.load_best_model_at_end:
            self._look(state, control)

    @property
    def has_base(self) -> bool:
        """Return whether looks are compared with the base: it could be scored."""
        return self._base is not None

    @property
    def batches(self) -> Seen | None:
        """Return the counts from this process's own batches."""
        return None if self._reader is None else self._reader.seen

    def _report_batches(self) -> None:
        """Report the contents of the trainer's first batches once, and stop reading."""
        reader = self._reader
        if reader is None or not reader.is_attached:
            return

        reader.detach()
        # Every process reads its own batches, but only one of them reports.
        if PartialState().is_main_process:
            for sentence in reader.seen.sentences():
                log_sentence(sentence)

    def _count_look(self, step: int, started: float) -> float:
        """Add the seconds since ``started`` to the cost of looks; return them."""
        # The first process decides, so that all processes act alike.
        (self._pace.cost,) = broadcast_object_list([seconds_now() - started])
        self._pace.spent += self._pace.cost
        self._due_step = step + 1
        return self._pace.cost

    def _look(self, state: TrainerState, control: TrainerControl) -> None:
        """Look at a trainer's step; end the training if a rule is broken."""
        is_last = state.global_step >= state.max_steps
        # Logging would cancel the log that the trainer itself was about to write.
        should_log = control.should_log
        look = self.look_at(state.global_step, is_last=is_last)
        control.should_log = should_log
        if look is not None and look.tripped:
            control.should_training_stop = True

    def look_at(
        self, step: int, *, started: float | None = None, is_last: bool = False
    ) -> AuditLook | None:
        """Score the model as it stands, conclude and log.

        Parameters
        ----------
        started
            When this look began, if before the call.
        is_last
            Whether training has ended.

        Returns
        -------
        AuditLook or None
            ``None``: it failed, which is logged as a warning.

        Raises
        ------
        SparkError
            If an error prevents the check of a rule.
        """
        started = seconds_now() if started is None else started
        # The first look is of the base itself, if training begins with its weights.
        name = BASE if self._begins_at_base and not step else f"step-{step}"
        look: AuditLook | None = None
        try:
            with _unwrapped(self._model) as inner:
                loaded = in_memory(
                    inner, self._used_tokenizer, name=name, is_hashed=False
                )
                loaded = over_reference_tokens(self._full_manifest, loaded)
                tables = {} if self._base is None else {BASE: self._base}
                if name != BASE:
                    tables[name] = score_together(loaded, self._items)
                # All processes have all scores, so that one concludes for all.
                look = result_of_first(lambda: self._conclude(loaded, step, tables))
        except SparkError as error:
            # A rule that cannot be checked must not let the training pass.
            if self._rules:
                raise
            log_sentence(f"no look at step {step}: {error}")

        seconds = self._count_look(step, started)
        if look is None:
            return None

        self.looks.append(look)
        self.costs.append(LookCost(seconds, self._pace.share_of_time))
        self._log_look(look, seconds, is_last=is_last)
        return look

    @property
    def history(self) -> pd.DataFrame:
        """Return the figures of all looks, one row a figure (see ``history_of``)."""
        return history_of(self.looks, self.costs)

    def __repr__(self) -> str:
        return f"AuditCallback({summary_of(self.looks, self.costs)})"

    def _repr_html_(self) -> str:
        """Return the verdict of each look as a notebook shows it."""
        return looks_html("AuditCallback", self.looks, self.costs)

    @property
    def tripped(self) -> list[str]:
        """Return the broken rules, each with its look, for the exit of a script."""
        return [f"{look.name}: {text}" for look in self.looks for text in look.tripped]

    def _log_look(self, look: AuditLook, seconds: float, *, is_last: bool) -> None:
        """Log the figures of a look, its findings, and the rules that it breaks."""
        figures = look.figures() | {f"{LOG_PREFIX}seconds": seconds}
        if look.step:
            figures[f"{LOG_PREFIX}share_of_time"] = self.costs[-1].share_of_time

        if self._rules:
            figures[f"{LOG_PREFIX}tripped"] = float(len(look.tripped))

        log_by_trainer(figures)

        # Logs go to services, so they contain only what shared files may contain.
        self._log_faults(look.shared.faults, name=look.name)
        for finding in look.shared.findings:
            log_sentence(finding.sentence, is_warning=finding.detected)
        for text in look.tripped:
            late = "; training has ended" if is_last else ""
            log_sentence(f"{look.name}: rule tripped: {text}{late}")

    def _log_faults(self, faults: Sequence[Guard], *, name: str) -> None:
        """Log the setup guards that fail at a look and did not at the one before.

        Parameters
        ----------
        name
            The checkpoint of the look.
        """
        for fault in faults:
            if fault.name not in self._faults_at_last_look:
                # Leaks that the fault cannot cause stay claims (``REMAINS``).
                log_sentence(
                    f"{name}: {fault.name}: {fault.detail} Figures with "
                    f"{fault.name} in voided_by are void."
                )
        self._faults_at_last_look = {fault.name for fault in faults}

    def _score_base(
        self, model: PreTrainedModel, loaded: Checkpoint, *, is_fresh: bool
    ) -> None:
        """Score the base, and find out whether training begins with its weights.

        Parameters
        ----------
        loaded
            The model as it stands, as a checkpoint.
        is_fresh
            Whether training begins, instead of being resumed.
        """
        scored_base: ScoredBase | None
        if self._given_base is not None:
            base = open_given_base(self._given_base, self._full_manifest, model=loaded)
            scored_base = ScoredBase(base, score_together(base, self._items))
        else:
            scored_base = self._base_of_model(model, is_fresh=is_fresh)
        if scored_base is None:
            self._base = None
            self._begins_at_base = False
            return

        self._base = scored_base.tables
        # The first process decides, so that all name the first look alike.
        self._begins_at_base = is_fresh and result_of_first(
            lambda: is_reference(self.manifest, loaded)
        )
        # If the first look is of the base itself, it adds these facts.
        if not self._begins_at_base:
            self._facts.append(facts_of(scored_base.checkpoint))

    def _base_of_model(
        self, model: PreTrainedModel, *, is_fresh: bool
    ) -> ScoredBase | None:
        """Score the manifest's base if the model itself can show it; else warn.

        With its adapter off a model is its base, but where the adapter's start has
        changed that (PiSSA); before the first step it is so as it stands.
        """
        states: list[Callable[[], AbstractContextManager[None]]] = []
        if hasattr(model, "disable_adapter"):
            states.append(model.disable_adapter)
        if is_fresh:
            states.append(nullcontext)

        distances: list[float] = []  # nats a token, one for each state
        for activate in states:
            base = in_memory(
                model,
                self._used_tokenizer,
                name=BASE,
                activate=activate,
                is_hashed=False,
            )
            base = over_reference_tokens(self._full_manifest, base)
            tables = score_together(base, self._items)
            table = tables.get(Pass())
            if table is None or not len(table):  # no text is scored whole
                return ScoredBase(base, tables)
            distance = distance_from_manifest(self.manifest, table)
            if distance <= MAX_BASE_DIFFERENCE:
                return ScoredBase(base, tables)
            distances.append(distance)

        # Without the base there is no change to measure, and looks say less.
        reason = "training was resumed"
        if distances:
            reason = f"the model differs from it by {min(distances):.3g} nats per token"
        log_sentence(f"the manifest's base cannot be looked at here: {reason}")
        return None

    def _conclude(
        self, loaded: Checkpoint, step: int, tables: Mapping[str, PassScores]
    ) -> AuditLook:
        """Conclude from the scores of a look and of the base, if there is one.

        Parameters
        ----------
        loaded
            The audited model; ``tables`` holds its scores under its name.
        """
        name = loaded.name
        self._facts.append(facts_of(loaded))

        # Findings of earlier looks stay, with a correction over all looks.
        results = {}
        for audit_name, audit in self.audits.items():
            result = audit(tables, self.manifest, preset=self._preset, seed=self.seed)
            findings = self._findings[audit_name]
            findings += [
                finding
                for finding in result.findings
                if finding.checkpoint == name
                or (not finding.checkpoint and finding not in findings)
            ]
            results[audit_name] = replace(result, findings=[*findings])

        # Guards on earlier looks stay, too, or their void findings would count again.
        self._setup_guards += [
            failed
            for failed in failed_at_look(
                tables, self.manifest, name=name, identifiers=self._identifiers
            )
            if failed not in self._setup_guards
        ]

        # The report of a look has figures of this look, and checkpoints of all looks.
        report = assemble(
            results,
            # A probe is not a full audit: its claims count, but nothing passes by it.
            status="partial",
            command=[],
            settings={
                "preset": self._preset,
                "seed": self.seed,
                "baseline": None,
                "probe": len(self.manifest.examples),
            },
            manifest=manifest_facts(self.manifest),
            checkpoints=[*self._facts],
            guards=self._setup_guards,
        )
        # What the base reveals was not learned in this training, so rules do not apply.
        if name == BASE:
            return AuditLook(step, name, report)

        return AuditLook(step, name, report, tripped_rules(report, self._rules, name))


@contextmanager
def _unwrapped(model: torch.nn.Module) -> Iterator[PreTrainedModel]:
    """Yield the model without its wrappers, and restore its mode afterwards."""
    inner = unwrapped(model)
    with undisturbed(inner):
        yield inner
