"""Share work among the processes of one training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from spark_audit.errors import SparkError

Result = TypeVar("Result")


def results_of_all(work: Callable[[], Result]) -> list[Result]:
    """Run the work in every process, and return all results in order.

    Raises
    ------
    SparkError
        In all processes if one raises it, so that no process waits for a failed one.
    """
    outcomes: list[Result | SparkError] = gather_object([_outcome(work)])
    return _without_errors(outcomes)


def result_of_first(work: Callable[[], Result]) -> Result:
    """Run the work in the first process, and return its result in all processes.

    Raises
    ------
    SparkError
        In all processes if the first one raises it.
    """
    # The others wait in the broadcast.
    outcome = _outcome(work) if PartialState().is_main_process else None
    outcomes: list[Result | SparkError] = broadcast_object_list([outcome])
    return _without_errors(outcomes)[0]


def _outcome(work: Callable[[], Result]) -> Result | SparkError:
    """Return the result of the work, or the error that it raised."""
    try:
        return work()
    except SparkError as error:
        return error


def _without_errors(outcomes: list[Result | SparkError]) -> list[Result]:
    """Return the results, or raise the first error among them."""
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, SparkError):
            raise outcome
        results.append(outcome)
    return results
