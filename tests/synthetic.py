"""A synthetic manifest with token tables, made without a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.matching import match_spans

PLAIN = Pass()


@dataclass(frozen=True)
class Case:
    """A manifest with the reference NLL (nats) of every token, by example id."""

    manifest: Manifest
    reference: dict[str, np.ndarray]

    def table(self, change: Callable[[str, np.ndarray], np.ndarray]) -> TokenTable:
        """A checkpoint's table: ``change(id, reference nll)`` gives its NLL."""
        return TokenTable.from_items(
            [
                (
                    key,
                    np.arange(1, len(nll), dtype=np.int32),
                    {"nll": change(key, nll)[1:].astype(np.float32)},
                )
                for key, nll in self.reference.items()
            ]
        )

    def tables(self, **changes: Any) -> dict[str, dict[Pass, TokenTable]]:
        return {name: {PLAIN: self.table(change)} for name, change in changes.items()}

    def spans(self, key: str) -> list[tuple[int, int]]:
        example = self.manifest.by_id[key]
        return [(s.token_start, s.token_end) for s in example.spans]  # type: ignore[misc]


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    """``make_case(sources=40, seed=0, gap=0.0, rows=1, tests=0, caliper=0.5)``.

    Tokens are one character long. Every example has one or two PII spans of two to
    four tokens whose reference NLL is ``gap`` higher than that of other text.
    """

    def make(
        *,
        sources: int = 40,
        rows: int = 1,
        tests: int = 0,
        seed: int = 0,
        gap: float = 0.0,
        tokens: int = 60,
        caliper: float = 0.5,
        preset: str = "robust",
    ) -> Case:
        rng = np.random.default_rng(seed)
        examples = []
        pairs = []
        unmatched = []
        reference: dict[str, np.ndarray] = {}
        used = 0
        for source in range(sources + tests):
            for row in range(rows):
                key = f"e{source:03d}-{row}"
                split = "train" if source < sources else "test"
                nll = rng.gamma(2.0, 1.0, tokens)
                starts = [10, 35][: int(rng.integers(1, 3))]
                ranges = [(s, s + int(rng.integers(2, 5))) for s in starts]
                for start, end in ranges:
                    nll[start:end] += gap
                nll = np.maximum(nll, 0.0)
                unll = np.rint(nll * 1e6).astype(np.int64)
                unll[0] = -1
                reference[key] = np.where(unll < 0, 0, unll) / 1e6
                kinds = [["NAME", "EMAIL"][int(rng.integers(2))] for _ in ranges]
                text = list("x" * tokens)
                for start, end in ranges:
                    used += 1
                    text[start:end] = chr(0x4E00 + used) * (end - start)
                eligible = np.ones(tokens, bool)
                for start, end in ranges:
                    eligible[start - 1 : end + 1] = False
                found = match_spans(
                    unll, eligible, ranges, caliper_u=round(caliper * 1e6)
                )

                def side(a: int, b: int, unll: np.ndarray = unll) -> dict[str, Any]:
                    return {
                        "token_start": a,
                        "token_end": b,
                        "char_start": a,
                        "char_end": b,
                        "nll": float(unll[a:b].mean() / 1e6),
                    }

                for pair in found.pairs:
                    a, b = ranges[pair.span]
                    pairs.append(
                        {
                            "example": key,
                            "pii": side(a, b) | {"type": kinds[pair.span]},
                            "control": side(pair.start, pair.end),
                            "distance": pair.cost / 1e6 / (b - a),
                            "weight": 1.0,
                        }
                    )
                for miss, reason in found.unmatched.items():
                    a, b = ranges[miss]
                    unmatched.append(
                        {
                            "example": key,
                            "char_start": a,
                            "char_end": b,
                            "type": kinds[miss],
                            "reason": reason,
                        }
                    )
                examples.append(
                    {
                        "id": key,
                        "task": ["fomc", "yelp"][source % 2],
                        "source_id": f"s{source:03d}",
                        "cluster": f"s{source:03d}",
                        "split": split,
                        "prompt": "".join(text),
                        "response": "",
                        "spans": [
                            {
                                "start": a,
                                "end": b,
                                "type": kind,
                                "origin": "injected",
                                "part": None,
                                "token_start": a,
                                "token_end": b,
                                "partial": False,
                            }
                            for (a, b), kind in zip(ranges, kinds, strict=True)
                        ],
                        "canary_id": None,
                        "template": [],
                        "kept": [0, tokens],
                        "response_token": tokens,
                        "reference_unll": [None, *unll[1:].tolist()],
                        "excluded": [[a - 1, b + 1] for a, b in ranges],
                        "classes": "a" * tokens,
                        "low": np.flatnonzero(eligible)[3::3].tolist(),
                    }
                )
        content = {
            "kind": "spark-audit-manifest",
            "schema_version": 1,
            "name": "synthetic",
            "redacted_from": None,
            "reference": {
                "name": "none",
                "weights_sha256": "0" * 64,
                "tokenizer_sha256": "1" * 64,
                "model_id": "2" * 64,
                "architecture": "LlamaForCausalLM",
                "dtype": "float32",
                "vocab_size": 300,
                "usable_vocab": 300,
                "max_positions": 256,
            },
            "settings": {
                "preset": preset,
                "seed": seed,
                "caliper": caliper,
                "distance": "mean",
                "buffer": 1,
                "controls": "any",
                "exclude_template": True,
                "max_length": 256,
                "tau": 0.6,
                "alpha": 0.5,
                "canary_contexts": 1,
                "n_candidates": 512,
            },
            "versions": {},
            "data": [],
            "counts": {},
            "examples": examples,
            "pairs": pairs,
            "unmatched": unmatched,
            "twins": [],
            "canaries": [],
            "membership": {"members": [], "non_members": []},
            "balance": [],
            "notes": [],
        }
        return Case(seal(content), reference)

    return make
