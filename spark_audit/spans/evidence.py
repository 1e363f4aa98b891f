"""The evidence of the matched audit: one row a checkpoint, span and role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from spark_audit.manifest import Manifest
from spark_audit.spans import Sums, audited_spans
from spark_audit.stats.matching import non_overlapping_windows


def evidence(manifest: Manifest, sums: Mapping[str, Sums]) -> pd.DataFrame:
    """What the matched audit concludes from, for every checkpoint in ``sums``.

    Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
    without a control) and ``window`` (eligible non-PII text of a span's length, the
    pool that regression to the mean is estimated on). ``nll_sum`` is the checkpoint's,
    ``ref_sum`` the reference's, both in nats.
    """
    skeleton = _skeleton(manifest)
    if not len(skeleton):
        return skeleton
    at = (
        skeleton["index"].to_numpy(),
        skeleton["start"].to_numpy(),
        skeleton["n_tokens"].to_numpy(),
    )
    skeleton["ref_sum"] = Sums.of_reference(manifest)(*at)
    parts = []
    for name, of_checkpoint in sums.items():
        nll = of_checkpoint(*at)
        parts.append(skeleton.assign(checkpoint=name, nll_sum=nll))
    return pd.concat(parts, ignore_index=True).drop(columns="index")


def _skeleton(manifest: Manifest) -> pd.DataFrame:
    """The spans of every role, without scores."""
    index = {example.id: i for i, example in enumerate(manifest.examples)}
    records: list[tuple[Any, ...]] = []

    def add(i: int, role: str, kind: str, pair: int, start: int, end: int) -> None:
        example = manifest.examples[i]
        records.append(
            (
                i,
                example.id,
                example.cluster,
                example.task,
                example.split,
                role,
                kind,
                pair,
                start,
                end - start,
            )
        )

    paired = set()
    for number, pair in enumerate(manifest.pairs):
        i, pii, control = index[pair.example], pair.pii, pair.control
        paired.add((i, pii.token_start, pii.token_end))
        add(i, "pii", pii.type, number, pii.token_start, pii.token_end)
        add(i, "control", pii.type, number, control.token_start, control.token_end)
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            types = {(s.token_start, s.token_end): s.type for s in example.spans}
            for start, end in ranges:
                if (i, start, end) not in paired:
                    add(i, "unmatched", types[start, end], -1, start, end)
            for length in sorted({end - start for start, end in ranges}):
                for start in non_overlapping_windows(example.eligible, length):
                    add(i, "window", "", -1, int(start), int(start) + length)
    columns = "index example cluster task split role type pair start n_tokens"
    return pd.DataFrame.from_records(records, columns=columns.split())
