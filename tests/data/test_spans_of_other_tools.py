"""Annotations of other tools: their units, names and keys become ours."""

import json

import pytest
from imported_rows import imported, refusal

TEXT = "🎉 Grüße an maria@example.org, René."
MAIL = "maria@example.org"


def units(text, unit):
    return {
        "characters": len(text),
        "utf-16": len(text.encode("utf-16-le")) // 2,
        "bytes": len(text.encode()),
    }[unit]


def span_of(unit, **more):
    start = TEXT.index(MAIL)
    return {
        "start": units(TEXT[:start], unit),
        "end": units(TEXT[: start + len(MAIL)], unit),
        **more,
    }


def with_spans(path, *spans, text=TEXT):
    row = {"prompt": text, "response": "ok", "spans": list(spans)}
    path.write_text(json.dumps(row) + "\n")


@pytest.mark.parametrize("unit", ["characters", "utf-16", "bytes"])
def test_spans_in_other_units_are_converted_where_the_string_shows_it(unit, tmp_path):
    path = tmp_path / "x.jsonl"
    with_spans(path, span_of(unit, type="EMAIL", value=MAIL))
    (row,), notes = imported(path)
    assert [row.text[s.start : s.end] for s in row.spans] == [MAIL]
    assert bool(notes) == (unit != "characters")


@pytest.mark.parametrize("unit", ["utf-16", "bytes"])
def test_spans_in_other_units_without_the_string_are_told(unit, tmp_path):
    path = tmp_path / "x.jsonl"
    with_spans(path, span_of(unit, type="EMAIL"))
    assert f"give --offsets {unit}" in refusal(path)
    (row,), _ = imported(path, offsets=unit)
    assert [row.text[s.start : s.end] for s in row.spans] == [MAIL]
    with_spans(path, span_of(unit, type="EMAIL", value="paula@example.org"))
    assert "not where the annotated strings stand" in refusal(path)


def test_names_and_keys_of_other_tools_are_ours(tmp_path):
    path = tmp_path / "x.jsonl"
    place = span_of("characters")
    for span in (
        {**place, "entity_type": "EMAIL_ADDRESS", "score": 0.9},
        {**place, "label": "email"},
        [place["start"], place["end"], "EMAIL"],
    ):
        with_spans(path, span)
        (row,), _ = imported(path)
        assert [(s.type, row.text[s.start : s.end]) for s in row.spans] == [
            ("EMAIL", MAIL)
        ]
    with_spans(path, {**place, "entity_type": "PERSON"})
    assert imported(path)[1] == ["1 spans of type PERSON count as NAME"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("entities", [[5, 9, "EMAIL"]]),
        ("privacy_mask", [{"start": 5, "end": 9, "label": "EMAIL", "value": "a@b."}]),
    ],
)
def test_places_under_another_name_are_told(column, value, tmp_path):
    path = tmp_path / "x.jsonl"
    row = {"prompt": "mail a@b.", "response": "ok", column: value}
    path.write_text(json.dumps(row) + "\n")
    (read,), notes = imported(path)
    assert read.spans == ()
    assert f"column '{column}' holds places in a text and is not read" in notes[0]
    path.write_text(json.dumps({**row, column: [1, 2]}) + "\n")
    assert imported(path)[1] == []


def test_decomposed_letters_are_told_and_kept(tmp_path):
    path = tmp_path / "x.jsonl"
    with_spans(path, text="Rene\u0301 Mu\u0308ller")
    (row,), notes = imported(path)
    assert row.prompt == "Rene\u0301 Mu\u0308ller"
    assert "1 row with decomposed letters" in notes[0]
