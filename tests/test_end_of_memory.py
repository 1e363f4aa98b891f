"""The end of memory is told from other faults."""

import errno

import numpy as np
import pyarrow as pa
import pytest

from spark_audit.errors import IncompleteError, out_of_memory


def test_libraries_say_it_each_in_its_way():
    import torch

    for call in (
        lambda: np.empty(10**15),
        lambda: pa.allocate_buffer(10**16),
        lambda: torch.empty(10**14),
    ):
        with pytest.raises(Exception, match=r".") as found:
            call()
        assert out_of_memory(found.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "x"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("unable to mmap 12 bytes from file <x>: Cannot allocate memory"),
        ImportError("libblas.so.3: failed to map segment from shared object"),
        ImportError("libx.so: cannot allocate memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    ],
    ids=repr,
)
def test_some_say_it_in_words(error):
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("shapes do not match"),
        ImportError("libx.so: cannot allocate memory in static TLS block"),
        KeyError("out of memory"),
    ],
    ids=repr,
)
def test_other_faults_are_others(error):
    assert not out_of_memory(error)


def test_where_an_error_comes_from_counts():
    def damaged(*, hidden: bool) -> None:
        try:
            raise MemoryError
        except MemoryError:
            error = ValueError("damaged")
            if hidden:
                raise error from None
            raise error  # noqa: B904

    for hidden in (False, True):
        with pytest.raises(ValueError, match="damaged") as found:
            damaged(hidden=hidden)
        assert out_of_memory(found.value) is not hidden
    ring = ValueError("a")
    ring.__cause__ = ring
    assert not out_of_memory(ring)


def test_memory_that_ends_while_encoders_are_freed_is_told(tmp_path, monkeypatch):
    """It says nothing about whether a text passes through them."""
    import torch
    from refusals import opened
    from tiny_architectures import tiny_model
    from tiny_models import make_tokenizer
    from transformers import Gemma3ForConditionalGeneration
    from transformers.models.auto import modeling_auto

    model = tiny_model("gemma3", modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    forward = Gemma3ForConditionalGeneration.forward
    failures = [torch.OutOfMemoryError("CUDA out of memory")]

    def once(*args, **kwargs):
        if failures:
            raise failures.pop()
        return forward(*args, **kwargs)

    monkeypatch.setattr(Gemma3ForConditionalGeneration, "forward", once)
    with pytest.raises(IncompleteError):
        opened(tmp_path)
    assert not failures
