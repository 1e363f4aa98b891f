"""Both bounds of extraction against a model's logits, without another pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from audited import audited, evidence, figure, plan

from spark_audit.data.examples import Example, Span
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import score
from spark_audit.scoring.table import Pass

WORDS = "food service cold good label text news read rate paid".split()


def rows() -> list[Example]:
    """Twelve trained and twelve held-out rows, each with a number of its own."""
    rng = np.random.default_rng(0)
    rows_made = []
    for i in range(24):
        before = " ".join(rng.choice(WORDS, 6)) + " "
        number = str(rng.integers(100, 10_000))
        rows_made.append(
            Example(
                id=f"row-{i:02d}",
                task="news",
                prompt=f"{before}{number} {rng.choice(WORDS)}",
                response=" good",
                split="train" if i % 2 else "test",
                source_id=f"row-{i:02d}",
                spans=(Span(len(before), len(before) + len(number), "ID"),),
            )
        )
    return rows_made


@pytest.fixture(scope="module")
def opened(tiny_base, make_adapter, tmp_path_factory) -> dict[str, Any]:
    from spark_audit.checkpoints.open import open_checkpoint

    adapter = make_adapter(tmp_path_factory.mktemp("bounds") / "lora")
    return {
        "base": open_checkpoint(str(tiny_base), name="base"),
        "ours": open_checkpoint(str(adapter), base=str(tiny_base), name="ours"),
    }


@pytest.fixture(scope="module")
def manifest(opened) -> Manifest:
    return build_manifest(rows(), opened["base"], name="m", caliper=2.0)


@pytest.fixture(scope="module")
def scored(opened, manifest) -> Any:
    return score(opened, manifest)


def logp_and_bits(checkpoint: Any, manifest: Manifest) -> np.ndarray:
    """Log probability (nats) and bits of each identifier, by torch alone."""
    import torch

    pairs = []
    for example in manifest.examples:
        text = example.prompt + example.response
        ids = checkpoint.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = checkpoint.model(input_ids=ids).logits[0].double()
        logp = torch.log_softmax(logits, dim=-1)

        for _, (first, end) in example.identifiers:
            nats = bits = 0.0
            for position in range(first, end):
                token = int(ids[0, position])
                before = logits[position - 1]
                nats += float(logp[position - 1, token])
                bits += float(np.log2(1 + int((before > before[token]).sum())))
            pairs.append((nats, bits))
    return np.array(pairs)


def test_bits_are_those_of_the_ranks_in_a_models_own_logits(opened, manifest, scored):
    measured = evidence("extract", scored, manifest, prompts="full")
    truth = logp_and_bits(opened["ours"], manifest)
    assert len(truth) == 24
    assert measured.row("ours", "bits") == pytest.approx(truth[:, 1], abs=1e-9)
    assert len(set(truth[:, 1])) > 10, "else nothing is compared"


@pytest.mark.parametrize("draws", [1, 1_000, 1_000_000])
def test_shares_that_come_out_are_means_of_the_chances_of_trained_identifiers(
    draws, opened, manifest, scored
):
    result = audited("extract", scored, manifest, prompts="full")
    truth = logp_and_bits(opened["ours"], manifest)
    is_trained = [example.split == "train" for example in manifest.examples]
    nats, bits = truth[is_trained].T  # (identifiers,) each

    def mean_of(chance_of_one: np.ndarray) -> float:
        return float(np.mean(1 - (1 - chance_of_one) ** draws))

    at_most = figure(result, "ours", "drawn_at_most", str(draws))
    assert at_most.value == pytest.approx(mean_of(2.0**-bits), rel=1e-6)
    # Temperature 1 is one of the decoders of which the best counts.
    at_least = figure(result, "ours", "drawn_at_least", str(draws))
    assert mean_of(np.exp(nats)) * (1 - 1e-4) <= at_least.value <= at_most.value
    assert 0 < at_most.value < 1 or draws > 1


def test_both_sides_add_no_pass(manifest):
    """Ranks of tokens after the true prefix are those that every audit has stored."""
    assert plan("extract", manifest, prompts="full").keys() == {Pass()}
