"""EWC: a penalty on the drift of weights that earlier tasks need.

Kirkpatrick et al. 2017, one penalty a task, added up **[ours]**: while task ``k`` is
learned, ``L = L_task + lambda / 2 sum_{i<k} sum_j F_ij (theta_j - theta_ij)^2``, with
``F_i`` the diagonal of the empirical Fisher matrix of task ``i`` at its end
(:func:`spark_train.phases.importance.fisher`), over the adapter's weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spark_train.loop import Phase, Sums
from spark_train.methods.method import Method, task_by_task
from spark_train.phases.importance import drift, fisher
from spark_train.phases.task import learning
from spark_train.run_folder import keep, kept
from spark_train.stream import Stream


@task_by_task
def ewc(stream: Stream, k: int) -> list[Phase]:
    """Elastic weight consolidation: weights that earlier tasks need are held in place.

    One phase a task; at its end the task's penalty joins those before.
    """
    student, settings = stream.student, stream.settings.ewc
    held: dict[str, dict[str, Tensor]] = {}

    def start() -> None:
        held.update(kept(stream, k - 1) if k else {})

    def penalty() -> Sums:
        drifts = [
            drift(held[f"fisher {i}"], held[f"weights {i}"], student.trainable)
            for i in range(k)
        ]
        return {"ewc": 0.5 * settings.lambda_ * torch.stack(drifts).sum()}

    def end() -> None:
        if k + 1 < len(stream.tasks):  # else no later task asks for it
            own = {f"fisher {k}": fisher(stream, k)}
            keep(stream, k, {**held, **own, f"weights {k}": student.trainable})

    phase = learning(stream, k)
    return [replace(phase, start=start, penalty=penalty if k else None, end=end)]


EWC = Method(
    "ewc",
    ewc,
    reads=("ewc",),
    no_epsilon="the Fisher matrix is computed from rows without noise",
)
