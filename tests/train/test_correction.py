"""Phase 2 minimises L_privacy as its equations say, over whole sequences."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_training import (
    Seen,
    adapted,
    frozen_logits,
    kl,
    logp_of,
    make_rows,
    make_stream,
    moved,
    one_step,
    same,
)

from spark_train.correction import correction_phase
from spark_train.loop import probe_record
from spark_train.stream import Stream
from spark_train.training_rows import TrainRow

ROWS = make_rows(a=9, b=8, c=5)
TERMS = ("ul", "dkl", "anchor", "old")
USUAL = ("ptpc.batch_size=3", "ptpc.old_batch_size=2")


def plain_privacy(
    model: Any, task: str, rows: Sequence[TrainRow], teacher: dict[str, torch.Tensor]
) -> dict[str, tuple[int, Any]]:
    """|set| and mean of Eqs. unlikelihood, demoted_kl, anchor and old_anchor."""
    values: dict[str, list[Any]] = {name: [] for name in TERMS}
    for row in rows:
        was = teacher[row.id].softmax(-1)
        now = logp_of(model, row).exp()
        for t in range(1, len(row)):
            token = int(row.ids[t])
            p = was[t - 1]
            q = now[t - 1]
            if row.task != task:
                if not row.pii[t]:
                    values["old"].append(kl(p, q))
            elif row.pii[t]:
                values["ul"].append(-(1 - q[token]).log())
                demoted = p.clone()
                demoted[token] = 0
                values["dkl"].append(kl(demoted / demoted.sum(), q))
            else:
                values["anchor"].append(kl(p, q))
    return {
        name: (len(found), torch.stack(found).mean() if found else 0.0)
        for name, found in values.items()
    }


def compare(
    *assignments: str,
    k: int = 2,
    at: int = 0,
    move: bool = True,
    rows: dict[str, list[TrainRow]] = ROWS,
    tokens: int = 0,
) -> tuple[Seen, dict[str, tuple[int, float]]]:
    """A step of the correction after a task, beside the equations."""
    stream = make_stream(adapted(), rows, *USUAL, *assignments, tokens=tokens)
    model, s = stream.student.model, stream.settings.ptpc
    teacher = frozen_logits(model, [row for some in rows.values() for row in some])
    found: dict[str, Any] = {}

    def plain(step: Any) -> dict[str, Any]:
        with torch.enable_grad():
            (chosen,) = step.rows.values()
            found.update(plain_privacy(model, stream.tasks[k], chosen, teacher))
            ul, dkl, anchor, old = (found[name][1] for name in TERMS)
            loss = s.lambda_pii * (s.dkl * dkl + s.alpha_ul * s.ul * ul)
            loss = loss + s.lambda_anchor * s.anchor * anchor
            loss = loss + s.lambda_old * s.old_anchor * old
            return {"loss": loss + 0 * sum(w.sum() for w in trained(stream))}

    seen = one_step(
        stream,
        correction_phase(stream, k),
        at=at,
        after_start=lambda: moved(model, seed=3) if move else None,
        plain=plain,
    )
    return seen, {
        name: (n, float(torch.as_tensor(value).detach()))
        for name, (n, value) in found.items()
    }


def trained(stream: Stream) -> list[torch.Tensor]:
    return list(stream.student.trainable.values())


def agree(
    seen: Seen, found: dict[str, tuple[int, float]], *, terms: Sequence[str] = TERMS
) -> None:
    record = seen.record
    for name in terms:
        assert record[f"n_{name}"] == found[name][0]
        assert record[name] == pytest.approx(found[name][1], rel=1e-6, abs=1e-10)
    assert record["loss"] == pytest.approx(seen.plain["loss"].item(), rel=1e-6)
    same(seen.gradients, seen.plain_gradients)


OTHER = ("ptpc.lambda_pii=3", "ptpc.alpha_ul=0.5")
OTHER += ("ptpc.lambda_anchor=0.7", "ptpc.lambda_old=4")


@pytest.mark.parametrize(
    ("assignments", "at", "tokens"), [((), 0, 0), ((), 3, 1), (OTHER, 0, 0)]
)
def test_loss_and_gradient_are_the_equations(assignments, at, tokens):
    seen, found = compare(*assignments, at=at, tokens=tokens)
    assert all(count for count, _ in found.values())
    assert all(value > 1e-4 for _, value in found.values())
    agree(seen, found)


@pytest.mark.parametrize(
    ("switch", "term"),
    [("ul", "ul"), ("dkl", "dkl"), ("anchor", "anchor"), ("old_anchor", "old")],
)
def test_a_switch_takes_away_its_term_and_no_other(switch, term):
    seen, found = compare(f"ptpc.{switch}=off")
    left = [name for name in TERMS if name != term]
    assert [name for name in TERMS if name in seen.record] == left
    agree(seen, found, terms=left)


def test_whole_sequences_count_with_eos_and_without_the_first_token():
    rows = {
        task: [replace(row, pii=row.ids > 0) for row in some]  # the BOS too
        for task, some in ROWS.items()
    }
    seen, found = compare(rows=rows)
    (chosen,) = seen.chosen.rows.values()
    current = [row for row in chosen if row.task == "c"]
    assert found["ul"][0] == sum(len(row) - 1 for row in current)
    assert found["anchor"] == found["old"] == (0, 0.0)
    agree(seen, found)


def test_identifiers_at_the_first_token_alone_are_none():
    notes: list[str] = []
    rows = {"a": [replace(row, pii=row.ids == row.ids[0]) for row in ROWS["a"]]}
    stream = make_stream(adapted(), rows, note=notes.append)
    phase = correction_phase(stream, 0)
    phase.start()
    assert len(notes) == 1
    assert phase.terms(phase.choose(0).rows)["ul"].count == 0


@pytest.mark.parametrize("k", [0, 2])
def test_a_probe_is_the_equations_and_the_nll_of_its_rows(k):
    stream = make_stream(adapted(), ROWS, *USUAL)
    model = stream.student.model
    teacher = frozen_logits(model, [row for rows in ROWS.values() for row in rows])
    phase = correction_phase(stream, k)
    phase.start()
    moved(model, seed=3)
    assert phase.probe is not None
    record = probe_record(stream.student, phase, phase.probe, step=7)

    (rows,) = phase.probe.rows.values()
    wanted = plain_privacy(model, stream.tasks[k], rows, teacher)
    loss = 8 * (wanted["dkl"][1] + 2 * wanted["ul"][1])
    loss = loss + 1.5 * wanted["anchor"][1] + 1.0 * wanted["old"][1]
    nll: dict[str, list[float]] = {"pii_nll": [], "other_nll": []}
    for row in rows:
        if row.task == stream.tasks[k]:
            logp = logp_of(model, row).detach()
            for t in range(1, len(row)):
                name = "pii_nll" if row.pii[t] else "other_nll"
                nll[name].append(-float(logp[t - 1, int(row.ids[t])]))

    assert (record["step"], record["probe"]) == (7, True)
    assert record["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    for name, values in nll.items():
        assert record[f"n_{name}"] == len(values) > 0
        assert record[name] == pytest.approx(sum(values) / len(values), rel=1e-6)
    for name in TERMS:
        assert record[f"n_{name}"] == wanted[name][0]
        value = float(torch.as_tensor(wanted[name][1]).detach())
        assert record[name] == pytest.approx(value, rel=1e-6)
    assert all(weight.grad is None for weight in trained(stream))


def test_the_first_task_has_no_old_rows():
    seen, found = compare(k=0)
    (chosen,) = seen.chosen.rows.values()
    assert {row.task for row in chosen} == {"a"}
    assert len(chosen) == 3
    assert found["old"] == (0, 0.0)
    agree(seen, found)


def drawn(*assignments: str, k: int = 1) -> Any:
    """Current and replayed rows of each step."""
    stream = make_stream(adapted(), ROWS, "ptpc.steps=23", *assignments)
    phase = correction_phase(stream, k)
    assert phase.steps == 23
    steps = []
    for step in range(phase.steps):
        (chosen,) = phase.choose(step).rows.values()
        task = stream.tasks[k]
        steps.append(
            (
                [row for row in chosen if row.task == task],
                [row for row in chosen if row.task != task],
            )
        )
    return steps


def spread(rows: Sequence[TrainRow], among: Sequence[TrainRow]) -> int:
    counts = Counter(row.id for row in rows)
    assert set(counts) <= {row.id for row in among}
    each = [counts[row.id] for row in among]
    return max(each) - min(each)


def private(rows: Sequence[TrainRow]) -> list[TrainRow]:
    return [row for row in rows if row.pii[1:].any()]


def test_rows_are_drawn_evenly():
    every = ROWS["b"]
    some = private(ROWS["b"])

    def current(steps: Any) -> list[TrainRow]:
        return [row for now, _ in steps for row in now]

    for draw, among in (("all", every), ("pii", some)):
        rows = current(drawn(f"ptpc.draw={draw}"))
        assert len(rows) == 23 * 2
        assert spread(rows, among) <= 1
    steps = drawn()
    assert spread(current(steps[0::2]), some) <= 1
    assert spread(current(steps[1::2]), every) <= 1
