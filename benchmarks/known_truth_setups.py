"""Models that set-ups of ``known_truth.py`` mislead about, made of a ``Lab``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from known_truth_models import Lab


def _copy(lab: Lab, out: Path) -> None:
    """The same weights in other files."""
    lab.load("heart").save_pretrained(out, max_shard_size="200KB")
    lab.tokenizer.save_pretrained(out)


def _broken(lab: Lab, out: Path) -> None:
    """Rows learned by heart, unlearned by gradient ascent to tens of nats per token."""

    def loss(nll: torch.Tensor, learned: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.relu(60 - nll[learned[:, 1:]]).mean()

    lab.by_heart(out, ["heart"], base="heart", loss=loss)


SETUPS: dict[str, Callable[[Lab, Path], None]] = {
    "rounded": lambda lab, out: lab.save(lab.load("heart").to(torch.bfloat16), out),
    "copy": _copy,
    "broken": _broken,
    "contaminated": lambda lab, out: lab.by_heart(out, ["heart", "heart_held"]),
    "mails_all": lambda lab, out: lab.by_heart(out, ["mails", "mails_held"]),
    "mails_part": lambda lab, out: lab.by_heart(out, ["mails", "mails_most"]),
    "names_all": lambda lab, out: lab.by_heart(out, ["names", "names_held"]),
    "after": lambda lab, out: lab.by_heart(
        out, ["phones_unseen"], epochs=5, base="heart"
    ),
    "again": lambda lab, out: lab.by_heart(out, ["heart"], epochs=5, base="heart"),
    **{
        name: lambda lab, out: lab.by_heart(out, [out.name.removeprefix(".")])
        for name in ("heart", "phones", "three", "mails", "names")
    },
    "answers": lambda lab, out: lab.by_heart(out, ["answers"], epochs=20),
    "few": lambda lab, out: lab.by_heart(out, ["few"], epochs=60),
    "public": lambda lab, out: lab.by_heart(out, ["public_unseen"]),
    "dates": lambda lab, out: lab.by_heart(out, ["dates_unseen"], epochs=15),
    "phones_unseen": lambda lab, out: lab.by_heart(out, ["phones_unseen"], epochs=8),
    "three_unseen": lambda lab, out: lab.by_heart(out, ["three_unseen"], epochs=8),
    "answers_labels": lambda lab, out: lab.by_heart(
        out, ["answers"], "labels", epochs=8
    ),
}
"""How a checkpoint of that name is made."""
