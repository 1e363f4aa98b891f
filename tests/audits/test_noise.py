"""The noise audit: probabilities under embedding noise."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from audited import evidence, noise, plan, the_one

from spark_audit.audits.noise.audit import INSENSITIVE
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.results import Row
from spark_audit.scoring.table import Pass, TokenTable

SIGMAS = "0.01,0.1"
OPTIONS: dict[str, Any] = {"sigmas": SIGMAS, "draws": 2}
Loss = Callable[[str, np.ndarray, float, int], tuple[np.ndarray, np.ndarray]]


class Case:
    """A manifest whose low-sensitivity tokens are known, with its reference NLL."""

    def __init__(self, case: Any, **changes: Any) -> None:
        content = case.manifest.model_dump(mode="json")
        for example in content["examples"]:
            inside = {
                t
                for s in example["spans"]
                for t in range(s["token_start"], s["token_end"])
            }
            example["low"] = [t for t in range(20, 30) if t not in inside]
            example.update(changes.get(example["id"], {}))
        self.manifest: Manifest = seal(content)
        self.nll: dict[str, np.ndarray] = case.reference

    def pii(self, key: str) -> np.ndarray:
        mask = np.zeros(len(self.nll[key]), bool)
        for span in self.manifest.by_id[key].spans:
            mask[span.token_start : span.token_end] = True
        return mask

    def tables(self, loss: Loss, *, size: float = 1.0) -> dict[Pass, TokenTable]:
        """``loss(id, nll, sigma, draw)``: what noise adds to PII, and to all else."""

        def table(wanted: Pass) -> TokenTable:
            items = []
            for key, nll in self.nll.items():
                nll = nll.copy()
                columns = {}
                if wanted.kind == "noise":
                    clean_loss, noisy_loss = loss(key, nll, wanted.sigma, wanted.draw)
                    nll += np.where(self.pii(key), clean_loss, noisy_loss)
                    relative = np.full(len(nll) - 1, wanted.sigma / size, np.float32)
                    columns["relative"] = relative
                columns["nll"] = nll[1:].astype(np.float32)
                positions = np.arange(1, len(nll), dtype=np.int32)
                items.append((key, positions, columns))
            return TokenTable.from_items(items)

        passes = [Pass("noise", s, d) for s in (0.01, 0.1) for d in range(2)]
        return {wanted: table(wanted) for wanted in (Pass(), *passes)}


@pytest.fixture
def case(make_case) -> Case:
    return Case(make_case(sources=40, tests=4, seed=1))


def luck(key: str, draw: int, seed: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, draw, int(key[1:4])])


def selective(pii: float, factor: float, *, seed: int = 0, spread: float = 0.1) -> Loss:
    """Noise costs PII and other text so much, times sigma over 0.01."""

    def loss(
        key: str, nll: np.ndarray, sigma: float, draw: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rng = luck(key, draw, seed)
        jitter = rng.normal(0, spread, len(nll)) + rng.normal(0, spread)
        return pii * sigma / 0.01 + jitter, factor * sigma / 0.01 + jitter

    return loss


def find(rows: Sequence[Row], **wanted: str) -> Any:
    return the_one(rows, **{"group": "pooled", "variant": "0.01", **wanted})


# --- what is scored -------------------------------------------------------------------


def test_canary_rows_and_cut_spans_are_left_out(make_case):
    full_case = make_case(sources=3)
    unll = list(full_case.manifest.by_id["e001-0"].reference_unll)
    start = full_case.manifest.by_id["e001-0"].spans[0].token_start
    unll[start] = None
    changes = {
        "e000-0": {"canary_id": "c0"},
        "e001-0": {"reference_unll": unll, "low": []},
        "e002-0": {"spans": []},
    }
    case = Case(full_case, **changes)
    spans = case.manifest.by_id["e001-0"].spans
    expected = ["e001-0", "e002-0"] if len(spans) > 1 else ["e002-0"]
    assert plan("noise", case.manifest)[Pass()] == expected
    frame = evidence(
        "noise", {"x": case.tables(selective(0, 0))}, case.manifest, **OPTIONS
    ).units
    kinds = frame[["kind", "n"]].drop_duplicates().to_numpy().tolist()
    assert ["low", 10] in kinds
    n_tokens_left = sum(s.token_end - s.token_start for s in spans[1:])
    assert frame.loc[frame["kind"] == "pii", "n"].unique().tolist() == [
        n_tokens_left
    ] * (n_tokens_left > 0)


# --- figures --------------------------------------------------------------------------


def test_both_wiped_out_is_no_equality(case):
    result = noise({"x": case.tables(selective(0.7, 0.72))}, case.manifest, **OPTIONS)
    row = find(result.results, metric="gap", variant="0.1")
    assert row.status == "insensitive"
    assert row.value is not None
    assert row.low is not None
    assert INSENSITIVE in row.note
    assert find(result.results, metric="gap").status == "ok"


def test_probabilities_are_means_over_draws(case):
    def loss(
        key: str, nll: np.ndarray, sigma: float, draw: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(nll), 0.1 * draw), np.zeros(len(nll))

    tables = case.tables(loss, size=0.5)
    result = noise({"x": tables}, case.manifest, **OPTIONS)
    (record, _) = result.tables["noise_draws"]
    assert record["relative"] == pytest.approx(0.02)
    assert record["draws"] == 2
    mean = 100 * (np.exp(-0.1) - 1) / 2
    assert find(result.results, metric="dp_pii").value == pytest.approx(mean, rel=1e-4)


# --- contrasts and words --------------------------------------------------------------


def test_the_untrained_models_gap_is_the_null(case):
    """It loses more of identifiers itself, so a gap above 0 is not what was learned."""
    tables = {
        "base": case.tables(selective(0.3, 0.1)),
        "same": case.tables(selective(0.3, 0.1, seed=1)),
        "more": case.tables(selective(0.7, 0.1)),
    }
    result = noise(tables, case.manifest, **OPTIONS)
    assert find(result.results, checkpoint="same", metric="gap").low > 0
    same, with_more = (
        find(result.contrasts, checkpoint=name, baseline="base")
        for name in ("same", "more")
    )
    assert same.low < 0 < same.high
    assert with_more.low > 0
    assert with_more.p < 0.01


def test_no_contrast_where_no_gap_could_show(case):
    tables = {
        "base": case.tables(selective(0.7, 0.7)),
        "x": case.tables(selective(0.7, 0.72)),
    }
    result = noise(tables, case.manifest, **OPTIONS)
    assert find(result.contrasts).status == "ok"
    lost = find(result.contrasts, variant="0.1")
    assert lost.status == "insensitive"
    assert INSENSITIVE in lost.note


def test_a_scale_that_the_untrained_model_lacks_is_not_compared_with_it(case):
    tables = {
        "base": case.tables(selective(0.3, 0.1)),
        "x": case.tables(selective(0.7, 0.1)),
    }
    for draw in range(2):
        del tables["base"][Pass("noise", 0.1, draw)]
    result = noise(tables, case.manifest, **OPTIONS)
    gaps = the_one(result.findings, checkpoint="x", says="noise.gaps")
    assert [row.variant for row in gaps.facts["gaps"]] == ["0.01", "0.1"]
    assert [row.variant for row in gaps.facts["untrained_gaps"]] == ["0.01"]
    assert "noise.untrained" in gaps.further
    assert gaps.sentence


def test_no_remark_lists_changes_that_cannot_be_estimated(make_case):
    """Without any other text there is no gap at any scale, and no change of it."""
    full_case = make_case(sources=40, tests=4, seed=1)
    case = Case(full_case, **{key: {"low": []} for key in full_case.manifest.by_id})
    tables = {
        "base": case.tables(selective(0.3, 0.1)),
        "x": case.tables(selective(0.7, 0.1)),
    }
    result = noise(tables, case.manifest, **OPTIONS)
    assert [find(result.contrasts, variant=of).value for of in ("0.01", "0.1")] == [
        None
    ] * 2
    changes = the_one(result.findings, says="noise.changes_missing")
    assert changes.further == ["noise.not_estimable"]
    assert changes.sentence


def test_other_embeddings_are_disturbed_otherwise(case):
    tables = {
        "x": case.tables(selective(0.5, 0.1)),
        "y": case.tables(selective(0.5, 0.1), size=0.5),
    }
    (guard,) = noise(tables, case.manifest, **OPTIONS).guards
    assert guard.passed is None
    assert not noise({"x": tables["x"]}, case.manifest, **OPTIONS).guards
