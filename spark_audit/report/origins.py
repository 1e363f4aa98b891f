"""Whose report it is: what of machine, seed and text is taken out of shared files."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator

from spark_audit.report.rounding import count_of
from spark_audit.results import CheckpointFacts, ManifestFacts

KEYED = "hmac-sha256:"
_PATH = re.compile(
    r"(?<![\w./:\\-])(?:[A-Za-z]:)?[/\\](?:[^/\\\n:=,]*[/\\])*(?=[^/\\])"
)
"""Folders of an absolute path: they tell whose machine it was."""


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """The digest of a text with six unknown digits is found in seconds: it is keyed."""
    given = facts.digest
    if facts.key:
        made = hmac.new(facts.key.encode(), given.encode(), "sha256").hexdigest()
        given = f"{KEYED}{made}"
    elif not given.startswith(KEYED):
        given = "not shown"
    tokens = count_of(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": given, "key": "", "n_tokens": tokens})


def checkpoint_facts(facts: CheckpointFacts) -> CheckpointFacts:
    """A checkpoint by the names of its files, without their absolute paths."""
    paths = {"source": facts.source, "base": facts.base}
    return facts.model_copy(
        update={name: path and _PATH.sub("", path) for name, path in paths.items()}
    )


def command_line(words: Iterable[str]) -> Iterator[str]:
    """A command without absolute paths, and without its seed.

    The noise of DP-SGD follows from that.
    """
    after = False
    for word in words:
        named, equals, _ = word.partition("=")
        seed = named == "--seed" and bool(equals)
        yield "..." if after else "--seed=..." if seed else _PATH.sub("", word)
        after = word == "--seed"
