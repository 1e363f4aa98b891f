"""Where each identifier stands: in how many trained rows, and in which kind of place.

An identifier that stands in a trained row is no held-out one, whatever row it is read
in; its dose is the number of trained rows that it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.data.injection import FRAMES
from spark_audit.data.occurrences import doses, folded
from spark_audit.manifest.schema import Manifest, ManifestSpan
from spark_audit.results import Estimate
from spark_audit.stats.memory import Sides, memory

OLD = "evidence of an earlier version does not say what stands in rows never trained on"


@dataclass(frozen=True)
class Facts:
    """What is known of one occurrence beside its scores.

    Attributes
    ----------
    dose
        Trained rows that its string stands in; 0: it is held out.
    form, cue
        Numbers of the format of an injected identifier and of the sentence that it was
        injected with; 0 for any other text.
    """

    dose: int
    form: int
    cue: int


def identifier_facts(manifest: Manifest) -> dict[tuple[str, int, int], Facts]:
    """Facts of every annotated span, by example and first and last character."""
    rows = manifest.examples
    annotated = [
        [folded(row.text[span.start : span.end].strip()) for span in row.spans]
        for row in rows
    ]
    known = doses([row.text * (row.split == "train") for row in rows], annotated)
    forms: dict[str, int] = {}
    found = {}
    for row, strings in zip(rows, annotated, strict=True):
        for span, string in zip(row.spans, strings, strict=True):
            # What is trained on stands in one trained row at least.
            dose = max(known[string], int(row.split == "train"))
            form = cue = 0
            if span.origin == "injected":
                marks = "".join(char for char in string if not char.isalnum())
                form = forms.setdefault(f"{span.type} {marks}", len(forms) + 1)
                cue = _cue(row.text, span)
            found[row.id, span.start, span.end] = Facts(dose, form, cue)
    return found


def sides_of(spans: pd.DataFrame) -> Sides:
    """Occurrences on either side, from ``split``, ``cluster``, type, form and cue.

    Each weighs by its column ``n_tokens``, without one alike.
    """
    kinds = [pd.factorize(spans[name])[0] for name in ("type", "form", "cue")]
    tokens = spans.get("n_tokens")
    return Sides(
        trained=(spans["split"] == "train").to_numpy(),
        tokens=np.ones(len(spans)) if tokens is None else tokens.to_numpy(),
        clusters=pd.factorize(spans["cluster"])[0],
        strata=np.stack(kinds, axis=1),
    )


def since_base(ours: pd.DataFrame, base: pd.DataFrame, column: str) -> Estimate:
    """Change of a column since the base, of trained identifiers beyond held-out ones.

    Parameters
    ----------
    ours, base
        Evidence of a checkpoint and of the base, the same rows in the same order.
    """
    if not len(base):
        return Estimate.missing("the base was not scored: give --base")
    if "dose" not in ours or ours["dose"].isna().any() or len(ours) != len(base):
        return Estimate.missing(OLD)
    change = ours[column].to_numpy(np.float64) - base[column].to_numpy(np.float64)
    held = ((ours["split"] == "train") | (ours["dose"] == 0)).to_numpy()
    return memory(change[held], sides_of(ours[held])).difference


def _cue(text: str, span: ManifestSpan) -> int:
    """Number of the frame that the identifier was injected with; 0: none of ours."""
    for number, frame in enumerate(FRAMES.get(span.type, ()), start=1):
        head, tail = frame.split("{}")
        if text[: span.start].endswith(head) and text[span.end :].startswith(tail):
            return number
    return 0
