"""The evidence of the matched audit: one row a checkpoint, span and role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.spans import Sums, audited_spans
from spark_audit.data.injection import FRAMES
from spark_audit.data.occurrences import folded, standing
from spark_audit.manifest.schema import Manifest, ManifestSpan
from spark_audit.stats.matching import non_overlapping_windows


def evidence(manifest: Manifest, sums: Mapping[str, Sums]) -> pd.DataFrame:
    """What the matched audit concludes from, for every checkpoint in ``sums``.

    Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
    without a control), ``window`` (eligible non-PII text of a span's length, the
    pool that regression to the mean is estimated on) and ``low`` (the tokens of low
    sensitivity of an example, one row an example). ``nll_sum`` is the checkpoint's,
    ``ref_sum`` the reference's, both in nats. ``trained`` is 1 where the identifier's
    string stands in a trained row, whichever row it is read in; ``form`` and ``cue``
    number the format of an injected identifier and the sentence it was injected with,
    0 for any other text.
    """
    skeleton, low = _skeleton(manifest)
    if not len(skeleton):
        return skeleton
    at = tuple(skeleton[name].to_numpy() for name in ("index", "start", "n_tokens"))
    whole = pd.concat([skeleton, low], ignore_index=True)

    def scored(found: Sums) -> np.ndarray:
        rows = [found.of_tokens(i, manifest.examples[i].low) for i in low["index"]]
        return np.concatenate([found(*at), np.array(rows, dtype=np.float64)])

    whole["ref_sum"] = scored(Sums.of_reference(manifest))
    parts = [
        whole.assign(checkpoint=name, nll_sum=scored(of_checkpoint))
        for name, of_checkpoint in sums.items()
    ]
    return pd.concat(parts, ignore_index=True).drop(columns="index")


def _skeleton(manifest: Manifest) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The spans of every role, without scores; beside them the ``low`` rows."""
    index = {example.id: i for i, example in enumerate(manifest.examples)}
    records: list[tuple[Any, ...]] = []
    low: list[tuple[Any, ...]] = []
    known = _trained_strings(manifest)
    forms: dict[str, int] = {}

    def add(
        i: int, role: str, kind: str, pair: int, start: int, end: int, *facts: int
    ) -> None:
        example = manifest.examples[i]
        own = (example.id, example.cluster, example.task, example.split)
        (low if role == "low" else records).append(
            (i, *own, role, kind, pair, start, end - start, *(facts or (0, 0, 0)))
        )

    def facts(i: int, start: int, end: int) -> tuple[int, int, int]:
        example = manifest.examples[i]
        span = next(s for s in example.spans if s.tokens == (start, end))
        text = example.text
        string = text[span.start : span.end]
        trained = int(example.split == "train" or folded(string.strip()) in known)
        if span.origin != "injected":
            return trained, 0, 0
        marks = "".join(char for char in string if not char.isalnum())
        form = forms.setdefault(f"{span.type} {marks}", len(forms) + 1)
        return trained, form, _cue(text, span)

    paired = set()
    for number, pair in enumerate(manifest.pairs):
        i, pii, control = index[pair.example], pair.pii, pair.control
        place = (i, pii.token_start, pii.token_end)
        paired.add(place)
        add(i, "pii", pii.type, number, *place[1:], *facts(*place))
        add(i, "control", pii.type, number, control.token_start, control.token_end)
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            types = {s.tokens: s.type for s in example.spans}
            for place in ((i, *found) for found in ranges):
                if place not in paired:
                    add(
                        i, "unmatched", types[place[1:]], -1, *place[1:], *facts(*place)
                    )
            for length in sorted({end - start for start, end in ranges}):
                for start in non_overlapping_windows(example.eligible, length):
                    add(i, "window", "", -1, int(start), int(start) + length)
            if example.low:
                add(i, "low", "", -1, 0, len(example.low))
    names = "index example cluster task split role type pair start n_tokens".split()
    columns = [*names, "trained", "form", "cue"]
    return (
        pd.DataFrame.from_records(records, columns=columns),
        pd.DataFrame.from_records(low, columns=columns),
    )


def _trained_strings(manifest: Manifest) -> set[str]:
    """Identifiers that stand in trained rows, annotated there or not."""
    texts = {e.id: e.text for e in manifest.examples}
    strings = {
        split: {
            folded(texts[example.id][span.start : span.end].strip())
            for example in manifest.examples
            if example.split == split
            for span in example.spans
        }
        for split in ("train", "test")
    }
    rows = [texts[e.id] for e in manifest.examples if e.split == "train"]
    return strings["train"].union(*standing(rows, strings["test"] - {""}))


def _cue(text: str, span: ManifestSpan) -> int:
    """Number of the frame that the identifier was injected with; 0: none of ours."""
    for number, frame in enumerate(FRAMES.get(span.type, ()), start=1):
        head, tail = frame.split("{}")
        if text[: span.start].endswith(head) and text[span.end :].startswith(tail):
            return number
    return 0
