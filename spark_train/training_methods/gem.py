"""GEM: gradients are projected to where no earlier task's memory is hurt.

Lopez-Paz & Ranzato 2017. Before each step the gradients of all stored rows, task by
task, are computed anew at the current weights. Where the step's own gradient ``g``
points against one of them (their inner product is below 0), it is replaced by
``g + G'v`` (:func:`dual`). The rows of ``G`` are the stored tasks' gradients. The loop
clips the result.

Which rows are stored is drawn from the seed **[ours]**; the paper keeps a task's last
ones. The step is AdamW's, as in all methods here **[ours]**: the gradient is projected,
not what AdamW makes of it and of earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import nnls

from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_train.fine_tuning import TASK_ROLE
from spark_train.loop import Phase, accumulate, flat_gradient, set_gradient
from spark_train.method import Method, task_by_task
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase
from spark_train.training_rows import TrainRow


def stored_rows(stream: Stream, k: int) -> list[TrainRow]:
    """Return the rows stored of task ``k``, the same ones for all later tasks."""
    rows = stream.rows[stream.tasks[k]]
    size = min(stream.settings.gem.memory, len(rows))
    return stream.draw_evenly(k, rows, size, purpose="memory")


@task_by_task
def gem(stream: Stream, k: int) -> list[Phase]:
    """Gradient episodic memory: no gradient points against an earlier task's memory.

    One phase a task, with a constraint for each task before it.
    """
    student = stream.student
    phase = learning_phase(stream, k)
    rows_by_task = {
        task: stored_rows(stream, i) for i, task in enumerate(stream.tasks[:k])
    }

    def gradients(step: int) -> Mapping[str, float]:
        """Project the step's gradient; return how many stored ones it pointed against.

        The step's own gradient stands on the weights, before and afterwards.
        """
        step_gradient = flat_gradient(student)  # (P,)

        stored_gradients = []
        for task, rows in rows_by_task.items():
            batch = {TASK_ROLE: rows}
            # Gradients of earlier rounds would add up.
            student.model.zero_grad(set_to_none=True)
            accumulate(student, phase.loss, batch, phase.terms(batch), Clock())
            gradient = flat_gradient(student)  # (P,)
            check_stored_gradient(gradient, task=task, step=step, phase=phase)
            stored_gradients.append(gradient)

        table = torch.stack([*stored_gradients, step_gradient])  # (k + 1, P)
        products = table @ table.T  # (k + 1, k + 1)
        n_violated = int((products[-1, :-1] < 0).sum())

        set_gradient(student, step_gradient)
        # A step's own gradient that is not finite is refused by the loop.
        if n_violated and products.isfinite().all():
            v = dual(products.cpu().numpy(), margin=stream.settings.gem.margin)
            weights = torch.from_numpy(v).to(step_gradient)  # (k,)
            set_gradient(student, step_gradient + weights @ table[:-1])
        return {"violated": n_violated}

    return [replace(phase, gradients=gradients) if k else phase]


def check_stored_gradient(
    gradient: torch.Tensor, *, task: str, step: int, phase: Phase
) -> None:
    """Refuse a stored task's gradient that is not finite: no step can be held to it.

    Parameters
    ----------
    gradient
        Shape ``(P,)``.

    Raises
    ------
    InputError
        With the task and the step.
    """
    if not gradient.isfinite().all():
        raise InputError(
            f"the gradient of the stored rows of {task!r} is not finite at step "
            f"{step + 1} of {phase.steps}",
            where=phase.key,
            fix="lower the learning rate",
        )


def dual(products: np.ndarray, *, margin: float = 0.0) -> np.ndarray:
    """Return the weights of stored gradients that make a step hurt no earlier task.

    Let ``g`` be the step's own gradient, and ``g_k`` that of each earlier task. The
    nearest gradient to ``g`` that points against none of them solves ``minimise
    |x - g|^2 / 2 so that <x, g_k> >= 0 for all k``. Its dual problem has one unknown
    for each constraint: ``minimise v'GG'v / 2 + (Gg)'v`` over ``v >= 0``, and then
    ``x = g + G'v``.

    Parameters
    ----------
    products
        Shape ``(t + 1, t + 1)``, float64: inner products of the ``t`` gradients of
        earlier tasks and, last, the step's own.
    margin
        Least value of each ``v``. In the paper a constant is added to ``v``; the
        authors' code and mammoth's, which this follows, bound ``v`` from below by it
        instead, so that ``v = margin`` where the paper's would be smaller.

    Returns
    -------
    np.ndarray
        ``v``, shape ``(t,)``. Where gradients depend on each other ``v`` is one of
        several solutions; ``g + G'v`` is the same for all. A gradient of 0 has
        ``margin``, which changes nothing.

    Notes
    -----
    With ``u = v - margin`` it is a least-squares problem over ``u >= 0``, which SciPy's
    active-set solver ends exactly, for any number of constraints. No ridge is added
    (the authors add 1e-3 to the diagonal for their solver's sake, which would decide
    the outcome where gradients are small).
    """
    # Unit vectors with the same angles: gradients' sizes differ by orders.
    norms = np.sqrt(np.diag(products).clip(min=0.0))  # (t + 1,)
    scale = np.where(norms > 0, norms, 1.0)
    cosines = products / np.outer(scale, scale)  # (t + 1, t + 1)

    # A square root R with R'R = cosines: its columns stand for the unit gradients, in
    # t + 1 dimensions instead of P.
    values, vectors = np.linalg.eigh((cosines + cosines.T) / 2)
    root = np.sqrt(values.clip(min=0.0))[:, None] * vectors.T  # (t + 1, t + 1)
    stored_units = root[:, :-1] * (norms[:-1] > 0)  # (t + 1, t), 0 for a gradient of 0
    step_unit = root[:, -1]  # (t + 1,)

    # In units of the scaled gradients: v = least + u, of which u >= 0 is solved for.
    least = margin * scale[:-1] / scale[-1]  # (t,)
    target = -(step_unit + stored_units @ least)  # (t + 1,)
    u, _ = nnls(stored_units, target, maxiter=100 * len(scale))  # (t,)
    # Back to the gradients as they are.
    return np.asarray((u + least) * scale[-1] / scale[:-1])


GEM = Method(
    "gem",
    gem,
    reads=("gem",),
    no_epsilon="the stored rows' gradients are neither clipped nor noised",
)
