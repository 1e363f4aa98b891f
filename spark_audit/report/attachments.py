"""What no audit makes: tables on the matching, and the tokens of some examples.

Tables are part of ``report.json``, and figures are drawn from them. Token scores are
not: with the base model a text can be read from them, so they stay in ``scores/``.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_audit.errors import OutputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import BASE
from spark_audit.scoring.table import Pass, TokenTable, read_parquet, write_parquet

Records = list[dict[str, Any]]

MATCHING = ("matching_by_type", "balance")
NLL = "nll/"
"""Before the name of a checkpoint: a column of :func:`cases`."""

CASES = 4
"""Examples whose tokens a report shows, at most one a task while there are more."""
CASE_TOKENS = 256
CASE_LEAD = 64
"""Tokens shown of an example, and of them before its first identifier."""


def matching(manifest: Manifest) -> dict[str, Records]:
    """What the manifest says of its own matching, for every report made with it."""
    matched = Counter(pair.pii.type for pair in manifest.pairs)
    lost: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for span in manifest.unmatched:
        lost[span.type][span.reason] += 1
    return {
        "matching_by_type": [
            {
                "type": kind,
                "matched": matched[kind],
                "unmatched": lost[kind].total(),
                "reasons": "; ".join(
                    f"{n} {why}" for why, n in sorted(lost[kind].items())
                ),
            }
            for kind in sorted({*matched, *lost})
        ],
        "balance": [row.model_dump() for row in manifest.balance],
    }


def case_ids(manifest: Manifest) -> list[str]:
    """Examples to show: trained on, with a pair, no canary; by a hash of their id.

    They are chosen before anything is scored and never by what came out; one of every
    task first.
    """
    paired = {pair.example for pair in manifest.pairs}
    found = sorted(
        (hashlib.sha256(example.id.encode()).digest(), example.id, example.task)
        for example in manifest.examples
        if example.id in paired and example.split == "train" and not example.canary_id
    )
    first = {task: key for _, key, task in reversed(found)}.values()
    keys = [key for _, key, _ in found]
    return sorted(keys, key=lambda key: key not in first)[:CASES]


def cases(
    manifest: Manifest,
    places: Mapping[str, tuple[np.ndarray, np.ndarray]],
    tables: Mapping[str, Mapping[Pass, TokenTable]],
) -> Records:
    """One record a token of :func:`case_ids`: its place, its role, and its NLLs.

    Parameters
    ----------
    places
        Example -> first and last characters of its tokens, shape ``(T,)`` each.
    tables
        Those of each checkpoint; the plain pass is read. The manifest's reference
        scores stand for ``base`` where that was not scored.
    """
    scored = {name: own[Pass()] for name, own in tables.items() if Pass() in own}
    records: Records = []
    for key, (starts, ends) in places.items():
        example = manifest.by_id[key]
        roles = _roles(manifest, example)
        known: dict[str, dict[int, float]] = {}
        for name, table in scored.items():
            rows = table.rows(key) if key in table else slice(0)
            nlls = (round(float(nll), 4) for nll in table.columns["nll"][rows])
            known[name] = dict(zip(table.position[rows].tolist(), nlls, strict=True))
        if known and BASE not in known:
            told = enumerate(example.reference_unll)
            reference = {
                at: round(unll / 1e6, 4) for at, unll in told if unll is not None
            }
            known = {BASE: reference, **known}
        # Of a long text what is around its first identifier is shown.
        low, high = example.kept
        if high - low > CASE_TOKENS:
            first = min(at for at, (role, _) in roles.items() if role == "pii")
            low = min(max(low, first - CASE_LEAD), high - CASE_TOKENS)
            high = low + CASE_TOKENS
        for position in range(max(low, 0), high):
            role, kind = roles.get(position, ("", ""))
            scores = {f"{NLL}{name}": own.get(position) for name, own in known.items()}
            records.append(
                {
                    "example": key,
                    "task": example.task,
                    "position": position,
                    "start": int(starts[position]),
                    "end": int(ends[position]),
                    "role": role,
                    "type": kind,
                    **scores,
                }
            )
    return records


def united(reports: Sequence[Mapping[str, Records]]) -> dict[str, Records]:
    """The tables on the matching, of several reports over one manifest."""
    found = {
        key: next(filter(None, (t.get(key) for t in reports)), []) for key in MATCHING
    }
    return {key: records for key, records in found.items() if records}


def united_cases(reports: Sequence[tuple[Records, Mapping[str, str]]]) -> Records:
    """The :func:`cases` of several reports over one manifest, each checkpoint once.

    ``reports`` are records, and the new name of each of their checkpoints.
    """
    tokens: dict[tuple[str, int], dict[str, Any]] = {}
    for records, names in reports:
        columns = {f"{NLL}{old}": f"{NLL}{new}" for old, new in names.items()}
        for record in records:
            mine = {columns.get(key, key): value for key, value in record.items()}
            place = (record["example"], record["position"])
            tokens[place] = {**mine, **tokens.get(place, {})}
    return list(tokens.values())


_TEXTS = ("example", "task", "role", "type")
PLACE = pa.schema(
    pa.field(name, pa.string() if name in _TEXTS else pa.int64(), nullable=False)
    for name in ("example", "task", "position", "start", "end", "role", "type")
)
"""Columns of :func:`cases` beside the NLLs."""


def cases_file(folder: Path) -> Path:
    """Where a report folder has its :func:`cases`, for the owner only."""
    return folder / "scores" / "cases.parquet"


def write_cases(folder: Path, records: Records) -> None:
    """Write :func:`cases` into a report folder; none: remove what stood there."""
    path = cases_file(folder)
    if records:
        schema = _schema(key for key in records[0] if key.startswith(NLL))
        write_parquet(pa.Table.from_pylist(records, schema), path)
    else:
        path.unlink(missing_ok=True)


def _schema(scores: Iterable[str]) -> pa.Schema:
    return pa.schema([*PLACE, *(pa.field(name, pa.float64()) for name in scores)])


def read_cases(folder: Path) -> Records:
    """The :func:`cases` of a report folder; none where it has no such file.

    Raises
    ------
    OutputError
        If the file is none of :func:`write_cases`.
    """
    path = cases_file(folder)
    if not path.exists():
        return []
    table = read_parquet(path)
    if table.schema != _schema(k for k in table.schema.names if k.startswith(NLL)):
        raise OutputError(
            "is no table of token scores", where=str(path), fix="audit again"
        )
    return [dict(record) for record in table.to_pylist()]


def _roles(manifest: Manifest, example: ManifestExample) -> dict[int, tuple[str, str]]:
    """Token -> ``pii`` (every annotated identifier) or ``control``, and the type."""
    found: dict[int, tuple[str, str]] = {}
    for pair in manifest.pairs:
        if pair.example == example.id:
            for at in range(pair.control.token_start, pair.control.token_end):
                found[at] = ("control", pair.pii.type)
    for span in example.spans:
        if span.tokens is not None:
            for at in range(*span.tokens):
                found[at] = ("pii", span.type)
    return found
