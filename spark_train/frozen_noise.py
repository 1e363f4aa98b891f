"""Frozen noise: one Gaussian draw per vocabulary row, on input embeddings only.

``e~_v = e_v + n_v`` with ``n_v ~ N(0, sigma^2 I)``, drawn once from the run's seed
**[ours]** and the same for the whole run: training, teachers, scores and answers. It is
added to what the embedding gives, so that a tied output head does not see it. Each
stage's folder holds it beside the adapter (``frozen_noise.safetensors``), and
``spark-audit`` applies it; stock PEFT does not, and gets another model.

No epsilon is claimed: nothing bounds what one row does to the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from spark_audit.checkpoints.adapters import input_noise
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.provenance import seed_for
from spark_train.method import Method, Protected
from spark_train.processes import rank, together
from spark_train.stream import CARRIED, Stream
from spark_train.tensor_files import read_tensors, write_tensors

NO_EPSILON = "frozen noise bounds nothing that a row does to the weights"
"""Why a run has no epsilon, in its notes and its record."""


def fn(stream: Stream, method: Method) -> Protected:
    """Frozen noise: one Gaussian draw per vocabulary row, on input embeddings only.

    Return the method's own phases, under noise.
    """
    assert stream.folder is not None
    model = stream.student.model
    settings = stream.settings
    shape = model.get_input_embeddings().weight.shape  # (V, H)
    path = stream.folder / CARRIED / NOISE_FILE

    @contextmanager
    def during() -> Iterator[None]:
        """Add the noise to embeddings while anything of the run is computed."""
        # The noise of the run's first start is kept in a file, because another version
        # of the library may draw differently.
        with together():
            if rank() == 0 and not path.exists():
                seed = seed_for(settings.seed, "frozen noise")
                generator = torch.Generator().manual_seed(seed)
                unit_noise = torch.randn(shape, generator=generator)  # (V, H)
                write_tensors(path, {"noise": settings.fn.sigma * unit_noise})

        # Every process reads the file that the first one wrote.
        noise = read_tensors(path)["noise"]
        with input_noise(model, noise.to(stream.student.device)):
            yield

    stream.note(f"no epsilon: {NO_EPSILON}")
    facts = {
        "option": "fn",
        "sigma": settings.fn.sigma,
        "rows": shape[0],
        "no_epsilon": NO_EPSILON,
    }
    return Protected(
        phases=method.phases(stream), facts=facts, during=during, noise=path
    )
