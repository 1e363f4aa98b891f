"""One checker over the numbers of every audit, those that are not written yet too.

Three checkpoints are scored over one manifest without a model: ``base`` as the
reference, ``clean`` with noise, ``leaky`` with noise and knowing what it was trained on
by heart. How that is planted follows from the pass (:data:`planted.PLANTED`),
never from the audit, and which way a figure must move from its :class:`Metric`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
from planted import PLANTED, World

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import taken
from spark_audit.audits.stored_evidence import StoredEvidence
from spark_audit.names import series_of
from spark_audit.results import AuditResult, Contrast, Row
from spark_audit.scoring.table import LAYOUTS, Pass, TokenTable

Key: TypeAlias = tuple[str, ...]

AUDITED = AUDITS.names()
CHECKPOINTS = ("base", "clean", "leaky")
QUICK = {"placebo_draws": 5, "blind_permutations": 20, "replicates": 200}
"""What audits draw at random and nothing here rests on, for those that ask."""
EVERY = pytest.mark.parametrize("audit", AUDITED)

# ------------------------------------------------------------------ what is scored


def tables_of(world: World, audit: str, *, shuffled: bool = False) -> dict[str, Any]:
    """Checkpoint -> pass -> table, of all that the audit's plan asks for."""
    plan = AUDITS.get(audit).part("plan")
    wanted = plan(world.manifest)
    assert wanted, f"{audit} finds nothing to score here: give this world some of it"
    names = [*CHECKPOINTS]
    if AUDITS.of_stages(audit):
        names[1:] = [f"{name}@{stage}" for name in names[1:] for stage in (1, 2)]
    return {
        name: {
            each: table(world, name, each, keys, shuffled=shuffled)
            for each, keys in wanted.items()
        }
        for name in names
    }


def table(
    world: World, name: str, wanted: Pass, keys: list[str], *, shuffled: bool
) -> TokenTable:
    scored = [(key, *PLANTED[wanted.kind](world, name, wanted, key)) for key in keys]
    if not shuffled:
        return TokenTable.from_items(scored, kind=wanted.kind)
    # As a table of another writer could be: in no order of its own.
    np.random.default_rng(0).shuffle(scored)
    counts = [len(positions) for _, positions, _ in scored]
    return TokenTable(
        tuple(key for key, *_ in scored),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([positions for _, positions, _ in scored]),
        {
            column: np.concatenate([columns[column] for *_, columns in scored])
            for column in LAYOUTS[wanted.kind]
        },
    )


