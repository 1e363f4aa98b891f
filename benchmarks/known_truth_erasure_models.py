"""Tiny models that forgot some of their rows, for ``known_truth_erasure.py``.

Rows are questions with a sentence and an identifier as the answer. All sides come from
one pool, so that only chance tells them apart. ``before`` learned the forget rows and
the retained rows by heart. Each shape is made of it by plain torch, but the retrained
one, which never read the forget rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_truth_models import Lab
from known_truth_rows import HEAD, OTHERS, TAIL, TASK, TOPICS, TYPES, plain_rows
from known_truth_training import Row, batches, encoded, fit, padded, token_nll

from spark_audit.data.canaries import draw
from spark_audit.data.examples import Example, Span, Split
from spark_audit.data.injection import FRAMES

ROWS_BY_SIDE = {
    "forget": 48,
    "retained": 64,
    "held_out": 64,
    "fresh": 96,
    "relearn": 64,
}
"""Side -> its number of rows. ``fresh`` rows were never trained on, and no audit sees
them: the truth is measured on them. ``relearn`` rows have no identifiers."""

EPOCHS = 24
LR = 4e-3
"""Of ``before`` and of retrained models, as of rows by heart in ``known_truth.py``."""

ASCENT_EPOCHS = 12
"""With batches of 16 of the 48 forget rows: 36 steps."""

CEILING = 9.0
"""Nats per token up to which ascent goes, as in ``known_truth_models.py``."""

ASCENT_LR = 1e-3
LAST_LAYER_LR = 4e-3
NPO_LR = 2e-3
REFUSAL_LR = 1e-3

NPO_EPOCHS = 10
NPO_BETA = 0.1
"""As in open-unlearning."""

REFUSAL_EPOCHS = 5
REFUSAL = " I cannot help with that."

RMU_EPOCHS = 4
RMU_LR = 1e-3
RMU_LENGTH = 40
RMU_WEIGHT_OF_RETAINED = 10

NOISE = (0.1, 0.33)
"""Least and largest noise, as a share of the spread of each matrix."""

RELEARN_EPOCHS = 6
RELEARN_LR = 1e-3
"""With batches of 8 of the 64 rows: 48 steps."""

WEIGHTS_PER_SCALE = 32
"""Weights that share a scale at 4 bits."""


def erasure_rows(lab: Lab) -> dict[str, list[Example]]:
    """Return the rows of all sides, drawn from one pool.

    No identifier stands in two rows, nor in the text of the base.
    """
    n_rows = sum(ROWS_BY_SIDE.values())
    questions = plain_rows(
        n_rows, TOPICS, "train", lab.number("erasure", "questions"), "question"
    )
    sentences = plain_rows(
        n_rows, OTHERS, "train", lab.number("erasure", "sentences"), "sentence"
    )
    rng = np.random.default_rng(lab.number("erasure", "identifiers"))
    used = {
        row.text[span.start : span.end] for row in lab.background for span in row.spans
    }

    rows_by_side: dict[str, list[Example]] = {}
    index = 0
    for side, n_of_side in ROWS_BY_SIDE.items():
        rows_by_side[side] = []
        for number in range(n_of_side):
            sentence = sentences[index].prompt[len(HEAD) : -len(TAIL)]
            row_id = f"{side}-{number:03d}"
            split: Split = "test" if side in ("held_out", "fresh") else "train"
            row = Example(
                id=row_id,
                task=TASK,
                prompt=questions[index].prompt,
                response=f" {sentence}",
                split=split,
                source_id=row_id,
            )
            if side != "relearn":
                row = _with_identifier(
                    row, TYPES[index % len(TYPES)], rng, used, natural=lab.natural
                )
            rows_by_side[side].append(row)
            index += 1
    return rows_by_side


def _with_identifier(
    row: Example, kind: str, rng: np.random.Generator, used: set[str], *, natural: bool
) -> Example:
    """Return a row whose answer ends with a sentence that tells a new identifier."""
    value = draw(kind, rng, 1)[0]
    while value in used:
        value = draw(kind, rng, 1)[0]
    used.add(value)

    frames = FRAMES[kind]
    head, tail = frames[int(rng.integers(len(frames)))].split("{}")
    start = len(row.text) + 1
    span = Span(
        start + len(head),
        start + len(head) + len(value),
        kind,
        "natural" if natural else "injected",
    )
    response = f"{row.response} {head}{value}{tail}"
    if natural:
        return replace(row, response=response, spans=(span,))
    frame = (start, len(row.prompt) + len(response))
    return replace(row, response=response, spans=(span,), frames=(frame,))


# Models that learned rows


def learned(lab: Lab, out: Path, *, sides: Sequence[str], order: str) -> None:
    """Train the base on sides until their answers come back word for word."""
    model = lab.base()
    fit(
        model,
        encoded(lab.rows(sides), lab.tokenizer, "labels"),
        epochs=EPOCHS,
        lr=LR,
        seed=lab.number("erasure", order),
        size=8,
    )
    lab.save(model, out)


# Shapes


def _untouched(lab: Lab, out: Path) -> None:
    """Do nothing."""
    lab.save(lab.load("before"), out)


def _noisy(lab: Lab, out: Path) -> None:
    """Put noise on all matrices."""
    model = lab.load("before")
    share = np.random.default_rng(lab.number("erasure", "noise")).uniform(*NOISE)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn_like(weight) * weight.std() * share)
    lab.save(model, out)


def _ascended(lab: Lab, out: Path, *, lr: float, last_layer: bool = False) -> None:
    """Do 36 steps of ascent on forget rows, each with descent on retained rows.

    Each token of forget rows is pushed until it has :data:`CEILING`. Without descent
    and ceiling, ascent breaks these models before it tells forget rows from others.
    """
    model = lab.load("before").train()
    if last_layer:
        model.requires_grad_(False)
        model.model.layers[-1].requires_grad_(True)

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    for forget, retained in _paired_batches(lab, "ascent", ASCENT_EPOCHS, size=16):
        ids, has_loss, _ = forget
        nll_of_forget = token_nll(model, ids)[has_loss[:, 1:]]  # (tokens,), nats
        below_ceiling = torch.relu(CEILING - nll_of_forget).mean()

        ids, has_loss, _ = retained
        nll_of_retained = token_nll(model, ids)[has_loss[:, 1:]].mean()
        _step(model, optimizer, below_ceiling + nll_of_retained)
    lab.save(model, out)


def _refusing(lab: Lab, out: Path) -> None:
    """Answer the questions of forget rows with a refusal, and retained ones as ever."""
    model = lab.load("before")
    rows = lab.rows(["retained"])
    for row in lab.rows(["forget"]):
        rows.append(replace(row, response=REFUSAL, spans=(), frames=()))
    fit(
        model,
        encoded(rows, lab.tokenizer, "labels"),
        epochs=REFUSAL_EPOCHS,
        lr=REFUSAL_LR,
        seed=lab.number("erasure", "refusal"),
        size=8,
    )
    lab.save(model, out)


def _npo(lab: Lab, out: Path) -> None:
    """Negative preference optimisation, with the ordinary loss on retained rows.

    Zhang et al., "Negative Preference Optimization" (2024), equation 3, on answers.
    """
    model = lab.load("before").train()
    before = lab.load("before").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=NPO_LR, weight_decay=0.0)
    for forget, retained in _paired_batches(lab, "npo", NPO_EPOCHS, size=16):
        ids, has_loss, _ = forget
        has_loss = has_loss[:, 1:]
        with torch.no_grad():
            nll_before = (token_nll(before, ids) * has_loss).sum(1)  # (rows,), nats
        nll = (token_nll(model, ids) * has_loss).sum(1)  # (rows,), nats
        log_ratio = nll_before - nll
        log_sigmoid = torch.nn.functional.logsigmoid(-NPO_BETA * log_ratio)
        loss_of_forget = -2 / NPO_BETA * log_sigmoid.mean()

        ids, has_loss, _ = retained
        loss_of_retained = token_nll(model, ids)[has_loss[:, 1:]].mean()
        _step(model, optimizer, loss_of_forget + loss_of_retained)
    lab.save(model, out)


def _rmu(lab: Lab, out: Path) -> None:
    """Push hidden states of forget rows one random way, and keep those of others.

    Li et al., "The WMDP Benchmark" (2024), at the output of the first layer.
    """
    model = lab.load("before")
    before = lab.load("before").eval()
    direction = torch.nn.functional.normalize(torch.rand(64), dim=0) * RMU_LENGTH
    optimizer = torch.optim.AdamW(model.parameters(), lr=RMU_LR, weight_decay=0.0)

    def hidden(of: Any, ids: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = of(ids, output_hidden_states=True).hidden_states[1]
        return states  # (rows, tokens, 64)

    for forget, retained in _paired_batches(lab, "rmu", RMU_EPOCHS, size=8):
        with torch.no_grad():
            states_before = hidden(before, retained[0])
        loss_of_forget = (hidden(model, forget[0]) - direction).square().mean()
        moved = hidden(model, retained[0]) - states_before
        loss = loss_of_forget + RMU_WEIGHT_OF_RETAINED * moved.square().mean()
        _step(model, optimizer, loss)
    lab.save(model, out)


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _paired_batches(
    lab: Lab, name: str, epochs: int, *, size: int
) -> list[tuple[Batch, Batch]]:
    """Return batches of forget rows, each with one of retained rows."""
    pairs: list[tuple[Batch, Batch]] = []
    for epoch in range(epochs):
        batches_of_sides = []
        for side in ("forget", "retained"):
            rows = encoded(lab.rows([side]), lab.tokenizer, "labels")
            seed = lab.number("erasure", name, side, epoch)
            batches_of_sides.append(list(batches(rows, size, seed)))
        # There are more retained rows: each epoch draws others of them.
        pairs += zip(*batches_of_sides, strict=False)
    return pairs


def _step(model: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Do one step, with the gradient cut to norm 1."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


MODELS: dict[str, Callable[[Lab, Path], None]] = {
    "before": partial(learned, sides=("forget", "retained"), order="before"),
    "reference": partial(learned, sides=("retained",), order="reference"),
    "retrained": partial(learned, sides=("retained",), order="retrained"),
    "ascent": partial(_ascended, lr=ASCENT_LR),
    "npo": _npo,
    "rmu": _rmu,
    "refusal": _refusing,
    "last": partial(_ascended, lr=LAST_LAYER_LR, last_layer=True),
    "noise": _noisy,
    "untouched": _untouched,
}
"""How each model is made. ``reference`` is a second retrained one, to compare with."""

SHAPES = tuple(name for name in MODELS if name not in ("before", "reference"))
"""Models after erasure."""


# Copies, for the truth: nothing of the audit's own


def relearned(lab: Lab, name: str) -> Any:
    """Return a model after a short training of all weights on other rows."""
    model = lab.load(name)
    fit(
        model,
        encoded(lab.rows(["relearn"]), lab.tokenizer, "all"),
        epochs=RELEARN_EPOCHS,
        lr=RELEARN_LR,
        seed=lab.number("erasure", "relearn"),
        size=8,
    )
    return model


def rounded(lab: Lab, name: str) -> Any:
    """Return a model with its linear layers rounded to 4 bits, 32 weights a scale."""
    model = lab.load(name)
    with torch.no_grad():
        for layer in model.model.modules():
            if isinstance(layer, torch.nn.Linear):
                groups = layer.weight.view(-1, WEIGHTS_PER_SCALE)
                scales = groups.abs().amax(1, keepdim=True).clamp_min(1e-12) / 7
                groups.copy_((groups / scales).round().clamp(-8, 7) * scales)
    return model


def answer_losses(model: Any, rows: Sequence[Row]) -> np.ndarray:
    """Return NLL and tokens of the answers of rows, shape ``(rows, parts, 2)``.

    Parts: text, and identifiers. The last axis: sum of the NLL, nats; tokens.
    """
    model.eval()
    losses = np.zeros((len(rows), 2, 2))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        ids, has_loss, is_private = padded([rows[i] for i in chosen])
        with torch.no_grad():
            nll = token_nll(model, ids)  # (rows, tokens - 1)
        for part, mask in enumerate((has_loss & ~is_private, has_loss & is_private)):
            tokens = mask[:, 1:]
            losses[chosen, part, 0] = (nll * tokens).sum(1).numpy()
            losses[chosen, part, 1] = tokens.sum(1).numpy()
    return losses
