"""GGUF files, written by the gguf package as llama.cpp's converter lays them out."""

import builtins
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import number, string, written
from refusals import opened, problem_of, refused, said
from tiny_models import make_model

gguf: Any = pytest.importorskip("gguf", reason="the extra `gguf`")


@pytest.fixture(scope="session")
def tokens(tiny_tokenizer):
    return list(tiny_tokenizer.convert_ids_to_tokens(range(len(tiny_tokenizer))))


def test_a_file_without_its_number_of_key_heads_is_refused(
    tiny_base, base_model, tokens, tmp_path
):
    """Without it transformers would take rows of query and key in another order."""
    file = written(tmp_path / "m.gguf", base_model, tokens, key_value_heads=0)
    refused(file, "num_key_value_heads", base=tiny_base)
    assert "num_key_value_heads" in problem_of(file, base=tiny_base)


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_a_file_says_what_its_numbers_say(
    kind, tiny_base, base_model, tokens, tmp_path, capfd
):
    file = written(tmp_path / "m.gguf", base_model, tokens, kind)
    capfd.readouterr()
    loaded = opened(file, base=tiny_base)
    assert capfd.readouterr().err == ""
    # The same numbers, rounded without a file, in the model as transformers has it.
    own = gguf.GGMLQuantizationType[kind]
    model = make_model("llama")
    state = {
        name: tensor
        if tensor.ndim == 1
        else torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), own), own)
        )
        for name, tensor in base_model.state_dict().items()
    }
    model.load_state_dict(state)
    assert torch.allclose(said(loaded), said(model), rtol=0, atol=1e-6)
    assert loaded.format == "gguf-file"
    assert any(f"dequantised as they are: 16 {kind}" in n for n in loaded.notes) or (
        kind == "F32"
    )
    assert any("lost digits" in n for n in loaded.notes) == (kind[0] == "Q")
    assert (said(loaded) - said(base_model)).abs().max() > 0 or kind == "F32"
    assert not problem_of(file, base=tiny_base)


def test_what_does_not_belong_to_the_base_is_refused(
    tiny_base, base_model, tokens, tmp_path
):
    def file(name: str, words: list[str] = tokens, **fields: float) -> Path:
        return written(tmp_path / f"{name}.gguf", base_model, words, **fields)

    other = [*tokens[:-2], tokens[-1], tokens[-2]]
    refused(file("a", other), "of its 300 tokens 2 have other ids", base=tiny_base)
    refused(
        file("b", tokens[:200]), "the tokenizer (300 tokens) is not", base=tiny_base
    )
    refused(
        file("c", hidden=64), "says hidden_size 64, the configuration", base=tiny_base
    )
    good = file("d")
    refused(good, "give --base MODEL")
    good.write_bytes(good.read_bytes()[:-4096])
    refused(good, "is no GGUF file that can be read", base=tiny_base)
    good.write_bytes(b"GGUF" + b"\xff" * 64)
    refused(good, "is no GGUF file that can be read", base=tiny_base)


def array(kind: int, count: int) -> bytes:
    """A key whose value says that it has so many elements."""
    return string(b"a.b") + number(9, "I") + number(kind, "I") + number(count)


def tensor(
    name: bytes = b"t", axes: tuple[int, ...] = (8,), kind: int = 0, at: int = 0
) -> bytes:
    shape = b"".join(map(number, axes))
    return (
        string(name) + number(len(axes), "I") + shape + number(kind, "I") + number(at)
    )


HUGE = (1 << 60) + 1
UNREADABLE = "is no GGUF file that can be read"
HEADERS = {
    "numbers": (0, 1, array(0, HUGE), "more than"),
    "numbers beyond the file": (0, 1, array(11, 5000), UNREADABLE),
    "strings": (0, 1, array(8, HUGE), "more than"),
    "strings beyond the file": (0, 1, array(8, 2000), UNREADABLE),
    "arrays in arrays": (0, 1, array(9, 3), "or nested"),
    "a type that is none": (0, 1, array(77, 3), "of type 77 are unknown"),
    "a long string": (
        0,
        1,
        string(b"a") + number(8, "I") + string(b"", HUGE),
        UNREADABLE,
    ),
    "a long key": (0, 1, string(b"a", HUGE), UNREADABLE),
    "keys": (0, HUGE, b"", "more than 4096"),
    "many tensors": (HUGE, 0, b"", "more than 32768"),
    "many axes": (1, 0, string(b"t") + number(1 << 31, "I"), UNREADABLE),
    "a large axis": (1, 0, tensor(axes=(HUGE, HUGE)), UNREADABLE),
    "an empty tensor": (1, 0, tensor(axes=(0,)), "is empty"),
    "a far tensor": (1, 0, tensor(at=HUGE), UNREADABLE),
    "twice the same place": (2, 0, tensor() + tensor(b"u", at=16), UNREADABLE),
    "an unknown tensor": (1, 0, tensor(kind=999), UNREADABLE),
    "an odd shape": (1, 0, tensor(axes=(7,), kind=8), UNREADABLE),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_counts_beyond_the_file_ends_soon(kind, tiny_base, tmp_path):
    def ring(*_: object) -> None:
        raise TimeoutError("still at it")

    tensors, keys, rest, message = HEADERS[kind]
    raw = b"GGUF" + number(3, "I") + number(tensors) + number(keys) + rest
    file = tmp_path / "m.gguf"
    file.write_bytes(raw.ljust(4096, b"\0"))
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(5)
    try:
        refused(file, message, base=tiny_base)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_more_numbers_than_the_base_has_are_not_made(
    tiny_base, base_model, tokens, tmp_path
):
    file = written(tmp_path / "m.gguf", base_model, tokens, more=1 << 22)
    refused(file, "numbers, the base's model ", base=tiny_base)


def test_without_its_package_a_gguf_file_is_refused(
    tiny_base, base_model, tokens, tmp_path, monkeypatch
):
    file = written(tmp_path / "m.gguf", base_model, tokens)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    refused(file, "where spark-audit lies: pip install '.[gguf]'", base=tiny_base)
