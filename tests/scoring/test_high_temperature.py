"""Strings that a model writes: the tokens that were sampled, and no others."""

from dataclasses import replace

import numpy as np
import pytest

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import InputError
from spark_audit.scoring import high_temperature
from spark_audit.scoring.high_temperature import CUE, LENGTH, sampled_pieces


def test_pieces_come_back_as_the_tokens_that_were_sampled(tiny_base):
    loaded = open_checkpoint(str(tiny_base), device="cpu")
    found = sampled_pieces(loaded, 12, seed=1)
    assert len(set(found)) == 12
    assert sampled_pieces(loaded, 12, seed=1) == found
    assert sampled_pieces(loaded, 12, seed=2) != found
    cue = len(loaded.tokenizer(CUE)["input_ids"])
    for piece in found:
        assert piece == piece.strip()
        ids = loaded.tokenizer(f"{CUE} {piece}")["input_ids"]
        assert len(ids) == cue + LENGTH


def test_a_model_that_writes_too_few_is_said(tiny_base, monkeypatch):
    loaded = open_checkpoint(str(tiny_base), device="cpu")
    monkeypatch.setattr(high_temperature, "ROUNDS", 1)
    only = np.zeros_like(loaded.usable)
    only[loaded.tokenizer(CUE)["input_ids"][-1]] = True
    with pytest.raises(InputError, match="option --model: gives . of 9 strings"):
        sampled_pieces(replace(loaded, usable=only), 9, seed=0)
