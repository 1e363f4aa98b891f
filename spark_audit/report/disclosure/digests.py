"""Digests of private content, keyed for shared files."""

from __future__ import annotations

import hmac

from spark_audit.report.disclosure.rounding import count_of
from spark_audit.results import ManifestFacts

KEYED = "hmac-sha256:"


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """Return the facts of a manifest with a keyed digest and a rounded count of tokens.

    The digest of a text with six unknown digits is found in seconds, if it has no key.
    """
    given = facts.digest
    if facts.key:
        given = f"{KEYED}{keyed_digest(facts, given)}"
    elif not given.startswith(KEYED):
        given = "not shown"
    tokens = count_of(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": given, "key": "", "n_tokens": tokens})


def keyed_digest(facts: ManifestFacts, digest: str) -> str:
    """Return the HMAC-SHA256 of a digest of private content, by the report's key.

    Against the digest itself whatever is unknown of the content could be tried out.
    """
    return hmac.new(facts.key.encode(), digest.encode(), "sha256").hexdigest()
