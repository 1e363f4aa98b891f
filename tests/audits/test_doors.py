"""What each access gives away equals an audit of a server that is limited so."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import audited, conclude, evidence, figure
from scipy import stats

from spark_audit.audits import Doors
from spark_audit.audits.base import Context
from spark_audit.audits.doors.accesses import (
    AGAINST_BASE_DOORS,
    DOOR_NAMES,
    LISTED_TOKENS,
    NAME_BY_LETTER,
)
from spark_audit.audits.doors.scores import UNLISTED_LOGP
from spark_audit.data.examples import Example, Span
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass, TokenTable

PLAIN = Pass()
TASKS = ("news", "books")
WORDS = (
    "food service cold good label text news read rate paid she said it was fine".split()
)


def rows(per_side: int = 22) -> list[Example]:
    """Rows of two tasks, each with a source of its own and a number as identifier."""
    rng = np.random.default_rng(0)
    rows_made = []
    for task in TASKS:
        for i in range(2 * per_side):
            number = str(rng.integers(10**6, 10**7))
            before = " ".join(rng.choice(WORDS, 7)) + " "
            after = " " + " ".join(rng.choice(WORDS, 5))
            rows_made.append(
                Example(
                    id=f"{task}-{i:02d}",
                    task=task,
                    prompt=before + number + after,
                    response=" good" if i % 3 else " cold",
                    split="train" if i % 2 else "test",
                    source_id=f"{task}-{i:02d}",
                    spans=(Span(len(before), len(before) + len(number), "ID"),),
                )
            )
    return rows_made


@pytest.fixture(scope="module")
def manifest(tiny_base) -> Manifest:
    from spark_audit.checkpoints.open import open_checkpoint

    base = open_checkpoint(str(tiny_base), name="base")
    return build_manifest(rows(), base, name="m", caliper=2.0)


@pytest.fixture(scope="module")
def opened(tiny_base, make_adapter, tmp_path_factory) -> dict[str, Any]:
    """The base, and a checkpoint with a random adapter."""
    from spark_audit.checkpoints.open import open_checkpoint

    adapter = make_adapter(tmp_path_factory.mktemp("doors") / "lora")
    return {
        "base": open_checkpoint(str(tiny_base), name="base"),
        "ours": open_checkpoint(str(adapter), base=str(tiny_base), name="ours"),
    }


@pytest.fixture(scope="module")
def scored(opened, manifest) -> Any:
    from spark_audit.manifest.sequences import score

    return score(opened, manifest)


@pytest.fixture(scope="module")
def result(scored, manifest) -> AuditResult:
    return audited("doors", scored, manifest)


def mean_auc(scores: Mapping[str, float], manifest: Manifest) -> float:
    """The share of pairs that are ordered rightly, by task, then averaged."""
    sides = manifest.membership
    shares = []
    for task in TASKS:
        members = [scores[k] for k in sides.members if k.startswith(task)]
        others = [scores[k] for k in sides.non_members if k.startswith(task)]
        pairs = [float(x > y) + (x == y) / 2 for x in members for y in others]
        shares.append(np.mean(pairs))
    return float(np.mean(shares))


# --- a server that is limited so ------------------------------------------------------


@pytest.fixture(scope="module")
def views(opened, manifest) -> dict[str, list[dict[str, Any]]]:
    """Row -> what servers show of each token, given the text before, by torch alone."""
    import torch

    checkpoint = opened["ours"]
    by_row = {}
    for example in manifest.examples:
        text = example.prompt + example.response
        ids = checkpoint.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logits = checkpoint.model(input_ids=ids).logits[0, :-1].double()
        logp = torch.log_softmax(logits, dim=-1)
        tokens = []
        for next_logp, token in zip(logp, ids[0, 1:].tolist(), strict=True):
            listed_logp, listed = next_logp.topk(LISTED_TOKENS)
            mean = (next_logp.exp() * next_logp).sum()
            spread = (next_logp.exp() * (next_logp - mean) ** 2).sum().sqrt()
            tokens.append(
                {
                    "answer_is_right": int(next_logp.argmax()) == token,
                    "list": dict(
                        zip(listed.tolist(), listed_logp.tolist(), strict=True)
                    ),
                    "token": token,
                    "logp": float(next_logp[token]),
                    "moments": (float(mean), float(spread)),
                }
            )
        by_row[example.id] = tokens
    return by_row


def of_answers(tokens: list[dict[str, Any]]) -> float:
    return float(np.mean([token["answer_is_right"] for token in tokens]))


def of_list(tokens: list[dict[str, Any]], digits: int | None) -> float:
    values = []
    for token in tokens:
        logp = token["list"].get(token["token"], UNLISTED_LOGP)
        values.append(max(logp if digits is None else round(logp, digits), -10.0))
    return float(np.mean(values))


def of_text(tokens: list[dict[str, Any]], digits: int | None) -> float:
    logps = [token["logp"] for token in tokens]
    return float(np.mean(logps if digits is None else np.round(logps, digits)))


def of_distribution(tokens: list[dict[str, Any]]) -> float:
    z = sorted(
        (token["logp"] - token["moments"][0]) / token["moments"][1] for token in tokens
    )
    return float(np.mean(z[: max(1, int(0.1 * len(z) + 1e-9))]))


SERVERS = {
    "answers": of_answers,
    "top20": lambda tokens: of_list(tokens, None),
    "top20_0.01": lambda tokens: of_list(tokens, 2),
    "top20_0.1": lambda tokens: of_list(tokens, 1),
    "logprobs": lambda tokens: of_text(tokens, None),
    "logprobs_0.01": lambda tokens: of_text(tokens, 2),
    "logprobs_0.1": lambda tokens: of_text(tokens, 1),
}


def ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """The place of each row among all, from 0 to 1; equal ones share a place."""
    places = (stats.rankdata([*scores.values()]) - 0.5) / len(scores)
    return dict(zip(scores, places, strict=True))


@pytest.mark.parametrize("door", [*SERVERS, "distribution"])
def test_a_door_equals_an_audit_of_a_server_that_is_limited_so(
    door, views, result, manifest
):
    server = SERVERS.get(door, SERVERS["logprobs"])
    scores = {row: server(tokens) for row, tokens in views.items()}
    if door == "distribution":
        # Who sees whole distributions sees log-probabilities, too.
        spread = ranks({row: of_distribution(tokens) for row, tokens in views.items()})
        level = ranks(scores)
        scores = {row: (level[row] + spread[row]) / 2 for row in views}
    row = figure(result, "ours", "auc", door)
    assert row.value == pytest.approx(mean_auc(scores, manifest), abs=1e-6)
    of_evidence = dict(
        zip(
            result.evidence.units["example"],
            result.evidence.row("ours", door),
            strict=True,
        )
    )
    # A token at the edge of a step may be rounded the other way in float32.
    edge = 0.01 if "_" in door else 1e-4
    assert of_evidence == pytest.approx(scores, abs=edge)
    assert len(set(scores.values())) > 5, "else nothing is compared"


def test_the_weights_give_what_membership_and_its_curve_say(scored, manifest, result):
    of_membership = audited("mia", scored, manifest, blind_permutations=0)
    same = {"logprobs": "loss", "weights": "combined"}
    for door, score in same.items():
        row = figure(result, "ours", "auc", door)
        expected = figure(of_membership, "ours", "auc", score)
        for field in ("value", "low", "high", "n", "clusters"):
            assert getattr(row, field) == pytest.approx(getattr(expected, field))


# --- made-up scores -------------------------------------------------------------------


def table(
    manifest: Manifest,
    *,
    gain: float,
    seed: int,
    share: float = 1.0,
    columns: tuple[str, ...] = (),
) -> TokenTable:
    """Tokens of members ``gain`` nats likelier than a base's, ranks as fits."""
    members = set(manifest.membership.members)
    items = []
    for example in manifest.examples:
        base_rng = np.random.default_rng([1, len(items)])
        rng = np.random.default_rng([seed, len(items)])
        nll = base_rng.gamma(2.0, 1.5, 24)
        if seed:
            nll += rng.normal(0, 0.2, 24)
            nll -= gain * (example.id in members) * (rng.random(24) < share)
        nll = nll.clip(0.01)
        all_columns = {
            "nll": nll.astype(np.float32),
            "rank_lo": np.maximum(np.rint(np.exp(0.55 * nll - 0.3)), 1).astype(
                np.int32
            ),
            "ties": np.zeros(24, np.int32),
            "mean_logp": np.full(24, -3.0, np.float32),
            "sd_logp": np.ones(24, np.float32),
        }
        kept = {k: v for k, v in all_columns.items() if not columns or k in columns}
        positions = np.arange(1, 25, dtype=np.int32)
        items.append((example.id, positions, kept))
    return TokenTable.from_items(items)


