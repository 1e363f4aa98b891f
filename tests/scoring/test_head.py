import importlib
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import naive
from transformers import TopPLogitsWarper

from spark_audit import scoring
from spark_audit.scoring import head as head_module
from spark_audit.scoring import token_columns as columns_module
from spark_audit.scoring.head import Head, Transform
from spark_audit.scoring.table import PLAIN_COLUMNS, WITH_NUCLEI
from spark_audit.scoring.token_columns import TokenColumns, nuclei
from spark_audit.stats.sampled_extraction import top_k_logp

CPU = torch.device("cpu")
DEVICES = [CPU]
if torch.cuda.is_available():
    DEVICES.append(torch.device("cuda"))
DEVICE = CPU


@pytest.fixture(
    params=[
        pytest.param(d, marks=[pytest.mark.cuda] * (d != CPU), id=d.type)
        for d in DEVICES
    ],
    autouse=True,
)
def device(request):
    """Every test runs on each device there is: each has a reduction of its own."""
    globals()["DEVICE"] = request.param


def reduced(
    logits: np.ndarray,
    targets: np.ndarray,
    usable: np.ndarray | None = None,
    names: Mapping[str, np.dtype] = PLAIN_COLUMNS,
) -> dict[str, np.ndarray]:
    usable = np.ones(logits.shape[1], dtype=bool) if usable is None else usable
    columns = TokenColumns(usable, DEVICE)
    columns.names = names
    z = columns.buffer(len(logits))
    z[:, : columns.vocabulary] = torch.from_numpy(logits)[:, : columns.vocabulary]
    found = columns.reduce(z, torch.from_numpy(targets).to(DEVICE)).cpu().numpy()
    return dict(zip(names, found.T, strict=True))


def random_logits(
    rows: int, vocabulary: int, *, seed: int = 0, scale: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(rows, vocabulary)) * scale).astype(np.float32)
    # Half the targets are likely ones.
    likely = np.argsort(-logits, axis=1)[:, rng.integers(0, min(60, vocabulary))]
    pick = rng.random(rows) < 0.5
    return logits, np.where(pick, likely, rng.integers(0, vocabulary, rows))


