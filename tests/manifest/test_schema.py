"""Manifest files: digest, refusals, redaction, schema."""

import json
import stat
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from marked import make_canary_row, make_example

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import digest, seal
from spark_audit.manifest.file import (
    check_fit,
    read_manifest,
    restricted_to,
    write_manifest,
)
from spark_audit.manifest.redaction import redact
from spark_audit.manifest.schema import Manifest

REGENERATE = """run, from the repository root:
python -c "import json; from spark_audit.manifest.schema import Manifest as M;
d = {'$schema': 'https://json-schema.org/draft/2020-12/schema', **M.model_json_schema()}
print(json.dumps(d, indent=1, sort_keys=True))" > spark_audit/schemas/manifest.json"""


@pytest.fixture(scope="module")
def manifest(tiny_base) -> Manifest:
    """A real one: two names in eight rows, one canary."""
    rows = [make_canary_row("canary", seed=5, before="", format="login")]
    for i, word in enumerate(["cold", "fine", "good", "read"] * 2):
        name = "John Smith" if i % 2 else "Maria Jones"
        prompt = f"The food of week {i} was {word}. Ask {name} about the news\nLabel:"
        split = "test" if i > 5 else "train"
        pii = {name: "NAME"}
        rows.append(
            make_example(f"row-{i}", prompt, pii=pii, split=split, source=f"s{i // 2}")
        )
    loaded = open_checkpoint(str(tiny_base), name="base")
    return build_manifest(rows, loaded, name="real", caliper=2.0, n_candidates=4)


@pytest.fixture
def file(manifest, tmp_path) -> Path:
    path = tmp_path / "real.json"
    write_manifest(manifest, path)
    return path


def change(file: Path, **fields: Any) -> Path:
    data = json.loads(file.read_bytes()) | fields
    file.write_text(json.dumps(data))
    return file


# --- reading and writing --------------------------------------------------------------


def test_what_is_written_is_read_and_private(manifest, file):
    assert manifest.pairs
    assert manifest.canaries[0].candidates
    assert read_manifest(file) == manifest
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # Used before it is written: what was computed on the way is no part of it.
    assert len(manifest.examples[0].eligible) == len(
        manifest.by_id["canary"].reference_micronats
    )
    first = file.read_bytes()
    write_manifest(manifest, file)
    assert file.read_bytes() == first


def test_digest_is_of_everything_but_itself_and_the_name(manifest):
    content = manifest.model_dump(mode="json")
    assert digest(content) == manifest.digest
    assert seal(content | {"name": "other", "digest": "0"}).digest == manifest.digest
    assert seal(content | {"notes": ["changed"]}).digest != manifest.digest
    # A whole number for a decimal one is the same manifest.
    settings = content["settings"] | {"caliper": 2}
    assert seal(content | {"settings": settings}).digest == manifest.digest


def test_a_changed_manifest_is_refused(file):
    data = json.loads(file.read_bytes())
    data["pairs"][0]["weight"] = 2.0
    with pytest.raises(InputError) as caught:
        read_manifest(change(file, **data))
    assert caught.value.where == str(file)
    assert "digest" in caught.value.what


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            b"{",
            "is not JSON (column 2); its end is missing: make or copy the file again",
        ),
        (b"\xff\xfe{", "begins with a byte order mark; save as UTF-8 without it"),
        (
            b'{"a":' * 100_000,
            "contains NaN, Infinity, a number that is too long, or too many levels",
        ),
        *[
            (
                content,
                "is no SPARK Audit manifest; give a file of `spark-audit manifest "
                "build`",
            )
            for content in (
                b"[]",
                b"# Read me\n",
                b"---\nkind: x\n",
                b"\x93NUMPY",
                b'{"id": "r1"}\n{"id": "r2"}\n',
            )
        ],
        (
            b'{"kind": "spark-audit-report"}',
            "is no SPARK Audit manifest; give a file of `spark-audit manifest build`",
        ),
        (
            b'{"kind": "spark-audit-manifest", "schema_version": 2, "name": "m", '
            b'"digest": ""}',
            "field schema_version: input should be 1; build the manifest again with "
            "this version of SPARK Audit",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, raw, message):
    file = tmp_path / "m.json"
    file.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_manifest(file)
    assert str(caught.value) == f"{file}: {message}"


def test_a_malformed_field_is_named_and_no_text_shown(file):
    data = json.loads(file.read_bytes())
    data["examples"][2]["split"] = "secret text"
    data["digest"] = digest(data)
    with pytest.raises(InputError) as caught:
        read_manifest(change(file, **data))
    assert f"{file}: field examples.2.split: " in str(caught.value)
    assert "secret text" not in str(caught.value)


# --- arrays ---------------------------------------------------------------------------


def test_arrays_of_an_example_are_those_of_its_lists(manifest):
    example = manifest.by_id["row-0"]
    assert example.reference_micronats.tolist() == [
        -1 if u is None else u for u in example.reference_unll
    ]
    for t in range(len(example.reference_micronats)):
        inside = any(start <= t < end for start, end in example.excluded)
        assert example.eligible[t] == (
            example.reference_micronats[t] >= 0 and not inside
        )


