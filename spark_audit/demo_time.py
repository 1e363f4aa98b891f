"""Tell how long the demo takes on this machine, from a rate that is measured first.

The rate is that of training steps like those of the demo. How many of them take as long
as each part of the demo was measured once; it hardly depends on the machine.
"""

from __future__ import annotations

import os
import time
from typing import Any

from spark_audit.demo_base import MODEL_SHAPE, VOCABULARY

PROBE_STEPS = 10
PROBE_ROWS = 8
PROBE_ROW_TOKENS = 80
"""Steps that are timed, after one that is not; rows of each, and their tokens."""

SERIAL_STEPS = 1500
"""Steps that take as long as what one process does alone: base, audits and report."""

SHARED_STEPS = 9000
"""Steps that take as long as all that processes share: trainings and scoring."""

SHORTEST_OF_EXPECTED = 0.8
LONGEST_OF_EXPECTED = 1.6
"""Limits of the range that is said, over the expected time: other programs come and go.
"""

LONGEST_STEP_SECONDS = 5.0
"""Seconds after which no further step is timed."""


def expected_minutes(processes: int) -> tuple[float, float]:
    """Return the shortest and the longest time of a whole demo to expect, in minutes.

    Parameters
    ----------
    processes
        Processes that the demo uses. More than the cores that are there gain nothing.
    """
    n_busy = min(processes, len(os.sched_getaffinity(0)))
    n_steps = SERIAL_STEPS + SHARED_STEPS / n_busy
    minutes = n_steps * seconds_per_step() / 60
    return SHORTEST_OF_EXPECTED * minutes, LONGEST_OF_EXPECTED * minutes


def time_in_words(shortest: float, longest: float) -> str:
    """Return a range of minutes in words, rounded outwards.

    >>> time_in_words(2.7, 5.4)
    '2 to 6 minutes'
    """
    return f"{max(int(shortest), 1)} to {max(int(longest) + 1, 2)} minutes"


def seconds_per_step() -> float:
    """Return the seconds on the clock of a training step of a model like the demo's."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=VOCABULARY, **MODEL_SHAPE)
    untyped_class: Any = LlamaForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = untyped_class(config)
        ids = torch.randint(VOCABULARY, (PROBE_ROWS, PROBE_ROW_TOKENS))

    # The first step prepares what later ones use again.
    model(input_ids=ids, labels=ids).loss.backward()
    n_steps = 0
    start = time.perf_counter()
    while n_steps < PROBE_STEPS:
        model(input_ids=ids, labels=ids).loss.backward()
        n_steps += 1
        if time.perf_counter() - start > LONGEST_STEP_SECONDS:
            break
    return (time.perf_counter() - start) / n_steps
