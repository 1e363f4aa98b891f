"""Every class of transformers that takes a text: opened exactly, or refused.

A tiny model of each is saved and opened. Its log-probabilities, in float64, are those
of the model in memory to within 1e-5 nats at every token, or it is refused for a reason
that is written here. A sample runs always, all of them with ``-m slow``.
"""

import copy
import logging
from typing import Any

import pytest
import torch
from refusals import opened
from tiny_architectures import CAUSAL, NOT_TINY, OTHER_MEDIA, tiny_model
from tiny_models import make_tokenizer
from transformers.models.auto import modeling_auto

from spark_audit.errors import CheckpointError

MAPPINGS: dict[str, Any] = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "media": modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING,
}
IDS = torch.tensor([[1, 47, 91, 223, 80, 67, 79, 71, 280, 223, 5, 77]])
NATS = 1e-5

_NEEDS_MEDIA = "the model cannot be run"
_READS_AHEAD = "the model reads ahead"
_OTHER_KIND = "is not a causal language model"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        """causal-xmod media-blip media-blip-2 media-idefics media-instructblip
        media-instructblipvideo media-kosmos-2 media-voxtral_realtime""".split(),
        _NEEDS_MEDIA,
    ),
    **dict.fromkeys(
        "causal-cpmant causal-xlm media-paligemma".split(),
        _READS_AHEAD,
    ),
    **dict.fromkeys(
        "media-pi0 media-t5gemma2 media-udop media-vision-encoder-decoder".split(),
        _OTHER_KIND,
    ),
    # Its classes classify; the names of their tensors are other ones.
    "media-shieldgemma2": "lm_head.weight is missing",
    "causal-xlnet": "max_position_embeddings is not a valid context length",
}

FLOAT32_ALONE = ("causal-inkling2_text", "causal-xglm", "media-inkling2")
"""Classes whose own forward fails in float64: compared in float32."""

ALL = [
    *(f"causal-{kind}" for kind in CAUSAL if kind not in NOT_TINY),
    *(f"media-{kind}" for kind in OTHER_MEDIA if kind not in NOT_TINY),
]
# Hybrids, what other media come with, what other tests do not have, and every 24th.
_CHOSEN = (
    "causal-bamba causal-granitemoehybrid causal-jamba causal-mamba2 causal-qwen3_5 "
    "causal-qwen3_next causal-recurrent_gemma causal-deepseek_v3 causal-mixtral "
    "causal-youtu media-gemma4 "
    "media-gemma3 media-internvl media-llama4 media-mistral3 media-paligemma "
    "media-qwen2_5_vl media-qwen3_5 media-qwen3_vl_moe media-idefics3 media-blip "
    "media-mistral_large4"
).split()
SAMPLE = sorted({*_CHOSEN, *sorted(ALL)[::24]})
REST = sorted({*ALL} - {*SAMPLE})


def test_the_table_has_what_transformers_has():
    assert len(ALL) >= 250
    assert {*REFUSED} <= {*ALL}
    assert NOT_TINY <= CAUSAL.keys() | OTHER_MEDIA.keys()


def log_probabilities(model: Any) -> torch.Tensor:
    """Shape ``(12, V)``, float64."""
    # Fused kernels of experts know no float64.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.inference_mode():
        logits = model(input_ids=IDS, use_cache=False).logits[0]
    return logits.double().log_softmax(-1)


def check(case: str, folder: Any) -> None:
    mapping, _, kind = case.partition("-")
    model = tiny_model(kind, MAPPINGS[mapping])
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    if case in REFUSED:
        with pytest.raises(CheckpointError, match=REFUSED[case]) as error:
            opened(folder)
        assert "\n" not in str(error.value)
        return
    loaded = opened(folder)
    assert loaded.architecture == type(model).__name__
    dtype = torch.float32 if case in FLOAT32_ALONE else torch.float64
    plain_log_p = log_probabilities(copy.deepcopy(model).to(dtype))
    with loaded.active() as active_model:
        log_p = log_probabilities(active_model.to(dtype))
    assert torch.isfinite(plain_log_p).all()
    assert float((log_p - plain_log_p).abs().max()) <= NATS


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SAMPLE)
def test_a_sample_is_opened_exactly_or_refused(case, tmp_path):
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REST)
def test_all_others_are_opened_exactly_or_refused(case, tmp_path):
    check(case, tmp_path)
