"""Which tokenizer a checkpoint has, what it hashes to, and which rows it uses."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import load_tokenizer, opened, problem_of
from tiny_models import make_model, make_tokenizer, save_model

from spark_audit.checkpoints.tokenizer import tokenizer_sha256, usable_rows
from spark_audit.errors import CheckpointError
from spark_audit.provenance import canonical_json


def test_the_hash_is_that_of_tokenizer_json_without_truncation_and_padding(
    tiny_base, copied
):
    content = json.loads((tiny_base / "tokenizer.json").read_text())
    expected = {k: v for k, v in content.items() if k not in ("truncation", "padding")}
    digest = hashlib.sha256(canonical_json(expected)).hexdigest()
    assert opened(tiny_base).tokenizer_sha256 == digest
    folder = copied(tiny_base)
    cut = {
        "truncation": {
            "direction": "Right",
            "max_length": 9,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    }
    (folder / "tokenizer.json").write_text(json.dumps(content | cut, indent=3))
    assert opened(folder).tokenizer_sha256 == digest


def test_rows_without_a_token_are_not_usable(tiny_tokenizer):
    usable = usable_rows(tiny_tokenizer, 304)
    assert usable.dtype == bool
    assert usable.shape == (304,)
    assert list(np.flatnonzero(~usable)) == [300, 301, 302, 303]
    assert usable_rows(tiny_tokenizer, 300).all()
    with pytest.raises(CheckpointError, match="only 299 rows"):
        usable_rows(tiny_tokenizer, 299)
    holes = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 3})
    assert list(usable_rows(holes, 5)) == [True, False, False, True, False]
    empty = SimpleNamespace(get_vocab=dict)
    with pytest.raises(CheckpointError):
        usable_rows(empty, 5)


def test_ids_beyond_the_head_are_refused(tiny_base, tmp_path):
    make_tokenizer(size=310).save_pretrained(tmp_path)
    message = (
        r"the tokenizer has ids up to 309, the model's head only 300 rows; give the "
        r"tokenizer that the model was trained with by --tokenizer"
    )
    with pytest.raises(CheckpointError, match=message):
        opened(tiny_base, tokenizer=str(tmp_path))


def test_a_class_that_would_add_tokens_is_passed_over(tiny_tokenizer, tmp_path):
    """Transformers 5 rebuilds a Qwen2 model's tokenizer and adds <|endoftext|>."""
    save_model(make_model("qwen2"), tmp_path)
    loaded = opened(tmp_path)
    text = "Contact Maria Jones at 555-0142."
    ids = tiny_tokenizer(text)["input_ids"]
    assert loaded.tokenizer(text)["input_ids"] == ids
    assert loaded.tokenizer_sha256 == tokenizer_sha256(tiny_tokenizer)
    assert loaded.usable.all()
    assert any(n.startswith("tokenizer.json as it is") for n in loaded.notes)


def test_no_tokenizer_and_damaged_ones_are_refused(
    base_model, tiny_base, copied, tmp_path
):
    base_model.save_pretrained(tmp_path / "bare")
    message = "has no tokenizer; give its base by --base, or a folder"
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path / "bare")
    folder = copied(tiny_base)
    (folder / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(CheckpointError, match="--tokenizer$"):
        opened(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        opened(folder)


def test_ids_that_no_vocabulary_has(tiny_base, copied):
    folder = copied(tiny_base)
    content = json.loads((folder / "tokenizer.json").read_text())
    # Every id below the largest would be written out, for minutes.
    for wrong in (2**31, -1, "1", 1.5):
        content["model"]["vocab"]["a"] = wrong
        (folder / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match="16777215"):
            opened(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "special_tokens_map.json",
            {"eos_token": {"content": "</s>", "\x1b[2J": 1}},
            "has a token of other fields than",
        ),
        (
            "tokenizer_config.json",
            {"model_max_length": "x"},
            "the tokenizer cannot be loaded .TypeError",
        ),
    ],
)
def test_settings_that_no_tokenizer_has(
    name, content, message, tiny_base, copied, capfd
):
    folder = copied(tiny_base)
    old = json.loads((folder / "tokenizer_config.json").read_text())
    kept = old if "model_max_length" in content else {}
    (folder / name).write_text(json.dumps(kept | content))
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)
    assert "\x1b" not in "".join(capfd.readouterr())


def test_a_slow_tokenizer_is_refused(tiny_base, monkeypatch):
    slow = SimpleNamespace(is_fast=False, get_vocab=dict)
    monkeypatch.setattr(
        "transformers.AutoTokenizer.from_pretrained", lambda *a, **o: slow
    )
    monkeypatch.setattr(
        "transformers.PreTrainedTokenizerFast.from_pretrained", lambda *a, **o: slow
    )
    with pytest.raises(CheckpointError, match="SimpleNamespace .*--tokenizer$"):
        opened(tiny_base)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (280, "does not fit the base: tokenizer (280 tokens, "),
        (310, "the tokenizer has ids up to 309, the model's head only 300 rows; give"),
    ],
)
def test_an_adapter_with_another_tokenizer_does_not_fit_the_base(
    size, told, make_adapter, tiny_base, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    make_tokenizer(size=size).save_pretrained(folder)
    assert told in problem_of(folder, base=tiny_base)
