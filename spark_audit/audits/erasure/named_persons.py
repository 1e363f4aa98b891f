"""How many persons or sources a forget set names, where it names no single rows."""

from __future__ import annotations

from collections.abc import Iterable

from spark_audit.audits.erasure.forget_set import ForgetRequest
from spark_audit.manifest.schema import Manifest


def n_named_persons(requests: Iterable[ForgetRequest], manifest: Manifest) -> int:
    """Return the number of sources and groups of rows that files of ids name.

    0: a request is for single rows, a task or a stage, which name no person.
    """
    row_ids = {example.id for example in manifest.examples}
    named: set[str] = set()
    for request in requests:
        if not request.ids or not row_ids.isdisjoint(request.ids):
            return 0
        named.update(request.ids)
    return len(named)