def tables(manifest: Manifest, **gains: float) -> dict[str, Any]:
    by_name = {"base": {PLAIN: table(manifest, gain=0.0, seed=0)}}
    for i, (name, gain) in enumerate(gains.items()):
        by_name[name] = {PLAIN: table(manifest, gain=gain, seed=i + 1)}
    return by_name


def says(result: AuditResult, name: str) -> dict[str, str]:
    return {
        record["variant"]: record["says"]
        for record in result.tables["doors_outcomes"]
        if record["checkpoint"] == name
    }


def test_who_sees_more_is_not_worse_where_memory_is_strong(manifest):
    """Beyond the interval of what is seen less; and rounding takes nothing away."""
    scored = tables(manifest, ours=0.0)
    stages = {"ours@1": 0.7, "ours@2": 0.35}
    for seed, (name, gain) in enumerate(stages.items(), start=11):
        scored[name] = {PLAIN: table(manifest, gain=gain, seed=seed)}
    scored["ours"] = scored["ours@2"]
    result = audited("doors", scored, manifest, order=",".join(TASKS))
    in_full = ("answers", "top20", "logprobs", "distribution", "weights", "all_stages")
    figures = {door: figure(result, "ours", "auc", door) for door in in_full}
    for less, more in pairwise(in_full):
        assert figures[more].value >= figures[less].low, (less, more)
    assert figures["all_stages"].value > figures["logprobs"].value
    assert figures["weights"].low > figures["answers"].value
    for door in ("top20", "logprobs"):
        for step in ("0.01", "0.1"):
            rounded = figure(result, "ours", "auc", f"{door}_{step}")
            assert rounded.value == pytest.approx(figures[door].value, abs=0.02)
    outcomes = says(result, "ours")
    assert outcomes["weights"] == outcomes["all_stages"] == "shown"
    (finding,) = [f for f in result.findings if f.checkpoint == "ours"]
    assert finding.claim == "moved"
    assert not finding.detected, "nothing is claimed twice"


