"""DP-SGD: each example's gradient is clipped, and their sum gets Gaussian noise.

Abadi et al. 2016, with Opacus's semantics and accountant.

- **An example's gradient** is that of its own loss: of each term the *mean* over its
  own tokens, by their weights **[ours]**. So nothing of another example is in it. It is
  clipped as a whole, over all trained weights, to ``dp.max_grad_norm`` (C).
- **A step's gradient** is their sum plus ``N(0, (dp.noise_multiplier C)^2 I)``, divided
  by the number of current rows *expected* in a batch. This number is the same for a
  task of one row more or less (docs/training.md). The number of rows that were drawn
  depends on the rows, so it is not used.
- **Batches** are drawn by Poisson sampling: current rows at one rate, and replayed ones
  at rates that spread them evenly over earlier tasks.
- Penalties, which read only the weights, are added after the noise, and so is ``clip``,
  which bounds what the optimizer sees. Neither costs privacy.

Examples are read one at a time: this is exact for every method, and slower than a
batch. The teachers of distillation are asked about all earlier rows, because any of
them may be drawn.

**What epsilon covers**: the adapters of all stages together, for one train row more or
less, towards those who do not know the seed. Text that stands in several rows is
covered less. ``run.json`` contains the seed, and 0 is the first that anyone tries.
Noise and batches follow from the seed, so that a resumed run ends in the same bytes,
and from everything that distinguishes runs (``Stream.identity``), so that no two runs
share any. They are drawn from 63 bits, by no cryptographic generator (Opacus's
``secure_mode``). The number of rows is taken as known. ``metrics.jsonl`` holds losses
without noise, and is not covered.

**How epsilon is computed** (``privacy_accounting.py``): an example of a task is sampled
at one rate while its own task is learned, and at another in each later task that
replays it. Each step is a Poisson-subsampled Gaussian mechanism; Opacus's accountant
composes them over the steps that an example can be in (Renyi differential privacy:
Mironov 2017; Mironov, Talwar & Zhang 2019), for one train row more or less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor

from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_audit.provenance import seed_for
from spark_train.loop import (
    Phase,
    Rows,
    Term,
    backward,
    exchange_sums,
    flat_gradient,
    set_gradient,
)
from spark_train.method import Method, Protected
from spark_train.privacy_accounting import epsilon, new_accountant, noise_for
from spark_train.processes import share
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow
from spark_train.training_settings import Dp


def dpsgd(stream: Stream, method: Method) -> Protected:
    """DP-SGD: each example's gradient is clipped, and their sum gets Gaussian noise.

    Return the method's phases, each step private, with epsilon where all of them are
    accounted for.

    Raises
    ------
    InputError
        For a target epsilon next to a noise, or where no epsilon is claimed.
    """
    settings = stream.settings.dp
    # The phases of the method itself, which :func:`_private` makes private at the end.
    phases = method.phases(replace(stream, poisson=True))
    n_rows = sum(len(rows) for rows in stream.rows.values())

    delta = settings.delta or 1 / n_rows
    if delta > 1 / n_rows:
        stream.note(f"dp.delta {delta:g} is above 1/N: a row may be given away whole")

    # Which steps an example can be in; a target epsilon asks for the least noise.
    stretches = [
        (phase.steps, phase.sampling_rates) for phase in phases if phase.sampling_rates
    ]
    why_no_epsilon = _why_no_epsilon(stream, method, phases)
    sigma = settings.noise_multiplier
    if settings.target_epsilon:
        _check_target(settings, method, why_no_epsilon)
        sigma = noise_for(stretches, target=settings.target_epsilon, delta=delta)

    # Each task has an epsilon of its own, because its rows are sampled in other steps.
    epsilons: dict[str, float] = {}
    for task in stream.tasks:
        epsilons[task] = epsilon(stretches, task, noise_multiplier=sigma, delta=delta)
    is_finite = all(math.isfinite(value) for value in epsilons.values())
    if not why_no_epsilon and not is_finite:
        why_no_epsilon = f"noise_multiplier {sigma:g} is too small for any"
    if why_no_epsilon:
        stream.note(f"no epsilon: {why_no_epsilon}")
    else:
        values = ", ".join(f"{task} {value:.4g}" for task, value in epsilons.items())
        stream.note(
            f"epsilon at delta {delta:.3g}, by task: {values}; of the adapters, "
            "towards those who do not know the seed"
        )

    # What ``run.json`` says about the option, with either an epsilon or a reason.
    sampling = {}
    for phase in phases:
        sampling[phase.key] = {"steps": phase.steps, "rates": phase.sampling_rates}
    facts: dict[str, object] = {
        "option": "dpsgd",
        "noise_multiplier": sigma,
        "max_grad_norm": settings.max_grad_norm,
        "delta": delta,
        "accountant": f"{new_accountant().mechanism()}, opacus {version('opacus')}",
        "sampling": sampling,
    }
    if why_no_epsilon:
        facts["no_epsilon"] = why_no_epsilon
    else:
        facts["epsilon"] = epsilons
    return Protected([_private(stream, phase, sigma) for phase in phases], facts)


def _check_target(settings: Dp, method: Method, why_no_epsilon: str) -> None:
    """Refuse a target epsilon next to a noise, or where no epsilon is claimed.

    Parameters
    ----------
    why_no_epsilon
        Why no epsilon is claimed; empty if one is.
    """
    if "noise_multiplier" in settings.model_fields_set:
        raise InputError(
            "dp.noise_multiplier and dp.target_epsilon are both given",
            where="--set",
            fix="give one of them",
        )
    if why_no_epsilon:
        raise InputError(
            f"no epsilon is claimed for {method.name}: {why_no_epsilon}",
            where="dp.target_epsilon",
            fix="give dp.noise_multiplier",
        )


def _why_no_epsilon(stream: Stream, method: Method, phases: Sequence[Phase]) -> str:
    """Return why no epsilon can be claimed for a run; empty if one can."""
    if method.no_epsilon:
        return method.no_epsilon
    if stream.settings.replay.memory:
        return "replay.memory keeps other rows of a task when one more is in it"
    for phase in phases:
        if phase.sampling_rates is None:
            return f"{phase.key} draws its rows otherwise than by Poisson sampling"
    return ""


def step_noise(size: int, *, seed: int, run: str, key: str, step: int) -> Tensor:
    """Return the unit normals of one step: ``(P,)``, float64, whatever came before.

    Parameters
    ----------
    run
        Identity of the run (``Stream.identity``): noise that two runs shared would
        cancel in a comparison of them.
    key
        Key of the phase (``Phase.key``).
    """
    # torch's own generator uses only 32 bits of a seed, which could all be tried.
    rng = np.random.default_rng(seed_for(seed, "dp noise", run, key, step))
    return torch.from_numpy(rng.standard_normal(size))


def _private(stream: Stream, phase: Phase, sigma: float) -> Phase:
    """Return a phase whose steps see only clipped and noised gradients.

    Parameters
    ----------
    sigma
        Standard deviation of the noise, relative to the largest norm of a row's
        gradient.
    """
    student = stream.student
    seed = stream.settings.seed
    max_norm = stream.settings.dp.max_grad_norm

    def terms_of_row(role: str, row: TrainRow) -> dict[str, Term]:
        """Return the terms of a row's own loss, which are means over its own tokens."""
        terms = dict(phase.terms({role: [row]}))
        for name in terms.keys() & phase.weight_ratios.keys():
            numerator, denominator = phase.weight_ratios[name]
            weight = terms[name].weight * numerator / denominator
            terms[name] = replace(terms[name], weight=weight)
        return terms

    def collect(
        step: int, batch: Rows, terms: Mapping[str, Term], clock: Clock
    ) -> dict[str, float]:
        """Put the clipped and noised gradient on the weights; see `Phase.collect`.

        The entry ``clipped`` of the record counts rows whose gradient was clipped.
        """
        # The sum of clipped gradients, with sums for the record.
        total = torch.zeros_like(flat_gradient(student))  # (P,)
        sums = dict.fromkeys([*terms, "clipped"], 0.0)
        for role, rows in batch.items():
            with clock(role):
                for row in share(rows):
                    sums_of_row = phase.loss(role, [row])
                    if backward(terms_of_row(role, row), sums_of_row):
                        gradient = flat_gradient(student)  # (P,)
                        norm = torch.linalg.vector_norm(gradient)
                        sums["clipped"] += float(norm > max_norm)
                        # A gradient of 0 has no direction; 1e-6 as in Opacus.
                        total += gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0)
                    student.model.zero_grad(set_to_none=True)

                    for name, value in sums_of_row.items():
                        sums[name] += float(value.detach())
        total, sums = exchange_sums(total, sums)

        with clock("noise"):
            # The same in all processes, and added to their sum: once.
            noise = step_noise(
                len(total), seed=seed, run=stream.identity, key=phase.key, step=step
            )
            noised = total + sigma * max_norm * noise.to(total)
            set_gradient(student, noised / phase.expected_rows)
        return sums | {"clipped": int(sums["clipped"])}

    return replace(phase, collect=collect)
