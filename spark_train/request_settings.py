"""The settings that a request for training gives a run."""

from __future__ import annotations

from spark_audit.errors import InputError, one_of
from spark_train.privacy import groups as privacy_groups
from spark_train.training_methods import METHODS, groups
from spark_train.training_request import DP, NO_PRIVACY, TrainRequest
from spark_train.training_settings import TrainingSettings, parse


def settings_of_request(
    request: TrainRequest,
) -> tuple[TrainingSettings, dict[str, object]]:
    """Return all settings of a run, and, by name, those that it reads."""
    one_of(request.method, "--method", METHODS)
    one_of(request.dp, "--dp", DP)
    groups_read = (*groups(request.method), *privacy_groups(request.dp))

    # Put first, so that another seed in --set is noticed below.
    assignments = [*request.settings]
    if request.seed is not None:
        assignments.insert(0, f"seed={request.seed}")
    method = request.method
    if request.dp != NO_PRIVACY:
        method += f" --dp {request.dp}"
    settings = parse(assignments, groups=groups_read, method=method)
    if request.seed not in (None, settings.seed):
        raise InputError(
            f"is {request.seed}, and --set gives the seed {settings.seed}",
            where="--seed",
            fix="give one of them",
        )
    return settings, settings.flat(groups_read)
