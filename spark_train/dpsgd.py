"""DP-SGD: each example's gradient is clipped, and their sum gets Gaussian noise.

Abadi et al. 2016, with Opacus's semantics and accountant. An example's gradient is that
of the *mean* over its own tokens of each term of its loss, by their weights **[ours]**,
so that nothing of another example is in it; it is clipped as a whole, over all trained
weights, to ``dp.max_grad_norm`` (C). The step's gradient is their sum plus
``N(0, (dp.noise_multiplier C)^2 I)``, over the number of current rows *expected* in a
batch, which is the same for a task of one row more or less (docs/training.md): the size
of the batch that was drawn, which depends on the rows, does not come into it. Current
rows come into a batch by Poisson sampling, and so do replayed ones, at rates evenly
over earlier tasks. Penalties that read the weights alone come behind the noise, as does
``clip``, which bounds what the optimizer sees: neither costs privacy.

Examples are read one at a time: exact for every method, and slower than a batch. The
teachers of distillation are asked about all earlier rows, any of which may come.

**What epsilon covers**: the adapters of all stages together, for one train row more or
less (what stands in several rows is covered less), towards those who do not know the
seed. ``run.json`` names it, and 0 is the first that anyone tries. Noise and batches
follow from the seed, so that a run goes on to the same bytes, and from all that tells a
run from others (``Stream.identity``), so that no two of them share any. They are drawn
on 63 bits, by no cryptographic generator (Opacus's ``secure_mode``). The number of rows
is taken as known. ``metrics.jsonl`` holds losses without noise, and is not covered.

**How it is accounted for**: an example of a task is sampled at one rate while its own
task is learned, and at another in each later task that replays it. Each step is a
Poisson-subsampled Gaussian mechanism; Opacus's accountant composes them over the steps
that an example can be in (Renyi differential privacy: Mironov 2017; Mironov, Talwar &
Zhang 2019), for one train row more or less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    exchanged,
    flat_gradient,
    set_gradient,
)
from spark_train.method import Method, Protected
from spark_train.privacy_accounting import epsilon, new_accountant, noise_for
from spark_train.processes import share
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow


def dpsgd(stream: Stream, method: Method) -> Protected:
    """DP-SGD: each example's gradient is clipped, and their sum gets Gaussian noise.

    The method's phases, each step private; epsilon where all of it is accounted.

    Raises
    ------
    InputError
        For a target epsilon next to a noise, or where no epsilon is claimed.
    """
    settings = stream.settings.dp
    phases = method.phases(replace(stream, poisson=True))
    total = sum(len(rows) for rows in stream.rows.values())
    delta = settings.delta or 1 / total
    if delta > 1 / total:
        stream.note(f"dp.delta {delta:g} is above 1/N: a row may be given away whole")
    sampling = {phase.key: (phase.steps, phase.rates) for phase in phases}
    stretches = [(steps, rates) for steps, rates in sampling.values() if rates]
    unaccounted = [key for key, (_, rates) in sampling.items() if rates is None]
    reason = method.no_epsilon
    if not reason and stream.settings.replay.memory:
        reason = "replay.memory keeps other rows of a task when one more is in it"
    elif not reason and unaccounted:
        reason = f"{unaccounted[0]} draws its rows otherwise than by Poisson sampling"
    sigma, target = settings.noise_multiplier, settings.target_epsilon
    if target:
        where, fix = "dp.target_epsilon", "give dp.noise_multiplier"
        if "noise_multiplier" in settings.model_fields_set:
            what = "dp.noise_multiplier and dp.target_epsilon are both given"
            raise InputError(what, where="--set", fix="give one of them")
        if reason:
            what = f"no epsilon is claimed for {method.name}: {reason}"
            raise InputError(what, where=where, fix=fix)
        sigma = noise_for(stretches, target=target, delta=delta)
    epsilons = {
        task: epsilon(stretches, task, noise_multiplier=sigma, delta=delta)
        for task in stream.tasks
    }
    if not reason and not all(map(math.isfinite, epsilons.values())):
        reason = f"noise_multiplier {sigma:g} is too small for any"
    if reason:
        stream.note(f"no epsilon: {reason}")
    else:
        values = ", ".join(f"{task} {value:.4g}" for task, value in epsilons.items())
        stream.note(
            f"epsilon at delta {delta:.3g}, by task: {values}; of the adapters, "
            "towards those who do not know the seed"
        )
    facts: dict[str, object] = {
        "option": "dpsgd",
        "noise_multiplier": sigma,
        "max_grad_norm": settings.max_grad_norm,
        "delta": delta,
        "accountant": f"{new_accountant().mechanism()}, opacus {version('opacus')}",
        "sampling": {
            key: {"steps": steps, "rates": rates}
            for key, (steps, rates) in sampling.items()
        },
    }
    facts |= {"no_epsilon": reason} if reason else {"epsilon": epsilons}
    return Protected([_private(stream, one, sigma) for one in phases], facts)


def drawn(size: int, *, seed: int, run: str, key: str, step: int) -> Tensor:
    """The unit normals of one step: ``(P,)``, float64, whatever came before.

    Parameters
    ----------
    run
        What tells the run from others (``Stream.identity``): noise that two runs shared
        would cancel out of what they leave.
    """
    # Of torch's own generator only 32 bits of a seed count: all could be tried.
    rng = np.random.default_rng(seed_for(seed, "dp noise", run, key, step))
    return torch.from_numpy(rng.standard_normal(size))


def _private(stream: Stream, phase: Phase, sigma: float) -> Phase:
    student = stream.student
    bound, seed = stream.settings.dp.max_grad_norm, stream.settings.seed

    def of_row(role: str, row: TrainRow) -> dict[str, Term]:
        terms = dict(phase.terms({role: [row]}))
        for name in terms.keys() & phase.shares.keys():
            share, of = phase.shares[name]
            weight = terms[name].weight * share / of
            terms[name] = replace(terms[name], weight=weight)
        return terms

    def collect(
        step: int, chosen: Rows, terms: Mapping[str, Term], clock: Clock
    ) -> dict[str, float]:
        total = torch.zeros_like(flat_gradient(student))
        sums = dict.fromkeys([*terms, "clipped"], 0.0)
        for role, rows in chosen.items():
            with clock(role):
                for row in share(rows):
                    summed = phase.loss(role, [row])
                    if backward(of_row(role, row), summed):
                        own = flat_gradient(student)
                        norm = torch.linalg.vector_norm(own)
                        sums["clipped"] += float(norm > bound)
                        total += own * (bound / (norm + 1e-6)).clamp(max=1.0)
                    student.model.zero_grad(set_to_none=True)
                    for name, value in summed.items():
                        sums[name] += float(value.detach())
        total, sums = exchanged(total, sums)
        with clock("noise"):
            # The same in all processes, and added to their sum: once.
            noise = drawn(
                len(total), seed=seed, run=stream.identity, key=phase.key, step=step
            )
            set_gradient(
                student, (total + sigma * bound * noise.to(total)) / phase.size
            )
        return sums | {"clipped": int(sums["clipped"])}

    return replace(phase, collect=collect)
