"""DP-SGD: clipping, noise, sampling and epsilon, each against a plain computation."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_training import Killed, Outcome, train, write_stream
from safetensors.torch import load_file
from scipy import optimize, stats

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.clock import Clock
from spark_audit.data.examples import read_examples
from spark_audit.errors import InputError
from spark_train.dpsgd import dpsgd, step_noise
from spark_train.loop import Phase, Rows, flat_gradient, run_phase
from spark_train.lora import add_lora
from spark_train.method import Method
from spark_train.privacy_accounting import epsilon, noise_for
from spark_train.run_folder import Folder
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.training_methods import METHODS
from spark_train.training_rows import TrainRow, encode_rows
from spark_train.training_settings import parse

TASKS = ("yelp", "fomc", "agnews")
CLAIMED = {"seqft", "er", "olora", "mtl"}


@pytest.fixture(scope="module", autouse=True)
def _few_orders() -> Iterator[None]:
    """A tenth of the accountant's orders, and of its time; ours and its own agree."""
    from opacus.accountants import RDPAccountant

    with pytest.MonkeyPatch.context() as patch:
        orders = [1.1, 1.5, *range(2, 13), 16, 24, 32, 48, 63]
        patch.setattr(RDPAccountant, "DEFAULT_ALPHAS", orders)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    return write_stream(path, tasks=TASKS, train=10, test=1)


@pytest.fixture
def stream(tiny_base, data):
    """``stream(*settings)``: a stream on a fresh model."""

    def make(*settings: str) -> Stream:
        chosen = parse(["batch_size=4", "epochs=2", "lr=0.02", "lora.r=4", *settings])
        loaded = open_checkpoint(str(tiny_base), device="cpu")
        with quiet():
            model = add_lora(loaded.model, r=4, alpha=8)
        # A fresh adapter's gradient is half zero: begin somewhere else.
        generator = torch.Generator().manual_seed(1)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
        examples = [e for e in read_examples(data) if e.split == "train"]
        rows = encode_rows(examples, loaded.tokenizer)
        by_task = {task: [r for r in rows if r.task == task] for task in TASKS}
        return Stream(
            student=Student(model),
            rows=by_task,
            settings=chosen,
        )

    return make


def phases(stream: Stream, method: str = "er") -> list[Phase]:
    return dpsgd(stream, METHODS[method]).phases


def collected(phase: Phase, step: int, rows: Rows) -> dict[str, float]:
    assert phase.collect is not None
    return phase.collect(step, rows, phase.terms(rows), Clock())


def gradient(stream: Stream, phase: Phase, step: int) -> torch.Tensor:
    """What the optimizer would see of a step: ``(P,)``."""
    phase.start()
    collected(phase, step, phase.choose(step).rows)
    return flat_gradient(stream.student)


def full(phase: Phase) -> int:
    """The first step with two rows or more of each role."""
    batches = [phase.choose(step).rows.values() for step in range(phase.steps)]
    return [min(map(len, rows)) > 1 for rows in batches].index(True)


def own_loss(student: Student, row: TrainRow) -> torch.Tensor:
    """The mean NLL of a row's response, from the model's own logits."""
    ids = torch.as_tensor(np.asarray(row.ids), dtype=torch.long)
    logits = student.model(input_ids=ids[None], use_cache=False).logits[0]
    response = torch.as_tensor(np.asarray(row.response))[1:]
    loss = torch.nn.functional.cross_entropy(
        logits[:-1][response], ids[1:][response], reduction="mean"
    )
    return loss


def own_gradient(student: Student, row: TrainRow) -> torch.Tensor:
    weights = list(student.trainable.values())
    gradients = torch.autograd.grad(own_loss(student, row), weights)
    return torch.cat(
        [gradient_part.reshape(-1) for gradient_part in gradients]
    ).double()


# --- clipping -------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.05, 2.0, 1000.0])
def test_a_step_is_the_sum_of_clipped_gradients(bound, stream):
    """With the largest bound nothing is clipped, so that every weight shows."""
    stream_made = stream(
        *("dp.noise_multiplier=0", f"dp.max_grad_norm={bound}", "epochs=20"),
        *("replay.ratio=0.25", "replay.lambda=2"),
    )
    phase = phases(stream_made)[2]
    step = full(phase)
    chosen = phase.choose(step)
    collected_sum = collected(phase, step, chosen.rows)
    gradient_found = flat_gradient(stream_made.student)
    total = torch.zeros_like(gradient_found)
    cut = 0
    for role, rows in chosen.rows.items():
        for row in rows:
            # Three current rows are expected beside one replayed row, at lambda 2.
            row_gradient = own_gradient(stream_made.student, row) * (
                6 if role == "replay" else 1
            )
            norm = float(row_gradient.norm())
            total += row_gradient * min(1.0, bound / norm)
            cut += norm > bound
    torch.testing.assert_close(gradient_found, total / 3, atol=1e-6, rtol=1e-4)
    assert collected_sum["clipped"] == cut
    if bound < 1:
        assert cut == sum(map(len, chosen.rows.values()))
    if bound > 100:
        assert cut == 0


