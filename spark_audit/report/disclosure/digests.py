"""Digests of private content, keyed for shared files.

The key (``ManifestFacts.key``) is new for each report, and stands in ``report.json``
alone. Shared files and the gate's statement hold digests keyed by it.
"""

from __future__ import annotations

import hmac

from spark_audit.report.disclosure.rounding import rounded_count
from spark_audit.results import ManifestFacts

KEYED = "hmac-sha256:"
"""How a keyed digest begins."""

NOT_SHOWN = "not shown"
"""In place of a digest without a key."""


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """Return the facts of a manifest with a keyed digest and a rounded count of tokens.

    The key is left out. Without a key, a text with six unknown digits could be found
    from its digest within seconds.
    """
    if facts.key:
        digest = f"{KEYED}{keyed_digest(facts, facts.digest)}"
    elif facts.digest.startswith(KEYED):
        # These facts are from a shared report, whose digest is already keyed.
        digest = facts.digest
    else:
        digest = NOT_SHOWN

    n_tokens = rounded_count(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": digest, "key": "", "n_tokens": n_tokens})


def is_keyed(digest: str) -> bool:
    """Return whether a digest is that of a shared file."""
    return digest.startswith(KEYED) or digest == NOT_SHOWN


def keyed_digest(facts: ManifestFacts, digest: str) -> str:
    """Return the HMAC-SHA256 of a digest of private content, by the report's key.

    With the bare digest, anybody could try out guesses of the unknown content.
    """
    return hmac.new(facts.key.encode(), digest.encode(), "sha256").hexdigest()
