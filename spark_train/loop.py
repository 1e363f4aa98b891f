"""The training loop of all methods.

It knows no method by name, but only six hooks. A method's **plan** turns the stream of
tasks into phases. Each phase has a **start**, a **choice** of the batch, a **loss** (of
the batch, and perhaps of the weights: ``penalty``), a look at the **gradients** before
the step, and an **end**.

A further hook is a field of :class:`Phase` whose default does nothing, and a call in
:func:`run_phase`. A further figure of a step goes into :func:`step_record`, or comes
from the method by ``gradients`` or ``Step.facts``.

In shapes, ``P`` is the number of all trained weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_audit.provenance import seed_for
from spark_train.processes import n_processes, rank, share, summed_over_processes
from spark_train.student import Student
from spark_train.training_rows import TrainRow, pieces

Rows: TypeAlias = Mapping[str, Sequence[TrainRow]]
"""Role of rows (``task``, ``replay``, ``correction``) -> the rows."""

Sums = dict[str, Tensor]
"""Term of the loss -> its sum over positions, a scalar with a gradient."""

StepRecord: TypeAlias = dict[str, float | str]
"""Loss, terms, counts and settings of a step, by the names of ``metrics.jsonl``."""

PARTS_BETWEEN_PROBES = 4
"""A phase's probe is read before its first step, and after each of so many parts."""

AfterStep: TypeAlias = Callable[[StepRecord, Callable[[], "PhaseState"]], None]
"""Called after a step with its record and a function that returns the state to save.

The state is a function, because making it copies all weights."""


@dataclass(frozen=True)
class Term:
    """A term of the loss: ``weight`` times the mean over ``count`` positions.

    A term without positions is 0. ``count`` is that of the whole batch, over all of its
    parts and processes.
    """

    count: int
    weight: float = 1.0


@dataclass(frozen=True)
class Step:
    """The batch of a step over all processes.

    Attributes
    ----------
    rows
        Rows by role.
    facts
        Counts for the record of the step, beside the terms.
    """

    rows: Rows
    facts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """Rows whose terms are recorded now and then, without a gradient.

    Every step reads other rows, so that the losses of two steps do not compare. A probe
    has the same rows each time. Nothing of the training depends on it.

    Attributes
    ----------
    rows
        Rows by role.
    terms, loss
        As those of the phase; terms of weight 0 are only recorded.
    """

    rows: Rows
    terms: Callable[[Rows], Mapping[str, Term]]
    loss: Callable[[str, Sequence[TrainRow]], Sums]


