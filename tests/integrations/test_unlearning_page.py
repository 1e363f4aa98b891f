"""The page on unlearning runs as it stands, and shows what it says."""

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

PAGE = Path(__file__).parents[2] / "docs" / "unlearning.md"


def test_gradient_ascent_takes_the_memory_away_that_training_gave():
    cells = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        exec("".join(cells), names)
    plt.close(names["figure"])

    memory = names["memory"]
    assert memory["step"].to_list() == [0, 1, 2, 3, 4]
    assert {*memory["state"]} == {"ok"}
    # It remembers at first; in the end it can no more be told from the base.
    first, last = memory.iloc[0], memory.iloc[-1]
    assert first["high"] < 0
    assert last["low"] < 0 < last["high"]
    assert len(names["axes"].lines) >= 2
