"""The canaries of a manifest that can be ranked among candidates."""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.manifest.schema import Manifest, ManifestCanary

MIN_CANDIDATES = 2
"""Among fewer candidates a rank says nothing."""

MAX_ASSUMED_CANDIDATES = 4096
"""Most candidates that are taken from the settings, where there is no set to count."""


def ranked_canaries(manifest: Manifest) -> list[ManifestCanary]:
    """Return each part of a canary that can be ranked.

    A redacted manifest has no candidates: then all parts count that have a context.
    """
    is_redacted = manifest.redacted_from is not None
    ranked = []
    for canary in manifest.canaries:
        is_known = len(canary.candidates) >= MIN_CANDIDATES
        if is_known or (is_redacted and canary.contexts):
            ranked.append(canary)
    return ranked


def candidates_of(manifest: Manifest, ranked: Sequence[ManifestCanary]) -> int:
    """Return the number of candidates of a canary, which is the same for all.

    Parameters
    ----------
    ranked
        From :func:`ranked_canaries`. Without any set, the settings tell the number.
    """
    sizes = [len(canary.candidates) for canary in ranked if canary.candidates]
    if sizes:
        return min(sizes)
    n_candidates = min(manifest.settings.n_candidates, MAX_ASSUMED_CANDIDATES)
    return max(n_candidates, MIN_CANDIDATES)