@dataclass(frozen=True)
class Phase:
    """One stretch of training, which ends in a saved adapter.

    Attributes
    ----------
    stage, part
        ``2-yelp`` and ``task`` (learning it) or ``priv`` (correction after it).
    steps, lr, cosine
        Optimizer steps with a fresh AdamW; ``lr`` falls by half a cosine, or stays.
    choose
        ``choose(step)`` returns the batch, and depends only on the step, so that a run
        can resume.
    terms
        ``terms(rows)`` returns the terms of a batch by their names, from its rows
        alone.
    loss
        ``loss(role, rows)`` returns term -> *sum* over the rows' positions. Sums over
        the parts of a batch add up to that of the batch.
    penalty
        ``penalty()`` returns term -> weighted value, for the part of the loss that
        depends only on the weights. It is computed once per step, alike in all
        processes.
    start, end
        Called before and after the steps, without dropout. At the start the weights are
        those of the previous phase.
    gradients
        ``gradients(step)``: may change what the optimizer sees; what it returns stands
        in the record of the step. All processes see the same gradients, and must leave
        the same; they are clipped afterwards.
    expected_rows
        How many rows of the current task a step is expected to have; read by DP-SGD
        alone. It takes the gradient of each row's own ``terms``, with nothing of
        another row in it, and divides their sum by this number.
    weight_ratios
        Term -> ``(a, b)``, read by DP-SGD alone: the term's weight in a row's own loss
        is multiplied by a / b, where ``a`` is ``expected_rows`` and ``b`` the expected
        number of rows that have the term. With these the expected gradient is that of
        the step's loss.
    sampling_rates
        Task -> how likely one of its rows is in a step's batch, where batches are drawn
        by Poisson sampling; ``None``: they are drawn otherwise.
    collect
        ``collect(step, rows, terms, clock)`` replaces the batch's own gradient on the
        weights, alike in all processes. It returns each term's sum, and further entries
        for the record.
    tasks
        Tasks whose accuracy is measured after the stage; empty: the tasks of the order
        up to the stage's number.
    probe
        What is recorded of the same rows now and then; ``None``: nothing.
    """

    stage: str
    part: str
    steps: int
    lr: float
    choose: Callable[[int], Step]
    terms: Callable[[Rows], Mapping[str, Term]]
    loss: Callable[[str, Sequence[TrainRow]], Sums]
    cosine: bool = True
    start: Callable[[], None] = lambda: None
    penalty: Callable[[], Sums] | None = None
    gradients: Callable[[int], Mapping[str, float] | None] = lambda step: None
    end: Callable[[], None] = lambda: None
    expected_rows: float = 0.0
    weight_ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sampling_rates: Mapping[str, float] | None = None
    collect: (
        Callable[[int, Rows, Mapping[str, Term], Clock], dict[str, float]] | None
    ) = None
    tasks: tuple[str, ...] = ()
    probe: Probe | None = None

    @property
    def key(self) -> str:
        """Return the key of the phase, such as ``2-yelp/task``."""
        return f"{self.stage}/{self.part}"

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if not self.cosine:
            return self.lr
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))

    @property
    def probe_steps(self) -> set[int]:
        """Return after how many steps the probe is read: 0, each part, and the end."""
        parts = range(PARTS_BETWEEN_PROBES + 1)
        return {self.steps * part // PARTS_BETWEEN_PROBES for part in parts}


@dataclass
class PhaseState:
    """How far a phase has come: steps, trained weights and the optimizer's tensors.

    ``tensors`` has the keys ``weight:NAME``, ``exp_avg:NAME`` and so on, and is empty
    before the first step. ``seconds`` by kind of work grow while the phase runs.
    """

    step: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def run_phase(
    student: Student,
    phase: Phase,
    *,
    seed: int,
    clip: float = 1.0,
    state: PhaseState | None = None,
    after: AfterStep | None = None,
    after_probe: Callable[[StepRecord], None] | None = None,
) -> PhaseState:
    """Run a phase from where it stands to its end.

    Parameters
    ----------
    seed
        Seed of dropout; the phase itself orders its rows.
    clip
        Largest gradient norm.
    state
        State to resume from; default: the beginning.
    after
        Called after each step with its record (loss, terms, counts, learning rate,
        gradient norm before clipping) and a function that gives the state to save.
    after_probe
        Called with the record of each reading of the phase's probe, in all processes
        or in none; ``None``: the probe is not read.

    Raises
    ------
    InputError
        If a loss is not finite.
    """
    state = state or PhaseState()
    weights = list(student.trainable.values())
    optimizer = torch.optim.AdamW(weights, lr=phase.lr, weight_decay=0.0)
    clock = Clock(state.seconds, of=clock_kind(str(student.device)))
    state.seconds = clock

    def read_probe(step: int) -> None:
        """Record the probe after so many steps, without dropout, if there is one."""
        if phase.probe is None or after_probe is None:
            return
        student.model.eval()
        with clock("probe"):
            record = probe_record(student, phase, phase.probe, step)
        student.model.train()
        _check_finite("loss", float(record["loss"]), phase, min(step, phase.steps - 1))
        after_probe(record)

    # Dropout uses the global generator, which gets the seed and is restored afterwards.
    devices = [student.device] if student.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        with clock("start"):
            phase.start()
        _restore(optimizer, student, state)
        student.model.train()

        for step in range(state.step, phase.steps):
            # A resumed run begins with a reading: that of its state was not kept.
            if step in phase.probe_steps:
                read_probe(step)

            torch.manual_seed(seed_for(seed, phase.key, step, rank()))
            for group in optimizer.param_groups:
                group["lr"] = phase.learning_rate(step)

            # Put the gradient of the whole batch on the weights; `step_record` adds
            # that of penalties.
            batch = phase.choose(step)
            terms = phase.terms(batch.rows)
            if phase.collect is not None:
                sums = phase.collect(step, batch.rows, terms, clock)
            else:
                sums = accumulate(student, phase.loss, batch.rows, terms, clock)
            record = step_record(phase, step, batch.facts, terms, sums, clock)

            # A step without positions still counts: moments decay, alike in one process
            # and in several.
            for weight in weights:
                weight.grad = _gradient_or_zero(weight)
            # A method may project gradients; what it says of that joins the record.
            with clock("gradients"):
                record |= phase.gradients(step) or {}

            with clock("optimizer"):
                norm = float(torch.nn.utils.clip_grad_norm_(weights, clip))
                # This comes before the step, because weights of NaN could not be
                # continued.
                _check_finite("loss", float(record["loss"]), phase, step)
                _check_finite("gradient", norm, phase, step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            state.step = step + 1
            if after is not None:
                record["grad_norm"] = norm
                after(record, lambda: _snapshot(student, optimizer, state))

        read_probe(phase.steps)
        student.model.eval()
        with clock("end"):
            phase.end()
    return state


def _check_finite(name: str, value: float, phase: Phase, step: int) -> None:
    """Stop a run whose loss or gradient is NaN or infinite."""
    if not math.isfinite(value):
        raise InputError(
            f"the {name} is not finite at step {step + 1} of {phase.steps}",
            where=phase.key,
            fix="lower the learning rate",
        )


def accumulate(
    student: Student,
    loss_of: Callable[[str, Sequence[TrainRow]], Sums],
    rows: Rows,
    terms: Mapping[str, Term],
    clock: Clock,
) -> dict[str, float]:
    """Put the whole batch's gradient on the weights; return each term's sum.

    The batch is read in parts of rows with similar length, which processes share. The
    gradients of their sums add up to that of the batch. Weights must not have a
    gradient before.

    Parameters
    ----------
    loss_of
        :attr:`Phase.loss`.
    terms
        Terms of the whole batch, by whose counts and weights the sums are scaled.
    """
    sums = dict.fromkeys(terms, 0.0)
    for role, rows_of_role in rows.items():
        with clock(role):
            for piece in pieces(share(rows_of_role), student.max_tokens):
                sums_of_piece = loss_of(role, piece)
                backward(terms, sums_of_piece)
                for name, value in sums_of_piece.items():
                    sums[name] += float(value.detach())

    if n_processes() > 1:
        gradient, sums = exchange_sums(flat_gradient(student), sums)
        set_gradient(student, gradient)
    return sums


def exchange_sums(
    gradient: Tensor, sums: dict[str, float]
) -> tuple[Tensor, dict[str, float]]:
    """Add up a gradient ``(P,)`` and sums over all processes, in one exchange."""
    values = gradient.new_tensor([*sums.values()])  # (sums,)
    total = summed_over_processes(torch.cat([gradient, values]))  # (P + sums,)
    total_gradient = total[: len(gradient)]
    total_values = total[len(gradient) :].tolist()
    return total_gradient, dict(zip(sums, total_values, strict=True))


def backward(terms: Mapping[str, Term], sums: Sums) -> bool:
    """Add the gradient of the terms that count; return whether there is one.

    Parameters
    ----------
    sums
        Sums of a part of the batch; a term without positions or weight is left out.
    """
    loss: Tensor | int = 0
    for name, value in sums.items():
        term = terms.get(name)
        if term is not None and term.count and term.weight:
            loss = loss + (term.weight / term.count) * value

    # Either no term counts, or none depends on a trained weight.
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        return False
    torch.autograd.backward(loss)
    return True


def flat_gradient(student: Student) -> Tensor:
    """Return the gradients of all trained weights as one vector ``(P,)``, float64."""
    weights = student.trainable.values()
    return torch.cat(
        [_gradient_or_zero(weight).reshape(-1).double() for weight in weights]
    )


def tensors_by_weight(student: Student, flat: Tensor) -> dict[str, Tensor]:
    """Cut numbers ``(P,)`` into a tensor for each weight, of its shape and dtype."""
    weights = student.trainable
    sizes = [weight.numel() for weight in weights.values()]
    pieces_of_flat = torch.split(flat, sizes)

    tensors = {}
    for piece, (name, weight) in zip(pieces_of_flat, weights.items(), strict=True):
        tensors[name] = piece.view_as(weight).to(weight.dtype)
    return tensors


def set_gradient(student: Student, flat: Tensor) -> None:
    """Give the trained weights the gradients ``(P,)`` of :func:`flat_gradient`."""
    for name, gradient in tensors_by_weight(student, flat).items():
        student.trainable[name].grad = gradient


def _gradient_or_zero(weight: Tensor) -> Tensor:
    """Return a weight's gradient; 0 where nothing depended on the weight."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def step_record(
    phase: Phase,
    step: int,
    facts: Mapping[str, int],
    terms: Mapping[str, Term],
    sums: dict[str, float],
    clock: Clock,
) -> StepRecord:
    """Add the gradients of penalties, and return the record of a step.

    A term's figure is its mean, nats per position; its count is ``n_TERM``. Penalties
    add their gradients here, after the exchange between processes, so that they count
    once whatever the number of processes.

    Parameters
    ----------
    sums
        Each term's sum over the whole batch, and further entries of ``collect``.
    """
    penalties: dict[str, float] = {}
    if phase.penalty is not None:
        with clock("penalty"):
            values = phase.penalty()
            torch.autograd.backward([*values.values()])
        penalties = {name: float(value.detach()) for name, value in values.items()}

    means = _means(terms, sums)
    weighted_means = [term.weight * means[name] for name, term in terms.items()]

    # What `collect` counted beside the terms, such as clipped gradients.
    other_entries = {name: value for name, value in sums.items() if name not in terms}
    return {
        "stage": phase.stage,
        "part": phase.part,
        "step": step + 1,
        "lr": phase.learning_rate(step),
        "loss": math.fsum([*weighted_means, *penalties.values()]),
        **means,
        **penalties,
        **_counts(terms),
        **facts,
        **other_entries,
    }


def probe_record(student: Student, phase: Phase, probe: Probe, step: int) -> StepRecord:
    """Return the record of a phase's probe after some steps; it changes nothing.

    It has the entries of a step but the learning rate, and ``probe``, by which readers
    tell it from a step.

    Parameters
    ----------
    step
        How many steps of the phase were done.
    """
    terms = probe.terms(probe.rows)
    with torch.no_grad():
        sums = accumulate(student, probe.loss, probe.rows, terms, Clock())
    # Several processes exchange gradients, which are zeros here.
    for weight in student.trainable.values():
        weight.grad = None

    means = _means(terms, sums)
    return {
        "stage": phase.stage,
        "part": phase.part,
        "step": step,
        "probe": True,
        "loss": math.fsum(term.weight * means[name] for name, term in terms.items()),
        **means,
        **_counts(terms),
    }


def _means(terms: Mapping[str, Term], sums: Mapping[str, float]) -> dict[str, float]:
    """Return each term's mean over its positions; 0 without any."""
    means = {}
    for name, term in terms.items():
        means[name] = sums[name] / term.count if term.count else 0.0
    return means


def _counts(terms: Mapping[str, Term]) -> dict[str, int]:
    """Return how many positions each term has, by the names of a record."""
    return {f"n_{name}": term.count for name, term in terms.items()}


def clock_kind(device: str) -> Literal["wall", "processor"]:
    """Return which clock gives seconds: the processor's for one thread on a CPU.

    Other programs slow down wall time, but not the processor time of the work itself.
    """
    is_one_thread = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return "processor" if is_one_thread else "wall"


def _snapshot(
    student: Student, optimizer: torch.optim.Optimizer, state: PhaseState
) -> PhaseState:
    """Return a copy of a phase's state that later steps do not change."""
    tensors = {}
    for name, weight in student.trainable.items():
        # AdamW has moments of a weight after its first step.
        tensors_of_weight = {"weight": weight, **optimizer.state.get(weight, {})}
        for key, value in tensors_of_weight.items():
            tensors[f"{key}:{name}"] = value.detach().cpu().clone()
    return PhaseState(state.step, tensors, dict(state.seconds))


@torch.no_grad()
def _restore(
    optimizer: torch.optim.Optimizer, student: Student, state: PhaseState
) -> None:
    """Give weights and optimizer the values of a state (:func:`_snapshot`)."""
    for key, value in state.tensors.items():
        # `weight`, or a name of AdamW's: exp_avg, exp_avg_sq, step.
        entry, _, name = key.partition(":")
        weight = student.trainable[name]
        if entry == "weight":
            weight.copy_(value)
            continue

        # AdamW counts its steps on the CPU.
        device = value.device if entry == "step" else weight.device
        optimizer.state.setdefault(weight, {})[entry] = value.to(device, copy=True)
