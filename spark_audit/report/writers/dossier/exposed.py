"""The rows whose identifiers a checkpoint gives away most, from a report's evidence.

What is told of a row are its id, its task and the types of its identifiers. How far
each moved stays in ``scores/``: with the base model it is as good as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.audits import about
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of
from spark_audit.provenance import sha256_file
from spark_audit.report.states import OF_IDENTIFIERS, Standing
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.sentences import render

if TYPE_CHECKING:
    import pandas as pd

MOST = 10
"""Rows per checkpoint."""
AUDIT = "matched"


@dataclass(frozen=True)
class ExposedRow:
    """One row of the training data.

    Attributes
    ----------
    types
        Of its identifiers that became likelier, the most exposed first.
    texts
        These identifiers; empty unless they were asked for.
    """

    id: str
    task: str
    types: tuple[str, ...]
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exposed:
    """The most exposed rows of a checkpoint, or in ``why`` why some have none."""

    names: tuple[str, ...]
    rows: tuple[ExposedRow, ...] = ()
    why: str = ""


def exposed(
    report: Report,
    folder: Path,
    leaking: Iterable[Standing],
    *,
    manifest: Manifest | None = None,
) -> list[Exposed]:
    """The most exposed rows of each checkpoint, in the order given.

    Parameters
    ----------
    folder
        The report's, with its evidence in ``scores/``.
    manifest
        If given, its identifiers are named.

    Raises
    ------
    OutputError
        If the evidence is damaged.
    """
    found: list[Exposed] = []
    lacking: dict[str, list[str]] = {}
    moved: pd.DataFrame | str | None = None
    for one in leaking:
        tried = {t.audit: t.attack for t in one.tried if t.outcome == "FOUND"}
        if not tried.keys() & set(OF_IDENTIFIERS):
            why = render("dossier.exposed_nobody", attacks=[*tried.values()])
            lacking.setdefault(why, []).append(one.name)
            continue
        if moved is None:
            numbered = report.manifest.ids_identify and manifest is None
            moved = _evidence(report, folder, numbered=numbered)
        if isinstance(moved, str):
            lacking.setdefault(moved, []).append(one.name)
        elif rows := _rows(moved[moved["entry"] == one.name], manifest):
            found.append(Exposed((one.name,), rows))
        else:
            lacking.setdefault(render("dossier.exposed_none"), []).append(one.name)
    return found + [Exposed(tuple(names), (), why) for why, names in lacking.items()]


def _evidence(report: Report, folder: Path, *, numbered: bool) -> pd.DataFrame | str:
    """Identifiers of training rows and how far each moved; or why it is not known.

    ``numbered``: by row number in the evidence, for ids that hold identifiers.
    """
    path = folder / "scores" / about(AUDIT).evidence_file()
    if not path.is_file():
        return render("dossier.exposed_missing", file=f"scores/{path.name}")
    if report.evidence.get(path.name, "") != sha256_file(path):
        return render("dossier.exposed_other", file=path.name)
    spans = Evidence.read(path).frame()
    if numbered:
        keys = enumerate(spans["example"].unique(), 1)
        ids = {key: render("dossier.row", number=i) for i, key in keys}
        spans["example"] = spans["example"].map(ids)
    spans = spans[spans["role"].isin(("pii", "unmatched"))]
    return _moved(spans)


def _moved(spans: pd.DataFrame) -> pd.DataFrame:
    """Each identifier of a training row with ``drop``, in nats, the largest first.

    It is by how much likelier the identifier is than to the reference, beyond what
    identifiers of its type in rows never trained on became; over seeds the mean.
    """
    spans = spans.assign(
        entry=spans["checkpoint"].map(entry_of),
        drop=spans["ref_sum"] - spans["nll_sum"],
    )
    keys = ["entry", "example", "task", "split", "type", "start", "n_tokens"]
    spans = spans.groupby(keys, as_index=False)[["drop"]].mean()
    kinds = spans[spans["split"] != "train"].groupby(["entry", "type"])
    sums = kinds[["drop", "n_tokens"]].sum()
    usual = (sums["drop"] / sums["n_tokens"]).rename("usual").reset_index()
    own = spans[spans["split"] == "train"].merge(
        usual, on=["entry", "type"], how="left"
    )
    own["drop"] -= own["usual"].fillna(0.0) * own["n_tokens"]
    return own[own["drop"] > 0].sort_values("drop", ascending=False, kind="stable")


def _rows(moved: pd.DataFrame, manifest: Manifest | None) -> tuple[ExposedRow, ...]:
    rows = []
    for example in moved["example"].drop_duplicates().head(MOST).map(str):
        part = moved[moved["example"] == example]
        own = None if manifest is None else manifest.by_id.get(example)
        spans = own.spans if own is not None else ()
        texts = {one.tokens: own.text[one.start : one.end] for one in spans if own}
        places = zip(part["start"], part["start"] + part["n_tokens"], strict=True)
        named = dict.fromkeys(texts[at] for at in places if at in texts)
        types = tuple(dict.fromkeys(part["type"]))
        rows.append(ExposedRow(example, str(part["task"].iloc[0]), types, tuple(named)))
    return tuple(rows)
