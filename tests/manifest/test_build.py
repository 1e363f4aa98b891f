"""From examples and a reference model to a manifest."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from marked import made_table, make_canary_row, make_example

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data import canary_candidates
from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example
from spark_audit.data.injection import inject
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.canary_sets import rankable_parts
from spark_audit.manifest.redaction import redact
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for, score
from spark_audit.provenance import canonical_json
from spark_audit.scoring.score import item
from spark_audit.scoring.table import Pass
from spark_audit.stats.matching import micro_nats

SMALL = {"n_candidates": 4}
Build = Callable[..., Manifest]


def content(manifest: Manifest) -> bytes:
    return canonical_json(manifest.model_dump(mode="json"))


@pytest.fixture
def build(rows, reference, made_scores) -> Build:
    """``build(examples=rows, loaded=reference, **options)``."""

    def make(
        examples: list[Example] | None = None,
        *,
        loaded: Any = reference,
        **options: Any,
    ) -> Manifest:
        options = {"name": "small", "caliper": 1.0, **SMALL, **options}
        return build_manifest(rows if examples is None else examples, loaded, **options)

    return make


def with_fields(loaded: Any, **fields: Any) -> Any:
    return SimpleNamespace(**{**vars(loaded), **fields})


# --- what it holds --------------------------------------------------------------------


def test_every_example_is_there_by_id_with_its_scores(build, rows, reference):
    manifest = build()
    assert [e.id for e in manifest.examples] == sorted(e.id for e in rows)
    encodings = encode(reference.tokenizer, [row.text for row in rows])
    for row, encoding in zip(rows, encodings, strict=True):
        example = manifest.by_id[row.id]
        assert (example.prompt, example.response) == (row.prompt, row.response)
        assert (example.task, example.split, example.source_id) == (
            row.task,
            row.split,
            row.source_id,
        )
        assert example.kept == (0, len(encoding))
        assert len(example.reference_unll) == len(example.classes) == len(encoding)
        table = made_table([item(row.id, encoding, example.kept)])
        assert example.reference_micronats[0] == -1
        assert (
            example.reference_micronats[1:].tolist()
            == micro_nats(table.columns["nll"]).tolist()
        )
        assert example.canary_id == (row.canary.id if row.canary else None)
        for span, manifest_span in zip(row.spans, example.spans, strict=True):
            tokens = encoding.span(span.start, span.end)
            assert (manifest_span.token_start, manifest_span.token_end) == (
                tokens.start,
                tokens.end,
            )
            assert (manifest_span.start, manifest_span.end, manifest_span.type) == (
                span.start,
                span.end,
                span.type,
            )
            assert not example.eligible[tokens.start : tokens.end].any()
        assert not set(example.low) & set(
            np.flatnonzero(example.reference_micronats < 0).tolist()
        )


def test_versions_data_files_and_notes_are_recorded(build, tmp_path, reference):
    file = tmp_path / "yelp.jsonl"
    file.write_bytes(b"rows")
    manifest = build(
        data=[file], loaded=with_fields(reference, notes=("read in float32",))
    )
    sha = hashlib.sha256(b"rows").hexdigest()
    assert manifest.data == [{"file": "yelp.jsonl", "sha256": sha}]
    assert str(tmp_path) not in content(manifest).decode()
    assert "numpy" in manifest.versions
    assert manifest.notes[-2:] == [
        "reference: read in float32",
        "reference: by arithmetic",
    ]
    assert manifest.reference.name == "arithmetic"
    assert manifest.reference.usable_vocab == 300


def test_cut_texts_are_counted_and_said(build):
    long = "The food was cold. " * 20
    held = make_canary_row("canary")
    manifest = build(
        [
            make_example("a", f"Ann Lee wrote. {long}", pii={"Ann Lee": "NAME"}),
            make_example("b", "Ask Ann Lee about food", pii={"Ann Lee": "NAME"}),
            replace(held, prompt=f"{held.prompt}{long}"),
        ],
        max_length=60,
    )
    assert manifest.counts["texts_cut"] == 2
    assert manifest.counts["spans_cut"] == 1
    assert manifest.counts["canary_rows_cut"] == 1
    example = manifest.by_id["a"]
    assert example.kept[1] - example.kept[0] == 59
    assert (example.reference_micronats[: example.kept[0]] == -1).all()
    assert (example.spans[0].token_start, example.spans[0].token_end) == (None, None)
    assert manifest.notes[:3] == [
        "2 of 3 texts are longer than 60 tokens: their prompts were cut from the start,"
        " 1 spans were lost",
        "1 rows lost their canary to the context's length",
        "3 of 3 canary parts cannot be ranked: cut off: text longer than the context",
    ]


def test_what_cannot_be_ranked_is_known_before_the_training(
    build, rows, reference, monkeypatch
):
    """The counts from rows and a tokenizer alone are those of the manifest."""
    # So few draws give some parts too few candidates.
    monkeypatch.setattr(canary_candidates, "MAX_DRAWS", 600)
    plain = [row for row in rows if row.canary is None]
    injected, _ = inject(plain, seed=4, rate=0.0, canaries=4)
    manifest = build(injected, n_candidates=150)
    counts_by_part = rankable_parts(
        injected[::-1], reference.tokenizer, manifest.settings
    )
    for part, counts in counts_by_part.items():
        canaries = [canary for canary in manifest.canaries if canary.part == part]
        unrankable = [canary.n_tokens for canary in canaries if not canary.candidates]
        assert counts.n == len(canaries) == 4
        assert sorted(counts.n_tokens_of_unrankable) == sorted(unrankable)
    n_unrankable = sum(counts.n_unrankable for counts in counts_by_part.values())
    assert 0 < n_unrankable < len(manifest.canaries)


def test_data_without_identifiers_has_no_pairs_and_says_so(build):
    words = ("cold", "fine", "read", "paid")
    manifest = build([make_example(f"e{w}", f"The food was {w} again") for w in words])
    assert manifest.pairs == manifest.unmatched == manifest.balance == []
    assert manifest.notes[0] == (
        "no identifier was annotated in scored text: there are no pairs"
    )
    assert "there are no non-members" in manifest.notes
    assert manifest.membership.members == [f"e{word}" for word in sorted(words)]


def test_a_line_break_is_no_control(build):
    """Of one token, as a short name is: its characters would be none."""
    rows = [
        make_example(f"e{i}", f"a\n a {'read ' * i}\n the\n food\nA", pii={"A": "NAME"})
        for i in range(12)
    ]
    manifest = build(rows, caliper=20.0, preset="paper")
    assert len(manifest.pairs) > 4
    for pair in manifest.pairs:
        text = manifest.by_id[pair.example].text
        control = text[pair.control.char_start : pair.control.char_end]
        assert control.strip()


# --- the same bytes -------------------------------------------------------------------


def test_same_inputs_give_the_same_bytes_in_any_order(build, rows):
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    assert content(build()) == content(build(shuffled))


def test_the_seed_decides_candidates_and_nothing_else(build):
    manifest = build()
    reseeded = build(seed=1)
    assert manifest.pairs == reseeded.pairs
    assert manifest.canaries != reseeded.canaries
    assert manifest.digest != reseeded.digest
    assert manifest.digest == build(name="another name").digest


@pytest.mark.parametrize("size", [1, 7])
def test_slices_of_any_size_give_the_same_manifest(build, monkeypatch, size):
    paper_manifest = build(preset="paper")
    monkeypatch.setattr("spark_audit.manifest.layout.SLICE_ROWS", size)
    assert content(build(preset="paper")) == content(paper_manifest)
    assert paper_manifest.balance
    assert paper_manifest.twins


def test_progress_names_the_stages(build):
    stages: dict[str, tuple[int, int]] = {}
    build(progress=lambda what, done, total: stages.update({what: (done, total)}))
    assert stages == {
        "scoring base, tokens": (33, 33),
        "matching, rows": (33, 33),
        "drawing canary candidates": (6, 6),
        "drawing twins of identifiers": (28, 28),
    }


# --- refusals -------------------------------------------------------------------------


def test_an_adapter_is_no_reference(build, reference):
    with pytest.raises(InputError, match="^checkpoint '"):
        build(loaded=with_fields(reference, base="base"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"caliper": float("nan")}, "caliper: nan: input should be a finite number"),
        (
            {"n_candidates": 1},
            "n_candidates: 1 is below 2; rank a canary among at least one other string",
        ),
        (
            {"preset": "fast"},
            "preset: 'fast' is unknown; choose one of: robust, paper",
        ),
        (
            {"distance": "max"},
            "distance: 'max' is unknown; choose one of: mean, profile",
        ),
        (
            {"max_length": 512},
            "max_length: 512 tokens do not fit into the model's context of 256; "
            "give at most 256",
        ),
    ],
)
def test_settings_out_of_range_are_refused(build, options, message):
    with pytest.raises(InputError) as caught:
        build(**options)
    assert str(caught.value) == message


# --- items and bases ------------------------------------------------------------------


def test_a_redacted_manifest_has_no_items(build, reference):
    manifest = build()
    with pytest.raises(InputError) as caught:
        items_for(redact(manifest), reference, {})
    assert caught.value.where == "manifest 'small'"


def test_another_tokenizer_is_refused(build, reference, make_tokenizer):
    other_reference = with_fields(reference, tokenizer=make_tokenizer(bos=False))
    with pytest.raises(InputError) as caught:
        items_for(build(), other_reference, {Pass(): ["canary-a"]})
    assert str(caught.value).startswith("checkpoint 'base': example 'canary-a' ")


# --- real models ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_base, rows) -> tuple[Any, Manifest, list[Example]]:
    loaded = open_checkpoint(str(tiny_base), name="base")
    return loaded, build_manifest(rows, loaded, name="tiny", caliper=2.0, **SMALL), rows


def test_reference_scores_are_those_of_the_items(tiny):
    loaded, manifest, _ = tiny
    table = score(loaded, manifest)[Pass()]
    for example in manifest.examples:
        rows = table.rows(example.id)
        unll = micro_nats(table.columns["nll"][rows])
        assert (
            example.reference_micronats[table.position[rows]].tolist() == unll.tolist()
        )


def test_a_build_in_a_notebook_shows_its_progress_unless_it_is_silenced(
    build, capsys, request
):
    build()
    assert capsys.readouterr() == ("", "")
    below_the_cell = request.getfixturevalue("below_the_cell")
    manifest = build()
    assert capsys.readouterr() == ("", "")
    assert any("matching, rows" in text for text in below_the_cell.drawings)
    assert str(len(manifest.examples)) in manifest._repr_html_()
    for text in (repr(manifest), str(manifest), manifest._repr_html_()):
        assert manifest.digest[:8] not in text, "texts could be tried out against it"
    below_the_cell.drawings.clear()
    build(progress=False)
    assert not below_the_cell.drawings
    assert capsys.readouterr() == ("", "")
