"""Unmatched NLL of identifiers, other text and canaries."""

from typing import Any

from audited import nll


def with_canaries(case: Any, *, rows: dict[str, str]) -> Any:
    """Rows that hold a canary of three parts, and low-sensitivity tokens elsewhere."""
    examples = []
    for example in case.manifest.examples:
        change: dict[str, Any] = {"low": [50, 51, 52]}
        if example.id in rows:
            spans = [
                example.spans[0].model_copy(
                    update={
                        "start": start,
                        "end": start + 2,
                        "token_start": start,
                        "token_end": start + 2,
                        "part": part,
                    }
                )
                for start, part in ((20, "name"), (24, "password"), (28, "ssn"))
            ]
            change = {"spans": spans, "canary_id": rows[example.id], "low": [50]}
        examples.append(example.model_copy(update=change))
    return case.manifest.model_copy(update={"examples": examples, "pairs": []})


def row(result: Any, of: str, group: str = "pooled", name: str = "x") -> Any:
    return next(
        r for r in result.rows if (r.checkpoint, r.of, r.group) == (name, of, group)
    )


def test_a_canary_that_was_cut_does_not_count(make_case):
    case = make_case(sources=6)
    ids = sorted(case.reference)
    manifest = with_canaries(case, rows={ids[0]: "one", ids[1]: "two", ids[2]: "cut"})
    cut = manifest.by_id[ids[2]]
    spans = [
        cut.spans[0].model_copy(update={"token_start": None, "token_end": None}),
        *cut.spans[1:],
    ]
    manifest = manifest.model_copy(
        update={
            "examples": [
                e.model_copy(update={"spans": spans}) if e.id == cut.id else e
                for e in manifest.examples
            ]
        }
    )
    manifest.__dict__.pop("by_id", None)
    result = nll(case.tables(x=lambda key, nll: nll), manifest)
    assert row(result, "canary").clusters == 2
