"""What a path is: its format decided by content, and how it is put together."""

from __future__ import annotations

from pathlib import Path

from spark_audit.checkpoints.formats import FORMATS
from spark_audit.checkpoints.locate import locate
from spark_audit.checkpoints.recipe import Given, Recipe, Stage
from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.specs import Loading, split_stage
from spark_audit.errors import CheckpointError
from spark_audit.terminal.suggestions import instead


def recipe(source: str, loading: Loading) -> Recipe:
    """Decide by content what a path is, and how it is put together.

    Raises
    ------
    CheckpointError
        If it is nothing that can be opened, with what is wrong.
    """
    text, stage = split_stage(source)
    given = Given(**{**vars(loading), "where": source, "stage": stage})
    path = locate(text, revision=given.revision, code=given.trust_remote_code)
    names = _formats(path)
    if len(names) != 1:
        what = f"reads as {' and as '.join(names)}" if names else "is no checkpoint"
        children = sorted(path.iterdir()) if path.is_dir() else []
        inside = [
            child.name for child in children if child.is_dir() and _formats(child)
        ]
        if inside:
            what += f" (these folders in it are: {', '.join(inside[:5])})"
        raise CheckpointError(
            what,
            where=source,
            fix=instead(
                path,
                wanted="checkpoint",
                otherwise="give a folder with config.json or adapter_config.json, or "
                "a weights file",
            ),
        )
    if stage is not None and names != ["task-series"]:
        raise CheckpointError(
            f"is one checkpoint, not a series: @{stage} does not apply", where=source
        )
    try:
        return FORMATS.get(names[0]).run(path, given)
    except OSError as error:
        raise CheckpointError(
            f"cannot be read ({error.strerror or error})", where=source
        ) from error


def _formats(path: Path) -> list[str]:
    return [entry.name for entry in FORMATS if entry.part("detect")(path)]


def series(source: str) -> tuple[Stage, ...]:
    """The stages of a series in order; none when it is a single checkpoint."""
    if is_server(source):
        return ()
    path = locate(split_stage(source)[0])
    entry = FORMATS.get("task-series")
    is_series = entry.part("detect")(path)
    return tuple(entry.part("stages")(path, where=source)) if is_series else ()