def test_a_gradient_below_the_bound_is_not_stretched(stream):
    stream_made = stream("dp.noise_multiplier=0", "dp.max_grad_norm=1000")
    phase = phases(stream_made, "seqft")[0]
    (row, *_) = stream_made.rows["yelp"]
    collected_sum = collected(phase, 0, {"task": [row]})
    # One row over an expected batch of four.
    wanted = own_gradient(stream_made.student, row) / 4
    assert float(wanted.norm()) < 100
    gradient_found = flat_gradient(stream_made.student).double()
    torch.testing.assert_close(gradient_found, wanted, atol=1e-6, rtol=1e-4)
    assert collected_sum["clipped"] == 0


def test_no_row_moves_the_sum_further_than_the_bound(stream):
    stream_made = stream("dp.noise_multiplier=0", "dp.max_grad_norm=0.01")
    phase = phases(stream_made, "seqft")[0]
    for row in stream_made.rows["yelp"][:3]:
        collected_sum = collected(phase, 0, {"task": [row]})
        norm = float(flat_gradient(stream_made.student).norm())
        assert norm == pytest.approx(0.01 / 4, rel=1e-3)
        assert norm <= 0.01 / 4
        assert collected_sum["clipped"] == 1


# --- noise ----------------------------------------------------------------------------


def test_noise_follows_from_seed_run_phase_and_step_alone(monkeypatch):
    first: dict[str, Any] = {"seed": 0, "run": "a", "key": "1-a/task", "step": 3}
    noise = step_noise(50, **first)
    assert noise.equal(step_noise(50, **first))
    for changed_field in ({"seed": 1}, {"run": "b"}, {"key": "2-b/task"}, {"step": 4}):
        assert not noise.equal(step_noise(50, **first | changed_field))
    assert stats.kstest(step_noise(5000, **first).numpy(), "norm").pvalue > 1e-3
    # Seeds that are the same to torch's generator, which takes 32 bits.
    noises = []
    for seed in (5, 5 + 2**32):
        monkeypatch.setattr("spark_train.dpsgd.seed_for", lambda *of, s=seed: s)
        noises.append(step_noise(50, **first))
    assert not noises[0].equal(noises[1])


def quick(output: Path, base: Path, data: Path, setting: str) -> Outcome:
    """A short private run over one task."""
    return train(
        method="seqft",
        base=str(base),
        data=[data],
        order="yelp",
        output=output,
        dp="dpsgd",
        settings=["epochs=1", "batch_size=2", "eval_rows=1", setting],
    )


def test_runs_of_one_seed_share_neither_noise_nor_batches(tiny_base, data, tmp_path):
    batches_left = []
    # Hardly anything but noise, whose scale AdamW takes out again.
    for sigma in (1e4, 2e4):
        output = tmp_path / str(sigma)
        noise = f"dp.noise_multiplier={sigma}"
        folder = quick(output, tiny_base, data, noise).folder
        state = load_file(folder / "stages/1-yelp/task/adapter_model.safetensors")
        weights = [w.flatten() for name, w in state.items() if "lora_B" in name]
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        sizes = [json.loads(line)["n_task"] for line in lines]
        batches_left.append((torch.cat(weights), sizes))
    (one, sizes), (other_noise, others) = batches_left
    assert sizes != others
    correlation = np.corrcoef(one.numpy(), other_noise.numpy())[0, 1]
    assert abs(correlation) < 4 / len(one) ** 0.5


def test_a_penalty_on_the_weights_comes_behind_clipping_and_noise(stream):
    stream_made = stream("dp.noise_multiplier=2", "dp.max_grad_norm=0.01", "clip=1e9")
    phase = phases(stream_made, "seqft")[0]
    first = next(iter(stream_made.student.trainable.values()))
    seen: list[torch.Tensor] = []

    def look(step: int) -> dict[str, float]:
        seen.append(flat_gradient(stream_made.student))
        return {}

    for penalty in (None, lambda: {"held": 50.0 * first.sum()}):
        one_step = replace(phase, steps=1, penalty=penalty, gradients=look, lr=1e-12)
        run_phase(stream_made.student, one_step, seed=0)
    moved = (seen[1] - seen[0])[: first.numel()]
    torch.testing.assert_close(moved, torch.full_like(moved, 50.0), atol=1e-2, rtol=0)
    assert float((seen[1] - seen[0])[first.numel() :].abs().max()) < 1e-4