def assert_equal(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    *,
    atol: float = 2e-5,
) -> None:
    for name, values in expected.items():
        if name in ("rank_lo", "ties"):
            np.testing.assert_array_equal(found[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(
                found[name], values, rtol=1e-5, atol=atol, err_msg=name
            )


@pytest.mark.parametrize("vocabulary", [2, 39, 40, 41, 300, 1279, 1281, 4096, 9001])
def test_every_column_is_the_float64_one(vocabulary):
    logits, targets = random_logits(21, vocabulary)
    usable = np.ones(vocabulary, dtype=bool)
    assert_equal(reduced(logits, targets), naive(logits, targets, usable))


def test_sd_is_right_for_hard_distributions():
    rng = np.random.default_rng(1)
    vocabulary = 9000
    rows = []
    for gap in (2.0, 5.0, 12.0, 20.0, 40.0):
        # All but one far below it: from spread out to nearly deterministic.
        row = np.full(vocabulary, -gap) + rng.normal(size=vocabulary) * 0.01
        row[7] = 0.0
        rows.append(row)
    two = np.full(vocabulary, -60.0)
    two[[3, 4]] = 0.0
    rows.append(two)
    # Far from the largest logit with hardly any spread: where E[x^2] - E[x]^2 fails.
    narrow = np.full(vocabulary, -4.0) + rng.normal(size=vocabulary) * 1e-3
    narrow[0] = 0.0
    rows.append(narrow)
    logits = np.array(rows, dtype=np.float32)
    targets = np.full(len(rows), 11)
    expected = naive(logits, targets, np.ones(vocabulary, dtype=bool))
    found = reduced(logits, targets)
    np.testing.assert_allclose(found["sd_logp"], expected["sd_logp"], rtol=1e-4)
    np.testing.assert_allclose(
        found["mean_logp"], expected["mean_logp"], rtol=1e-5, atol=1e-6
    )


def test_tied_targets_are_counted_and_the_margin_of_a_shared_first_place_is_zero():
    # TV-R1: float32 logits, and the same rounded to bfloat16.
    exact = np.array([[10, 9.99, 9.97, 9.5, 10.02, 3]] * 6, dtype=np.float32)
    rounded = torch.from_numpy(exact).to(torch.bfloat16).float().numpy()
    targets = np.arange(6)
    found = reduced(exact, targets)
    assert found["rank_lo"].tolist() == [2, 3, 4, 5, 1, 6]
    assert found["ties"].tolist() == [0] * 6
    found = reduced(rounded, targets)
    assert found["rank_lo"].tolist() == [1, 1, 1, 5, 1, 6]
    assert found["ties"].tolist() == [3, 3, 3, 0, 3, 0]
    assert found["top1_margin"].tolist()[:3] == [0.0, 0.0, 0.0]


def test_equal_head_rows_tie_exactly():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4000, 48, generator=generator)
    weight[3999], weight[1777] = weight[5], weight[5]
    hidden = torch.randn(200, 48, generator=generator)
    columns = TokenColumns(np.ones(4000, dtype=bool), DEVICE)
    head = Head(weight.to(DEVICE), None, Transform(), columns)
    targets = torch.full((200,), 5, device=DEVICE)
    targets[100:] = 6
    ties = head(hidden.to(DEVICE), targets)[:, list(PLAIN_COLUMNS).index("ties")]
    assert ties[:100].tolist() == [2.0] * 100
    assert ties[100:].tolist() == [0.0] * 100


@pytest.mark.parametrize("vocabulary", [300, 5000])
def test_rows_that_are_no_token_take_no_part(vocabulary):
    logits, _ = random_logits(12, vocabulary)
    usable = np.ones(vocabulary, dtype=bool)
    usable[[0, 17, vocabulary // 2]] = False
    usable[-40:] = False
    logits[:, ~usable] = 1e4  # would win everything
    targets = np.arange(20, 32)
    assert_equal(reduced(logits, targets, usable), naive(logits, targets, usable))


@pytest.mark.parametrize(
    "transform",
    [Transform(), Transform(softcap=5.0), Transform(0.25), Transform(3.0, 20.0)],
)
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_is_float32_with_bias_and_transform(
    transform, dtype, copied, monkeypatch
):
    if not copied:  # 5,000 rows are then converted in two parts
        monkeypatch.setattr(head_module, "WEIGHT_ELEMENTS_KEPT", 0)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(5000, 40, generator=generator).to(dtype)
    bias = torch.randn(5000, generator=generator).to(dtype)
    hidden = torch.randn(30, 40, generator=generator).to(dtype)
    logits = hidden.double() @ weight.double().T + bias.double()
    logits = logits * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    targets = torch.arange(30) * 7
    columns = TokenColumns(np.ones(5000, dtype=bool), DEVICE)
    head = Head(weight.to(DEVICE), bias.to(DEVICE), transform, columns)
    found = head(hidden.to(DEVICE), targets.to(DEVICE)).cpu().numpy()
    expected = naive(logits.numpy(), targets.numpy(), np.ones(5000, dtype=bool))
    ranks = expected.pop("rank_lo"), found[:, list(PLAIN_COLUMNS).index("rank_lo")]
    expected.pop("ties")
    # Rounding may swap two of 5,000 logits; more would be another precision.
    assert np.abs(ranks[0] - ranks[1]).max() <= 1
    assert (ranks[0] != ranks[1]).mean() < 0.1
    got = dict(zip(PLAIN_COLUMNS, found.T, strict=True))
    assert_equal({n: got[n] for n in expected}, expected, atol=5e-5)


def test_positions_are_chunked_and_buffers_reused(monkeypatch):
    monkeypatch.setattr("spark_audit.scoring.token_columns.CPU_ROWS", 8)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(3000, 16, generator=generator)
    hidden = torch.randn(27, 16, generator=generator)
    columns = TokenColumns(np.ones(3000, dtype=bool), CPU)
    head = Head(weight, None, Transform(), columns)
    targets = torch.arange(27)
    found = head(hidden, targets)
    buffer = columns.buffer(1).data_ptr()
    assert columns.rows <= 8
    again = head(hidden, targets)
    assert columns.buffer(1).data_ptr() == buffer
    assert torch.equal(found, again)
    expected = naive(
        (hidden.double() @ weight.double().T).numpy(),
        targets.numpy(),
        np.ones(3000, dtype=bool),
    )
    got = dict(zip(PLAIN_COLUMNS, found.numpy().T, strict=True))
    assert_equal(got, expected, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vocabulary", [30, 300, 5000])
def test_a_bad_logit_shows_in_its_row_only(bad, vocabulary):
    logits, _ = random_logits(4, vocabulary)
    logits[2, 11] = bad
    found: Any = reduced(logits, np.array([1, 2, 3, 4]))
    table = np.stack(list(found.values()))
    assert np.isfinite(table[:, [0, 1, 3]]).all()
    assert not np.isfinite(table[:, 2]).all()


@pytest.mark.parametrize("vocabulary", [30, 300, 5000])
def test_the_nll_alone_is_that_of_the_columns(vocabulary):
    logits, targets = random_logits(11, vocabulary)
    usable = np.ones(vocabulary, dtype=bool)
    usable[vocabulary // 2] = vocabulary // 2 in targets
    columns = TokenColumns(usable, DEVICE)
    z = columns.buffer(len(logits))
    z[:, :vocabulary] = torch.from_numpy(logits)
    goal = torch.from_numpy(np.stack([targets, targets[::-1]], axis=1)).to(DEVICE)
    found = columns.nll(z, goal).cpu().numpy()
    for k, each in enumerate((targets, targets[::-1])):
        expected = naive(logits, each, usable)["nll"]
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-5, atol=2e-5)


def use_kernel(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Have ``kernel`` stand for the module that needs Triton; ``None``: no import."""
    monkeypatch.setattr(columns_module, "find_spec", lambda name: object())
    monkeypatch.delattr(scoring, "fused", raising=False)
    monkeypatch.setitem(sys.modules, "spark_audit.scoring.fused", kernel)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device: zeros(size))


@pytest.mark.parametrize("broken", ["import", "compile"])
def test_a_triton_that_does_not_run_is_done_without(broken, monkeypatch):
    def sum_rows(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    kernel = SimpleNamespace(TRITON_PIECE=32, sum_rows=sum_rows)
    use_kernel(monkeypatch, None if broken == "import" else kernel)
    assert columns_module.fused_on.__wrapped__(torch.device("cuda")) is None


def sums_of_rows(
    z: torch.Tensor, own: torch.Tensor, *, masked: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The figures that the Triton kernel gives, by torch."""
    assert z.shape[1] % 32 == 0
    largest = z.amax(1, keepdim=True)
    distance = torch.where(z == masked, -1e4, z - largest)
    e = distance.exp()
    sums = [largest[:, 0], e.sum(1), (e * distance).sum(1), (e * distance**2).sum(1)]
    counts = [(z > own[:, None]).sum(1), (z == own[:, None]).sum(1)]
    most = z.view(len(z), -1, 32).amax(2)
    return torch.stack(sums, 1), torch.stack(counts, 1).int(), most


@pytest.mark.parametrize("vocabulary", [2, 41, 300, 1281, 5000])
def test_columns_of_a_kernel_s_sums_are_the_float64_ones(vocabulary, monkeypatch):
    """All of the way by the kernel but the kernel itself, on machines without a GPU."""
    language = SimpleNamespace(constexpr=int)
    triton = SimpleNamespace(jit=lambda function: function, language=language)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    monkeypatch.delitem(sys.modules, "spark_audit.scoring.fused", raising=False)
    fused = importlib.import_module("spark_audit.scoring.fused")
    monkeypatch.setattr(fused, "sum_rows", sums_of_rows)
    use_kernel(monkeypatch, fused)
    kernel = columns_module.fused_on.__wrapped__(torch.device("cuda"))
    assert kernel is fused
    monkeypatch.setattr(columns_module, "fused_on", lambda device: kernel)

    logits, targets = random_logits(21, vocabulary)
    usable = np.ones(vocabulary, dtype=bool)
    usable[[vocabulary // 3, vocabulary - 1]] = vocabulary < 10
    targets = np.where(usable[targets], targets, 0)
    expected = naive(logits, targets, usable)
    assert_equal(reduced(logits, targets, usable), expected)

    columns = TokenColumns(usable, DEVICE)
    z = columns.buffer(len(logits))
    z[:, : columns.vocabulary] = torch.from_numpy(logits)[:, : columns.vocabulary]
    nll = columns.nll(z, torch.from_numpy(targets)[:, None].to(DEVICE)).cpu().numpy()
    np.testing.assert_allclose(nll[:, 0], expected["nll"], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("vocabulary", "scale"), [(30, 1.0), (5000, 1.0), (5000, 6.0)])
def test_nuclei_are_those_that_transformers_keeps(vocabulary, scale):
    """Flat rows, whose nuclei have thousands of tokens, and steep ones."""
    logits, targets = random_logits(64, vocabulary, scale=scale)
    usable = np.ones(vocabulary, dtype=bool)
    found = reduced(logits, targets, usable, WITH_NUCLEI)
    assert_equal(found, naive(logits, targets, usable))
    wide = torch.from_numpy(logits).double()
    ordered = wide.sort(1, descending=True)[0]
    log_sum = (wide - wide.amax(1, keepdim=True)).logsumexp(1)
    exact = nuclei(ordered, log_sum).numpy().T
    own = wide.log_softmax(1)[range(64), targets].numpy()
    rank = 1 + (logits > logits[range(64), targets][:, None]).sum(1)
    for i, (p, name) in enumerate([(0.9, "top_p90"), (0.95, "top_p95")]):
        kept = TopPLogitsWarper(p)(torch.empty(64, 0), wide)
        expected = kept.log_softmax(1)[range(64), targets].numpy()
        size, mass = exact[2 * i : 2 * i + 2]
        assert np.array_equal(size, kept.isfinite().sum(1))
        ours = top_k_logp(-own, rank, mass, k=size)
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
        # From float32 logits a nucleus may end a token earlier or later.
        assert np.abs(found[f"{name}_size"] - size).max() <= 1
        columns = (found[k] for k in ("nll", "rank_lo", f"{name}_logp"))
        ours = top_k_logp(*columns, k=found[f"{name}_size"])
        inside = np.isfinite(expected)
        assert np.array_equal(np.isfinite(ours), inside)
        np.testing.assert_allclose(ours[inside], expected[inside], atol=3e-4)