def test_stages_give_what_the_audit_of_series_says(manifest):
    scored = tables(manifest)
    for seed, gain in ((1, 0.6), (2, 0.3)):
        own = {PLAIN: table(manifest, gain=gain, seed=seed)}
        scored[f"run@{seed}"] = own
    options = {"order": ",".join(TASKS)}
    of_series = audited("series", scored, manifest, all_rows=True, **options)
    result = audited("doors", scored, manifest, **options)
    expected = figure(of_series, "run", "auc", "series")
    row = figure(result, "run", "auc", "all_stages")
    assert (row.n, row.clusters) == (expected.n, expected.clusters)
    assert row.value == pytest.approx(expected.value, abs=1e-9)
    # The series stands for its last stage.
    scored["run"] = scored.pop("run@2")
    alone = audited("doors", scored, manifest, **options)
    same = figure(alone, "run", "auc", "weights").value
    assert figure(result, "run", "auc", "weights").value == pytest.approx(same)


@pytest.mark.parametrize(
    ("columns", "estimable"),
    [
        (("nll",), {"logprobs", "logprobs_0.01", "logprobs_0.1", "weights"}),
        (("nll", "rank_lo", "ties"), {*DOOR_NAMES} - {"distribution", "all_stages"}),
        (("nll", "mean_logp", "sd_logp"), {"logprobs", "distribution"}),
    ],
)
def test_what_cannot_be_computed_has_its_reason_and_no_figure(
    columns, estimable, manifest
):
    """As of a server that gives log-probabilities alone."""
    scored = tables(manifest)
    scored["ours"] = {PLAIN: table(manifest, gain=0.2, seed=1, columns=columns)}
    result = audited("doors", scored, manifest)
    outcomes = says(result, "ours")
    for door in DOOR_NAMES:
        row = figure(result, "ours", "auc", door)
        if door in estimable:
            assert row.value is not None
        elif row.value is None:
            assert row.status == "not_estimable"
            assert row.note
            assert outcomes[door] == f"not estimable: {row.note}"
    missing = {d for d in DOOR_NAMES if figure(result, "ours", "auc", d).value is None}
    assert "all_stages" in missing
    assert not missing & estimable
    for door in AGAINST_BASE_DOORS:
        assert figure(result, "base", "auc", door).value is None


