"""Compare a checkpoint with the base that was given, by what headers tell of both."""

from __future__ import annotations

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.errors import CheckpointError


def check_base(loaded: Loaded, base: Loaded) -> None:
    """Refuse a checkpoint that does not fit the base that was given.

    Full weights say nowhere which base they come from, and an adapter may bring another
    tokenizer: what headers tell of both is compared.

    Raises
    ------
    CheckpointError
        With what differs first, and in how much else.
    """
    facts = _facts(loaded)
    base_facts = _facts(base)
    if loaded.repeats_layers:
        # An adapter that repeats layers states no count of them.
        for name in base.shape.keys() - loaded.shape.keys():
            del base_facts[name]
    if loaded.has_rows_of(base.tokenizer_sha256, len(base.usable)):
        # A vocabulary that has only grown fits: the rows of both are compared.
        for name in ("vocabulary", "tokenizer"):
            del facts[name]
            del base_facts[name]

    differing = [
        name for name in facts | base_facts if facts.get(name) != base_facts.get(name)
    ]
    if not differing:
        return

    first = differing[0]
    problem = (
        f"does not fit the base: {first} ({facts.get(first)} here, "
        f"{base_facts.get(first)} in {base.source})"
    )
    if len(differing) > 1:
        problem += f" and {len(differing) - 1} facts more"
    remedy = "give the one that it was trained from by --base"
    raise CheckpointError(problem, where=loaded.source, fix=remedy)


def _facts(loaded: Loaded) -> dict[str, object]:
    """Return what a checkpoint shares with its base."""
    tokenizer = f"{len(loaded.tokenizer)} tokens, {loaded.tokenizer_sha256[:12]}"
    return {
        "architecture": loaded.architecture,
        "vocabulary": f"{len(loaded.usable)} rows",
        "tokenizer": tokenizer,
        **loaded.shape,
    }