def test_an_empty_batch_is_noise_alone(stream):
    stream_made = stream("dp.noise_multiplier=2", "dp.max_grad_norm=0.5")
    phase = phases(stream_made, "seqft")[0]
    assert collected(phase, 0, {"task": []}) == {"task": 0.0, "clipped": 0}
    noise = step_noise(
        len(flat_gradient(stream_made.student)), seed=0, run="", key=phase.key, step=0
    )
    wanted = 2 * 0.5 * noise / 4
    torch.testing.assert_close(
        flat_gradient(stream_made.student), wanted, atol=1e-6, rtol=1e-5
    )


# --- sampling -------------------------------------------------------------------------


def test_rows_are_sampled_at_the_rates_that_are_accounted(stream):
    stream_made = stream("epochs=100")
    phase = phases(stream_made)[2]
    rates = phase.sampling_rates
    # 10 rows a task; batches of 4: two current, one of each of two earlier tasks.
    assert rates == {"agnews": 0.2, "yelp": 0.1, "fomc": 0.1}
    assert phase.steps == 100 * 5
    count: dict[str, int] = {}
    pairs = 0
    for step in range(phase.steps):
        rows = [
            row
            for rows_of_role in phase.choose(step).rows.values()
            for row in rows_of_role
        ]
        assert len({row.id for row in rows}) == len(rows)
        for row in rows:
            count[row.id] = count.get(row.id, 0) + 1
        pairs += {"yelp-00", "agnews-00"} <= {row.id for row in rows}
    assert len(count) == 30
    for task, rate in rates.items():
        for i in range(10):
            n = count[f"{task}-{i:02d}"]
            assert stats.binomtest(n, phase.steps, rate).pvalue > 1e-4, (task, i)
    # Rows come independently of each other.
    assert stats.binomtest(pairs, phase.steps, 0.1 * 0.2).pvalue > 1e-4
    again = phases(stream_made)[2]
    assert [r.id for r in again.choose(7).rows["task"]] == [
        r.id for r in phase.choose(7).rows["task"]
    ]


@pytest.mark.parametrize("method", ["er", "mtl"])
def test_a_row_more_or_less_leaves_the_divisor(method, stream):
    stream_made = stream("dp.noise_multiplier=1e6", "dp.max_grad_norm=1")
    less = replace(
        stream_made, rows={task: rows[1:] for task, rows in stream_made.rows.items()}
    )
    # Hardly anything but noise, of which there is the same whatever the rows.
    gradient_of_all, gradient_of_less = (
        gradient(s, phases(s, method)[-1], 0) for s in (stream_made, less)
    )
    torch.testing.assert_close(gradient_of_all, gradient_of_less, rtol=1e-4, atol=10)


def test_mtl_samples_all_tasks_alike(stream):
    (phase,) = phases(stream(), "mtl")
    assert phase.sampling_rates == dict.fromkeys(TASKS, 4 / 30)
    sizes = [len(phase.choose(step).rows["task"]) for step in range(phase.steps)]
    assert stats.binomtest(sum(sizes), 30 * phase.steps, 4 / 30).pvalue > 1e-4


# --- epsilon --------------------------------------------------------------------------


