"""Work that the processes of one training do together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from spark_audit.errors import SparkError

Result = TypeVar("Result")


def results_of_all(work: Callable[[], Result]) -> list[Result]:
    """Let every process do the work, and return what each came to, in their order.

    Raises
    ------
    SparkError
        In all processes where it is raised in one: none waits for another that has
        given up.
    """
    outcomes: list[Result | SparkError] = gather_object([_outcome(work)])
    return _without_errors(outcomes)


def result_of_first(work: Callable[[], Result]) -> Result:
    """Let the first process do the work, and return what it came to in all.

    Raises
    ------
    SparkError
        In all processes where it is raised in the first.
    """
    outcome = _outcome(work) if PartialState().is_main_process else None
    outcomes: list[Result | SparkError] = broadcast_object_list([outcome])
    return _without_errors(outcomes)[0]


def _outcome(work: Callable[[], Result]) -> Result | SparkError:
    """Return what work comes to, be it an error."""
    try:
        return work()
    except SparkError as error:
        return error


def _without_errors(outcomes: list[Result | SparkError]) -> list[Result]:
    """Return the results; raise the first error among them."""
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, SparkError):
            raise outcome
        results.append(outcome)
    return results
