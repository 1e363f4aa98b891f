"""Compare a checkpoint with the given base, by their headers."""

from __future__ import annotations

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.errors import CheckpointError


def check_base(loaded: Checkpoint, base: Checkpoint) -> None:
    """Refuse a checkpoint that does not fit the given base.

    Full weights do not say which base they come from, and an adapter may bring another
    tokenizer. So everything in the headers of both is compared.

    Raises
    ------
    CheckpointError
        Names the first difference, and the number of others.
    """
    facts = _facts(loaded)
    base_facts = _facts(base)
    if loaded.repeats_layers:
        # An adapter that repeats layers does not state their number.
        for name in base.shape.keys() - loaded.shape.keys():
            del base_facts[name]
    if loaded.has_rows_of(base.tokenizer_sha256, len(base.usable)):
        # A vocabulary that has only grown fits: its common rows are compared.
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


def _facts(loaded: Checkpoint) -> dict[str, object]:
    """Return the properties that a checkpoint must share with its base, in words.

    A further property is an entry here; its key and values are words of the error.
    """
    tokenizer = f"{len(loaded.tokenizer)} tokens, {loaded.tokenizer_sha256[:12]}"
    return {
        "architecture": loaded.architecture,
        "vocabulary": f"{len(loaded.usable)} rows",
        "tokenizer": tokenizer,
        **loaded.shape,
    }