# --- redaction and parts --------------------------------------------------------------


def test_redaction_leaves_no_text(manifest, file, tmp_path):
    red = redact(manifest)
    write_manifest(red, tmp_path / "red.json")
    raw = (tmp_path / "red.json").read_text()
    for example in manifest.examples:
        for span in example.spans:
            text = example.prompt + example.response
            assert text[span.start : span.end] in file.read_text()
            assert text[span.start : span.end] not in raw
    for canary in manifest.canaries:
        assert not any(string in raw for string in canary.candidates)
    found = read_manifest(tmp_path / "red.json")
    # A guess of the text could be tried out against the original's digest.
    assert manifest.digest not in raw
    assert found.redacted_from == "not shown"
    for pair, other in zip(found.pairs, manifest.pairs, strict=True):
        assert pair.distance is pair.pii.nll is pair.control.nll is None
        assert pair.pii.token_start == other.pii.token_start
    for one in found.examples:
        assert one.prompt == one.response == one.classes == ""
        assert one.reference_unll == one.low == []
    # An id may name somebody; numbers still join rows to their pairs and groups.
    assert not any(f'"{e.id}"' in raw for e in manifest.examples)
    places = {e.id: f"row {i}" for i, e in enumerate(manifest.examples, 1)}
    assert [p.example for p in found.pairs] == [
        places[p.example] for p in manifest.pairs
    ]
    members = [places[i] for i in manifest.membership.members]
    assert found.membership.members == members
    assert redact(found) == found
    # The original is as it was.
    assert manifest.examples[0].prompt


def test_a_part_concerns_its_examples_only(manifest):
    assert manifest.by_id
    part = restricted_to(manifest, {"row-1", "row-7"})
    assert [e.id for e in part.examples] == ["row-1", "row-7"]
    assert set(part.by_id) == {"row-1", "row-7"}
    assert {p.example for p in part.pairs} <= {"row-1", "row-7"}
    assert part.canaries == []
    assert part.membership.members == ["row-1"]
    assert part.membership.non_members == ["row-7"]
    assert part.digest == manifest.digest
    assert len(restricted_to(manifest, {"canary"}).canaries) == 3
    assert len(manifest.by_id) == 9


# --- fit ------------------------------------------------------------------------------


@pytest.fixture
def fitting(manifest) -> dict[str, Any]:
    reference = manifest.reference
    return {
        "name": "mine",
        "tokenizer_sha256": reference.tokenizer_sha256,
        "architecture": reference.architecture,
        "vocab_size": reference.vocab_size,
        "base_sha256": reference.weights_sha256,
        "shape": reference.shape,
    }


def fits(manifest: Manifest, *, base_sha256: Any, vocab_size: int, **facts: Any) -> Any:
    """Notes on a checkpoint of these facts."""
    checkpoint: Any = SimpleNamespace(
        usable=range(vocab_size),
        scored_tokenizer_sha256=facts["tokenizer_sha256"],
        has_rows_of=lambda *_: False,
        format="full",
        **facts,
    )
    return check_fit(manifest, checkpoint, base_sha256=base_sha256)


def test_full_weights_of_another_size_are_refused(manifest, fitting):
    """Architecture, vocabulary and tokenizer are those of the whole family."""
    merged = fitting | {"base_sha256": None}
    shape = merged["shape"]
    assert shape["hidden_size"] == 32
    with pytest.raises(InputError, match=r"num_hidden_layers \(4 .*2 "):
        fits(manifest, **merged | {"shape": shape | {"num_hidden_layers": 4}})
    # A size that one of the two does not state is not compared.
    assert len(fits(manifest, **merged | {"shape": {"hidden_size": 32}})) == 1


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("tokenizer_sha256", "f" * 64, "tokenizer (ffffffffffff here, "),
        ("base_sha256", "e" * 64, "base weights (eeeeeeeeeeee here, "),
        ("architecture", "GPT2LMHeadModel", "architecture (GPT2LMHeadModel here, "),
        ("vocab_size", 301, "vocabulary (301 here, 300 in the manifest)"),
    ],
)
def test_what_differs_is_told(manifest, fitting, field, value, told):
    with pytest.raises(InputError) as caught:
        fits(manifest, **fitting | {field: value})
    message = str(caught.value)
    assert message.startswith("checkpoint 'mine': manifest 'real' ")
    assert told in message


# --- schema ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    text = (files("spark_audit") / "schemas/manifest.json").read_text()
    return dict(json.loads(text))


def test_the_shipped_schema_is_that_of_the_code(schema):
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    assert schema == dialect | Manifest.model_json_schema(), REGENERATE
    jsonschema.Draft202012Validator.check_schema(schema)


def test_real_and_redacted_manifests_fit_the_schema(manifest, file, schema, tmp_path):
    jsonschema.validate(json.loads(file.read_bytes()), schema)
    write_manifest(redact(manifest), tmp_path / "red.json")
    jsonschema.validate(json.loads((tmp_path / "red.json").read_bytes()), schema)