def opacus_epsilon(history: list[tuple[float, float, int]], delta: float) -> float:
    """Opacus's accountant, stepped through as its engine does."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for sigma, rate, steps in history:
        for _ in range(steps):
            accountant.step(noise_multiplier=sigma, sample_rate=rate)
    return float(accountant.get_epsilon(delta))


@pytest.mark.filterwarnings("ignore:Optimal order")
def test_epsilon_composes_the_own_task_and_its_replay(stream):
    notes: list[str] = []
    stream_made = replace(stream("dp.noise_multiplier=1.3"), note=notes.append)
    facts = dpsgd(stream_made, METHODS["er"]).facts
    delta = 1 / 30
    # Batches of 4: the first task alone, later ones beside two replayed rows.
    history = {
        "yelp": [(1.3, 0.4, 6), (1.3, 0.2, 10), (1.3, 0.1, 10)],
        "fomc": [(1.3, 0.2, 10), (1.3, 0.1, 10)],
        "agnews": [(1.3, 0.2, 10)],
    }
    assert facts["delta"] == delta
    for task, steps in history.items():
        assert facts["epsilon"][task] == pytest.approx(opacus_epsilon(steps, delta))
    assert facts["epsilon"]["yelp"] > facts["epsilon"]["fomc"]
    assert notes[0].startswith("epsilon at delta 0.0333, by task: yelp ")
    assert facts["sampling"]["2-fomc/task"] == {
        "steps": 10,
        "rates": {"fomc": 0.2, "yelp": 0.2},
    }
    epsilon_alone = dpsgd(stream_made, METHODS["seqft"]).facts["epsilon"]
    assert epsilon_alone == {
        task: pytest.approx(opacus_epsilon([(1.3, 0.4, 6)], delta)) for task in TASKS
    }


def test_epsilon_is_a_number_whatever_the_noise():
    stretches = [(10, {"a": 0.1})]

    def at(sigma: float, delta: float) -> float:
        return epsilon(stretches, "a", noise_multiplier=sigma, delta=delta)

    # Of so little that its square is 0, and of so much that it has no square.
    assert at(1e-300, 1e-4) == math.inf
    assert at(1e300, 1e-4) == at(1e5, 1e-4) == pytest.approx(at(1e4, 1e-4))
    assert 0 < at(1e300, 1e-4) < at(10, 1e-4)
    # A delta that would do without any epsilon leaves none, and none below it.
    assert at(1e3, 1 / 30) == 0.0


@pytest.mark.parametrize("sigma", [20.0, 1000.0])
def test_small_epsilons_are_near_the_exact_ones(sigma):
    """Every row in every step: a Gaussian mechanism (Balle & Wang 2018)."""
    mu = math.sqrt(200) / sigma
    delta = 1e-4

    def excess(e: float) -> float:
        upper = stats.norm.cdf(mu / 2 - e / mu)
        return float(upper - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta)

    exact = optimize.brentq(excess, 1e-9, 50)
    own_epsilon = epsilon([(200, {"a": 1.0})], "a", noise_multiplier=sigma, delta=delta)
    assert exact <= own_epsilon < 1.2 * exact


def test_noise_is_found_for_a_target(stream):
    with pytest.raises(InputError, match=r"1e-09 .*0\.0001"):
        noise_for([(60, {"a": 0.05})], target=1e-9, delta=1e-4)
    facts = dpsgd(stream("dp.target_epsilon=2"), METHODS["mtl"]).facts
    assert 1.99 < max(facts["epsilon"].values()) <= 2
    assert facts["noise_multiplier"] != 1.0
    with pytest.raises(
        InputError, match="^--set: .*dp.noise_multiplier.*dp.target_epsilon"
    ):
        dpsgd(stream("dp.target_epsilon=2", "dp.noise_multiplier=1"), METHODS["er"])
    with pytest.raises(InputError, match=r"\bgem\b"):
        dpsgd(stream("dp.target_epsilon=2"), METHODS["gem"])


def test_epsilon_is_claimed_where_all_is_accounted(stream):
    stream_made = stream("dp.delta=0.5")
    for name, method in METHODS.items():
        notes: list[str] = []
        facts = dpsgd(replace(stream_made, note=notes.append), method).facts
        assert notes[0].startswith("dp.delta 0.5 ")
        assert ("epsilon" in facts) == (name in CLAIMED)
        if name not in CLAIMED:
            assert any(facts["no_epsilon"] in note for note in notes)
            assert len(facts["no_epsilon"]) > 20
        json.dumps(dict(facts), allow_nan=False)
    none = dpsgd(stream("dp.noise_multiplier=0"), METHODS["er"]).facts
    assert none["no_epsilon"].startswith("noise_multiplier 0 ")


def test_a_method_that_says_nothing_has_no_epsilon(stream):
    silent = Method("quiet", METHODS["seqft"].phases)
    facts = dpsgd(stream(), silent).facts
    assert "does not declare" in facts["no_epsilon"]

    def shuffled(made: Stream) -> list[Phase]:
        return METHODS["seqft"].phases(replace(made, poisson=False))

    bounded = dpsgd(stream("replay.memory=5"), METHODS["er"]).facts
    assert bounded["no_epsilon"].startswith("replay.memory keeps other rows")

    other_method = replace(METHODS["seqft"], phases=shuffled)
    facts = dpsgd(stream(), other_method).facts
    assert "1-yelp/task draws its rows otherwise" in facts["no_epsilon"]


def test_another_noise_than_at_first_is_refused(tiny_base, data, tmp_path, monkeypatch):
    def start(sigma: float) -> Outcome:
        search = "spark_train.dpsgd.noise_for"
        monkeypatch.setattr(search, lambda *_, **__: sigma)
        return quick(tmp_path / "run", tiny_base, data, "dp.target_epsilon=2")

    def once(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "save", once)
        with pytest.raises(Killed):
            start(8.0)
    with pytest.raises(InputError, match=r"8\.0, .*0\.5; "):
        start(0.5)
    assert start(8.0).record.privacy["epsilon"]["yelp"] <= 2