def test_a_checkpoint_without_scores_has_rows_with_reasons(manifest):
    result = audited("doors", {**tables(manifest, ours=0.2), "blank": {}}, manifest)
    rows = [row for row in result.results if row.checkpoint == "blank"]
    assert {row.variant for row in rows} == {*DOOR_NAMES}
    assert all(row.status == "not_estimable" and row.note for row in rows)


def test_letters_stand_for_all_doors():
    assert [*NAME_BY_LETTER.values()] == [*DOOR_NAMES]
    assert len(set(NAME_BY_LETTER)) == len(DOOR_NAMES)
    assert set(Doors.bracket_names.values()) == set(Doors.metrics[0].variants)


# --- errors ---------------------------------------------------------------------------


def null_evidence(seed: int, *, shift: float = 0.0) -> Evidence:
    """Scores of 60 members and 50 others that no training touched, alike by door.

    ``shift``: by how much members score higher before training, and so after it.
    """
    rng = np.random.default_rng(seed)
    n = 110
    member = np.arange(n) < 60
    units = pd.DataFrame(
        {
            "example": [f"r{i}" for i in range(n)],
            "task": "t",
            "cluster": [f"c{i}" for i in range(n)],
            "member": member,
            "dose": np.nan,
        }
    )
    text = rng.normal(size=n) + shift * member
    drift = rng.normal(size=n)
    texts = text + rng.normal(size=n)

    def scores(shared: np.ndarray) -> dict[str, np.ndarray]:
        return {door: shared + rng.normal(0, 0.3, n) for door in DOOR_NAMES}

    unknown = np.full(n, np.nan)
    of_base = scores(text) | dict.fromkeys(AGAINST_BASE_DOORS, unknown)
    of_ours = scores(text + drift) | {
        door: drift + rng.normal(0, 0.3, n) for door in AGAINST_BASE_DOORS
    }
    measured = [
        ("base", {**of_base, "texts": texts}),
        ("ours", {**of_ours, "texts": unknown}),
    ]
    return Evidence.of(units, measured, {"why_no_stages": {}})


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_no_door_is_shown_falsely_in_more_than_a_twentieth(shift):
    runs = 200
    shown = dict.fromkeys(DOOR_NAMES, 0)
    for seed in range(runs):
        found = conclude(
            "doors", null_evidence(seed, shift=shift), Context(replicates=20)
        )
        for door, outcome in says(found, "ours").items():
            shown[door] += outcome == "shown"
    for door, count in shown.items():
        # More often than in one of twenty, by more than chance allows.
        assert (
            stats.binomtest(count, runs, 0.05, alternative="greater").pvalue > 0.01
        ), door


def test_what_was_planted_in_made_up_scores_is_shown():
    """Else the test of errors would show nothing."""
    known = null_evidence(3)
    is_member = known.units["member"].to_numpy()
    values = {name: matrix.copy() for name, matrix in known.values.items()}
    for door in DOOR_NAMES:
        values[door][1] += 1.5 * is_member
    leaking = Evidence(known.units, known.checkpoints, values, known.facts)
    outcomes = says(conclude("doors", leaking, Context(replicates=20)), "ours")
    assert set(outcomes.values()) == {"shown"}


def test_evidence_holds_no_more_than_is_said_of_it(manifest):
    found = evidence("doors", tables(manifest, ours=0.3), manifest)
    assert set(found.values) == {*DOOR_NAMES, "texts"}
    assert set(found.facts) == {"why_no_stages"}
