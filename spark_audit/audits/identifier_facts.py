"""Where each identifier stands: in how many trained rows, and in which kind of place.

An identifier that stands in a trained row is no held-out one, whatever row it is read
in; its dose is the number of trained rows that it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.data.canaries import FRAMES
from spark_audit.data.occurrences import doses, folded
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan
from spark_audit.results.findings import Power
from spark_audit.stats.memory_contrast import Memory, Sides

TOLD_APART = (
    "the texts of trained and held-out identifiers differ, or too few can be compared"
)


@dataclass(frozen=True)
class Moved:
    """How identifiers of one group moved, and what they rest on.

    Attributes
    ----------
    own
        Change of their NLL, on either side, and the difference: memory.
    beyond
        The same of the change minus that of their controls, where they have one: on
        the never-trained side, of the kind; the difference is specific selectivity.
    reach
        Nats by which the sides were clearly unequally hard on the reference.
    p
        Of no difference; two-sided.
    power
        What the smallest difference that is detected follows from.
    """

    own: Memory
    beyond: Memory
    reach: float = 0.0
    p: float | None = None
    power: tuple[Power, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All facts on one occurrence except its scores.

    Attributes
    ----------
    dose
        Trained rows that its string stands in; 0: it is held out.
    form, cue
        Numbers of the format of an injected identifier and of the sentence that it was
        injected with. Of an annotated one 0, and the third of its prompt or response
        that it stands in, from 1.
    stratum, text_auc
        Of an annotated identifier, see :func:`~spark_audit.audits.strata.strata`; 0
        and NaN for an injected one: chance dealt it to its side.
    """

    dose: int
    form: int
    cue: int
    stratum: int = 0
    text_auc: float = np.nan


def string_of(row: ManifestExample, span: ManifestSpan) -> str:
    """An identifier as identifiers are compared: but for case and blanks around it."""
    return folded(row.text[span.start : span.end].strip())


def identifier_facts(manifest: Manifest) -> dict[tuple[str, int, int], Facts]:
    """Facts of every annotated span, by example and first and last character."""
    rows = manifest.examples
    annotated = [[string_of(row, span) for span in row.spans] for row in rows]
    known = doses([row.text * (row.split == "train") for row in rows], annotated)
    forms: dict[str, int] = {}
    found, natural = {}, []
    for row, strings in zip(rows, annotated, strict=True):
        for span, string in zip(row.spans, strings, strict=True):
            # What is trained on stands in one trained row at least.
            dose = max(known[string], int(row.split == "train"))
            form = cue = 0
            if span.origin == "injected":
                marks = "".join(char for char in string if not char.isalnum())
                form = forms.setdefault(f"{span.type} {marks}", len(forms) + 1)
                cue = _cue(row.text, span)
            elif row.canary_id is None and row.text:
                natural.append(_place(row, span, dose))
                cue = int(natural[-1].pop("third"))
            found[row.id, span.start, span.end] = Facts(dose, form, cue)
    if natural:
        from spark_audit.audits.strata import strata

        spans = pd.DataFrame.from_records(natural, index="key")
        for key, stratum, auc in strata(spans).itertuples(name=None):
            found[key] = replace(found[key], stratum=stratum, text_auc=auc)
    return found


def _place(row: ManifestExample, span: ManifestSpan, dose: int) -> dict[str, Any]:
    """An annotated identifier and where it stands, as :func:`strata` takes it."""
    inside = span.start - len(row.prompt)
    at, size = (inside, row.response) if inside >= 0 else (span.start, row.prompt)
    return {
        "key": (row.id, span.start, span.end),
        "type": span.type,
        "string": row.text[span.start : span.end].strip(),
        "part": inside >= 0,
        "later": any(other.end <= span.start for other in row.spans),
        "third": 1 + 3 * at // len(size),
        "context": row.text[: span.start],
        "cluster": row.cluster,
        "side": 1 if row.split == "train" else 0 if dose == 0 else -1,
    }


def comparable(spans: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """Identifiers that have a control, and whether text alone tells them all apart.

    Annotated ones that text tells apart are left out; where nothing else is left they
    stay, and whatever their figures are is confounded with their text.
    """
    apart = spans["stratum"] < 0
    kept = spans[~apart]
    if set(kept["split"]) == {"train", "test"} or not apart.any():
        return kept, False
    return spans, True


def sides_of(spans: pd.DataFrame) -> Sides:
    """Occurrences on either side, from ``split``, ``cluster``, type, form and place.

    Each weighs by its column ``n_tokens``, without one alike. Annotated identifiers
    are never compared with those of another form.
    """
    kinds = spans[["type", "stratum"]].assign(stratum=spans["stratum"].abs())
    strata = [kinds.groupby([*kinds]).ngroup(), *(spans[k] for k in ("form", "cue"))]
    codes = [pd.factorize(each)[0] for each in strata]
    trained, tokens = spans["split"] == "train", spans.get("n_tokens")
    return Sides.of(trained, spans["cluster"], codes, tokens)


def _cue(text: str, span: ManifestSpan) -> int:
    """Number of the frame that the identifier was injected with; 0: none of ours."""
    for number, frame in enumerate(FRAMES.get(span.type, ()), start=1):
        head, tail = frame.split("{}")
        if text[: span.start].endswith(head) and text[span.end :].startswith(tail):
            return number
    return 0
