"""Audits here take few replicates of the bootstrap: nothing rests on its last digit."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from planted_canaries import PARTS, Planted

from spark_audit.audits.base import Audit
from spark_audit.manifest.content import seal


@pytest.fixture(scope="module", autouse=True)
def _few_replicates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Audit, "replicates_of", lambda *_: 200)
        yield


@pytest.fixture
def plant_canaries(make_case) -> Callable[..., Planted]:
    """``plant_canaries(**fields)``: canaries of three parts, of trained rows and not.

    ``n`` are trained in ``contexts`` rows each, ``held`` are not; the first
    ``unrankable`` of them have no candidates. Doses go round, ``pairs`` are of one
    coin each.
    """

    def make(
        *,
        n: int = 20,
        held: int = 20,
        doses: tuple[int, ...] = (6,),
        contexts: int = 2,
        size: int = 64,
        seed: int = 0,
        preset: str = "robust",
        unrankable: int = 0,
        format: str = "login",
        pairs: bool = False,
    ) -> Planted:
        rng = np.random.default_rng(seed)
        records = []
        for i in range(n + held):
            out = i >= n
            for part in PARTS:
                lost = i < unrankable
                records.append(
                    {
                        "canary_id": f"{'h' if out else 'c'}{i:03d}",
                        "part": part,
                        # Not in the order of their ids: the first is e0, not e9.
                        "contexts": [
                            {"example": f"e{9 - j}-{i}", "char_start": 0, "char_end": 9}
                            for j in range(contexts)
                        ],
                        "candidates": [] if lost else [f"s{j}" for j in range(size)],
                        "true_index": None if lost else int(rng.integers(size)),
                        "reason": "too few" if lost else None,
                        "n_tokens": 6,
                        "format": format,
                        "dose": 0 if out else doses[i % len(doses)],
                        "held_out": out,
                        "pair": f"p{i % n:03d}" if pairs else None,
                    }
                )
        content = make_case(sources=2, preset=preset).manifest.model_dump(mode="json")
        blank = content["examples"][0]
        used = set()
        for record in records:
            used |= {context["example"] for context in record["contexts"]}
        # The rows that canaries stand in; no figure of this audit needs their text.
        content["examples"] += [{**blank, "id": key} for key in sorted(used)]
        return Planted(seal(content | {"canaries": records}), size)

    return make