@pytest.fixture(scope="module")
def world(make_case: Callable[..., Any]) -> World:
    """Two tasks with 30 train and 30 test rows each, and 20 canaries of either kind."""
    case = make_case(sources=60, tests=60, gap=0.5)
    content = case.manifest.model_dump(mode="json")
    examples = content["examples"]
    rng = np.random.default_rng(0)
    for example in examples:
        example["response"] = (" Good", " Bad")[int(rng.integers(2))]
        example["response_token"] = 50
    content["membership"] = {
        side: sorted(e["id"] for e in examples if e["split"] == split)
        for side, split in (("members", "train"), ("non_members", "test"))
    }
    content["canaries"] = [
        {
            "canary_id": f"c{number:03d}",
            "part": part,
            "contexts": [
                {"example": examples[number]["id"], "char_start": 0, "char_end": 9}
            ],
            "candidates": [f"s{j}" for j in range(64)],
            "true_index": int(rng.integers(64)),
            "reason": None,
            "n_tokens": 6,
            "format": "login",
            "dose": 0 if number % 2 else 6,
            "held_out": bool(number % 2),
        }
        for number in range(40)
        for part in ("full", "ssn")
    ]
    content["twins"] = [
        {
            "id": str(number),
            "type": ("NAME", "EMAIL")[number // 2 % 2],
            "contexts": [
                {
                    "example": example["id"],
                    "char_start": example["spans"][0]["start"],
                    "char_end": example["spans"][0]["end"],
                }
                for example in examples[number : number + 1]
            ],
            "candidates": [f"s{j}" for j in range(32)],
            "true_index": int(rng.integers(32)),
            "dose": (1, 0, 2, 0, 4, 0)[number % 6],
        }
        for number in range(60)
    ]
    return World(content, case.reference)


# ------------------------------------------------------------- what is concluded


@pytest.fixture(scope="module", autouse=True)
def _few_replicates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_audit.audits.contract.replicates", lambda _: 200)
        yield


def audited(
    audit: str,
    world: World,
    tables: Mapping[str, Any],
    baseline: str | Mapping[str, str] = "clean",
    **more: Any,
) -> AuditResult:
    run = AUDITS.get(audit).run
    options = {**taken(run, QUICK), **more}
    return run(tables, world.manifest, baseline=baseline, **options)


Run: TypeAlias = Callable[[str], AuditResult]


@pytest.fixture(scope="module")
def usual(world: World) -> Run:
    """What an audit says of the world as it is."""
    known: dict[str, AuditResult] = {}

    def run(audit: str) -> AuditResult:
        if audit not in known:
            known[audit] = audited(audit, world, tables_of(world, audit))
        return known[audit]

    return run


def figures(result: AuditResult, names: Mapping[str, str]) -> dict[Key, Row]:
    """Every figure by what it is of, checkpoints by their usual names."""
    found: dict[Key, Row] = {}
    for row in (*result.rows, *result.contrasts):
        against = row.baseline if isinstance(row, Contrast) else ""
        of = (names.get(row.checkpoint, row.checkpoint), names.get(against, against))
        key = (*of, row.metric, row.of, row.group)
        assert key not in found, f"{key} is told twice"
        found[key] = row
    return found


def assert_same(one: AuditResult, other: AuditResult, **names: str) -> None:
    """Every number, status and claim; not the order in which they stand."""
    ours, theirs = figures(one, {}), figures(other, names)
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        for field, value in row:
            if field not in ("checkpoint", "baseline", "note"):
                found = getattr(theirs[key], field)
                if isinstance(value, float):
                    value = pytest.approx(value, rel=1e-6, abs=1e-9)
                assert found == value, (*key, field)

    def claims(result: AuditResult, names: Mapping[str, str]) -> list[Key]:
        return sorted(
            (names.get(f.checkpoint, f.checkpoint), f.claim, f.metric, f.of, f.group)
            for f in result.findings
        )

    assert claims(one, {}) == claims(other, names)


@EVERY
def test_a_planted_leak_is_seen_with_the_right_sign(audit: str, usual: Run) -> None:
    """Of every metric that what was learned moves: beyond ``clean``, and that way."""
    rows = {
        (row.checkpoint, row.metric, row.of, getattr(row, "baseline", "")): row
        for row in (*usual(audit).rows, *usual(audit).contrasts)
        if row.group == "pooled" and row.status == "ok"
    }
    moved: dict[str, set[int]] = {}
    for (name, metric, of, baseline), row in rows.items():
        if name != "leaky" or baseline not in ("", "clean") or row.low is None:
            continue
        before = 0.0 if baseline else None
        if (clean := rows.get(("clean", metric, of, ""))) and not baseline:
            before = clean.value
        if before is not None:
            assert row.high is not None
            way = int(row.low > before) - int(row.high < before)
            moved.setdefault(metric, set()).add(way)
    signs = {one.name: one.learned for one in AUDITS.metrics(audit)}
    assert any({-1, 1} & ways for ways in moved.values()), "nothing is seen of the leak"
    for metric, ways in moved.items():
        if sign := signs[metric]:
            assert sign in ways, f"{metric} does not see the leak"
            assert -sign not in ways, f"{metric} moves the wrong way"


@EVERY
def test_nothing_is_detected_where_nothing_leaks(audit: str, usual: Run) -> None:
    for finding in usual(audit).findings:
        if finding.checkpoint != "leaky":
            assert not finding.detected, finding.sentence


def test_a_leak_is_called_by_its_name(usual: Run) -> None:
    """Whichever audit does: texts, memory and membership are claimed of the leak."""
    claims = {one.claim for audit in AUDITED for one in usual(audit).findings}
    assert {"verbatim", "memory", "membership"} <= claims


@EVERY
def test_the_order_of_rows_changes_nothing(
    audit: str, world: World, usual: Run
) -> None:
    rng = np.random.default_rng(1)
    content = dict(world.content)
    for name in ("pairs", "unmatched", "canaries", "twins", "examples"):
        content[name] = [content[name][i] for i in rng.permutation(len(content[name]))]
    # Without --order, tasks were learned in the order in which they first appear.
    first = {one["task"]: one["id"] for one in reversed(world.content["examples"])}
    places = {key: place for place, key in enumerate(reversed(first.values()))}
    content["examples"].sort(key=lambda one: places.get(one["id"], math.inf))
    other = World(content, world.reference)
    assert_same(
        usual(audit), audited(audit, other, tables_of(other, audit, shuffled=True))
    )


@EVERY
def test_names_and_order_of_checkpoints_change_names_and_order_alone(
    audit: str, world: World, usual: Run
) -> None:
    new = {"clean": "zulu", "leaky": "alpha"}
    tables = {}
    for name, scored in tables_of(world, audit).items():
        series = series_of(name)
        tables[name.replace(series, new.get(series, series))] = scored
    names = sorted(tables, key=lambda name: (series_of(name) != "alpha", name))
    found = audited(audit, world, {name: tables[name] for name in names}, "zulu")
    assert_same(usual(audit), found, **{v: k for k, v in new.items()})
    assert "leaky" not in f"{found.verdict} {found.guards} {found.rows}"


# With ties in some checkpoints and none in the others both are seen at once.
@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "audit", [a for a in AUDITED if "frames" in AUDITS.get(a).parts]
)
def test_what_is_concluded_in_turns_is_what_is_concluded_at_once(
    audit: str,
    tied: bool,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicates, ties and several baselines; tables and sentences too."""
    own = tables_of(world, audit)
    whose = {"clean": "clean", "alone": "clean"}
    whose |= {"method[1]": "leaky", "method[2]": "clean"}
    # A series is of several checkpoints.
    tables = {n: one for n, one in own.items() if n == "base"} | {
        name + n.removeprefix(old): one
        for name, old in whose.items()
        for n, one in own.items()
        if series_of(n) == old
    }
    if tied:
        for name in (n for n in tables if series_of(n) in ("clean", "method[2]")):
            tables[name] = {
                each: TokenTable(
                    one.ids,
                    one.offsets,
                    one.position,
                    {k: v + (k == "ties") for k, v in one.columns.items()},
                )
                for each, one in tables[name].items()
            }
    baselines = {"method[1]": "clean", "method[2]": "clean", "alone": "method[1]"}
    whole = audited(audit, world, tables, baselines)
    monkeypatch.setattr("spark_audit.audits.stored_evidence.TOGETHER", 0)
    file = {"evidence_file": lambda: tmp_path / "evidence.parquet"}
    told = audited(audit, world, tables, baselines, **file)
    assert isinstance(told.evidence, StoredEvidence)
    pd.testing.assert_frame_equal(told.evidence.of(tables), whole.evidence)
    assert_same(whole, told)

    def said(result: AuditResult) -> list[str]:
        lists = (result.findings, result.guards)
        return sorted(f"{one.model_dump()}" for each in lists for one in each)

    assert said(whole) == said(told)
    assert whole.scope == told.scope
    assert whole.settings == told.settings
    # Records of a checkpoint stand together; in what order else is all the same.
    assert whole.tables.keys() == told.tables.keys()
    for name, records in whole.tables.items():
        found = sorted(map(repr, told.tables[name]))
        assert found == sorted(map(repr, records)), name


@EVERY
def test_a_row_that_stands_twice_is_no_second_cluster(
    audit: str, world: World, usual: Run
) -> None:
    """Copies under other ids, of a train and of a test row, stay in their cluster."""
    content, reference = deepcopy(dict(world.content)), dict(world.reference)
    for split, side in (("train", "members"), ("test", "non_members")):
        key = next(e["id"] for e in content["examples"] if e["split"] == split)
        for name, field in (("examples", "id"), ("pairs", "example")):
            own = [one for one in content[name] if one[field] == key]
            content[name] += [{**one, field: f"{key}'"} for one in own]
        reference[f"{key}'"] = reference[key]
        content["membership"][side].append(f"{key}'")
    other = World(content, reference)
    ours = figures(usual(audit), {})
    theirs = figures(audited(audit, other, tables_of(other, audit)), {})

    def doseless(found: Any) -> set[Any]:
        # What stands in a row more has another dose.
        return {k for k in found if "trend" not in k and not k[-1].startswith("dose:")}

    assert doseless(ours) == doseless(theirs)
    for key, row in ours.items():
        if key not in doseless(ours):
            continue
        assert theirs[key].clusters == row.clusters, key
    passes = AUDITS.get(audit).part("plan")(other.manifest).values()
    if any(key.endswith("'") for keys in passes for key in keys):
        assert any(theirs[key].n > ours[key].n for key in doseless(ours))
