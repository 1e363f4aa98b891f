"""One checker over the numbers of every audit, those that are not written yet too.

Three checkpoints are scored over one manifest without a model: ``base`` as the
reference, ``clean`` with noise, ``leaky`` with noise and knowing what it was trained on
by heart. How that is planted follows from the pass (:data:`planted.PLANTED`),
never from the audit, and which way a figure must move from its
:class:`~spark_audit.audits.base.Metric`.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
from audited import chosen, plan
from plain_loops import LOOPS
from planted import PLANTED, World

from spark_audit.audits import about, all_audits
from spark_audit.names import series_of
from spark_audit.results import AuditResult, Contrast, Row
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import COLUMN_TYPES, Pass, TokenTable

Key: TypeAlias = tuple[str, ...]
AUDITED = [name for name, audit in all_audits().items() if not audit.of_files]
CHECKPOINTS = ("base", "clean", "leaky")
QUICK = {"placebo_draws": 2, "rematched": False, "blind_permutations": 20}
"""What audits draw at random and nothing here rests on, for those that ask."""
EVERY = pytest.mark.parametrize("audit", AUDITED)


def options_of(audit: str, world: World, names: Iterable[str] = ()) -> dict[str, Any]:
    """What an audit must be told, as nobody can guess it."""
    tasks = dict.fromkeys(example.task for example in world.manifest.examples)
    # It guesses no order; the others take that in which tasks first appear.
    if audit == "series":
        return {"order": ",".join(tasks)}
    # What it knows by heart are identifiers, of a few tokens each.
    if audit == "passages":
        return {"passages": 3}
    # All that ``leaky`` knows should be forgotten: ``clean`` is the one after that.
    if audit == "erasure":
        before = next((name for name in names if name in ("leaky", "alpha")), "leaky")
        forget = tuple(sorted(f"task={task}" for task in tasks))
        return {"forget": forget, "before": before}
    return {}


def planned(audit: str, world: World) -> Any:
    return plan(audit, world.manifest, **options_of(audit, world))


def tables_of(world: World, audit: str, *, shuffled: bool = False) -> dict[str, Any]:
    """Checkpoint -> pass -> table, of all that the audit's plan asks for."""
    wanted = planned(audit, world)
    assert wanted, f"{audit} finds nothing to score here: give this world some of it"
    names = [*CHECKPOINTS]
    if about(audit).of_series:
        names[1:] = [f"{name}@{stage}" for name in names[1:] for stage in (1, 2)]
    return {
        name: {
            scoring_pass: table(world, name, scoring_pass, keys, shuffled=shuffled)
            for scoring_pass, keys in wanted.items()
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
            for column in COLUMN_TYPES[wanted.kind]
        },
    )


@pytest.fixture(scope="module")
def world(make_case) -> World:
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
            # Of other shares among the trained and the never trained.
            "type": ("NAME", "EMAIL")[number % 10 in (0, 1, 2, 4)],
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


def audited(
    audit: str,
    world: World,
    tables: Mapping[str, Any],
    baseline: str | Mapping[str, str] = "clean",
    **more: Any,
) -> AuditResult:
    options = options_of(audit, world, tables)
    (chosen_audit,) = chosen(audit, **QUICK, **options)
    return chosen_audit(tables, world.manifest, baseline=baseline, **more)


Run: TypeAlias = Callable[[str], AuditResult]


@pytest.fixture(scope="module")
def usual(world) -> Run:
    """What an audit says of the world as it is."""
    results: dict[str, AuditResult] = {}

    def run(audit: str) -> AuditResult:
        if audit not in results:
            results[audit] = audited(audit, world, tables_of(world, audit))
        return results[audit]

    return run


def figures(result: AuditResult, names: Mapping[str, str]) -> dict[Key, Row]:
    """Every figure by what it is of, checkpoints by their usual names."""
    rows: dict[Key, Row] = {}
    for row in (*result.results, *result.contrasts):
        against = row.baseline if isinstance(row, Contrast) else ""
        names_of_both = (
            names.get(row.checkpoint, row.checkpoint),
            names.get(against, against),
        )
        key = (*names_of_both, row.metric, row.variant, row.group)
        assert key not in rows, f"{key} is told twice"
        rows[key] = row
    return rows


def assert_same(result: AuditResult, other_result: AuditResult, **names: str) -> None:
    """Every number, status and claim; not the order in which they stand."""
    rows = figures(result, {})
    other_rows = figures(other_result, names)
    assert rows.keys() == other_rows.keys()
    for key, row in rows.items():
        for field, value in row:
            if field not in ("checkpoint", "baseline", "note"):
                other_value = getattr(other_rows[key], field)
                if isinstance(value, float):
                    value = pytest.approx(value, rel=1e-6, abs=1e-9)
                assert other_value == value, (*key, field)

    def claims(result: AuditResult, names: Mapping[str, str]) -> list[Key]:
        return sorted(
            (
                names.get(f.checkpoint, f.checkpoint),
                f.claim,
                f.metric,
                f.variant,
                f.group,
            )
            for f in result.findings
        )

    assert claims(result, {}) == claims(other_result, names)


ELSEWHERE = {
    "matched": {
        *("memory", "memory trend", "pii_change trained", "pii_change never-trained"),
        *("kind", "specific", "rtm_bias", "rtm_bias change"),
    },
    "rank": {"top1_memory pii_all"},
    "extract": {"near_rate"},
}
"""Pooled figures that the audits' own tests recompute; of `mia` all other scores, of
`stages` all, which are those of `matched` by task."""


@pytest.mark.parametrize("audit", LOOPS)
@pytest.mark.parametrize("name", ["clean", "leaky"])
def test_figures_are_those_of_plain_loops(audit, name, world, usual):
    tables = tables_of(world, audit)
    scored: Any = tables.get(name) or [tables[f"{name}@{stage}"] for stage in (1, 2)]
    expected = LOOPS[audit](world, scored, tables["base"])
    rows = {
        (row.metric, row.variant): row.value
        for row in usual(audit).results
        if (row.checkpoint, row.group, row.interval_over) == (name, "pooled", "sources")
        and row.value is not None
    }
    for key, value in expected.items():
        assert rows[key] == pytest.approx(value, rel=2e-6, abs=1e-7), key
    if audit != "mia":
        not_recomputed = {
            " ".join(key).rstrip() for key in rows.keys() - expected.keys()
        }
        assert not_recomputed <= ELSEWHERE.get(audit, set())


@EVERY
def test_a_planted_leak_is_seen_with_the_right_sign(audit, usual):
    """Of every metric that what was learned moves: beyond ``clean``, and that way."""
    rows = {
        (row.checkpoint, row.metric, row.variant, getattr(row, "baseline", "")): row
        for row in (*usual(audit).results, *usual(audit).contrasts)
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
            way = int(row.low > before) - int(row.high < before)
            moved.setdefault(metric, set()).add(way)
    signs = {
        metric_facts.name: metric_facts.learned for metric_facts in about(audit).metrics
    }
    assert any({-1, 1} & ways for ways in moved.values()), "nothing is seen of the leak"
    for metric, ways in moved.items():
        if sign := signs[metric]:
            assert sign in ways, f"{metric} does not see the leak"
            assert -sign not in ways, f"{metric} moves the wrong way"


@EVERY
def test_nothing_is_detected_where_nothing_leaks(audit, usual):
    for finding in usual(audit).findings:
        if finding.checkpoint != "leaky":
            assert not finding.detected, finding.sentence


def test_a_leak_is_called_by_its_name(usual):
    """Whichever audit does: texts, memory and membership are claimed of the leak."""
    claims = {finding.claim for audit in AUDITED for finding in usual(audit).findings}
    assert {"verbatim", "memory", "membership"} <= claims


@EVERY
def test_the_order_of_rows_changes_nothing(audit, world, usual):
    rng = np.random.default_rng(1)
    content = dict(world.content)
    for name in ("pairs", "unmatched", "canaries", "twins", "examples"):
        content[name] = [content[name][i] for i in rng.permutation(len(content[name]))]
    # Without --order, tasks were learned in the order in which they first appear.
    first = {
        example["task"]: example["id"]
        for example in reversed(world.content["examples"])
    }
    places = {key: position for position, key in enumerate(reversed(first.values()))}
    content["examples"].sort(key=lambda one: places.get(one["id"], math.inf))
    shuffled_world = World(content, world.reference)
    assert_same(
        usual(audit),
        audited(audit, shuffled_world, tables_of(shuffled_world, audit, shuffled=True)),
    )


@EVERY
def test_names_and_order_of_checkpoints_change_names_and_order_alone(
    audit, world, usual
):
    new = {"clean": "zulu", "leaky": "alpha"}
    tables = {}
    for name, scored in tables_of(world, audit).items():
        series = series_of(name)
        tables[name.replace(series, new.get(series, series))] = scored
    names = sorted(tables, key=lambda name: (series_of(name) != "alpha", name))
    result = audited(audit, world, {name: tables[name] for name in names}, "zulu")
    assert_same(usual(audit), result, **{v: k for k, v in new.items()})
    assert "leaky" not in f"{result.verdict} {result.guards} {result.results}"


@EVERY
def test_further_checkpoints_change_nothing_of_the_others(audit, world, usual):
    """One like ``clean``, and one that was not scored, which has reasons only."""
    tables = tables_of(world, audit)
    for name in [name for name in tables if series_of(name) == "clean"]:
        tables[name.replace("clean", "other")] = tables[name]
        tables[name.replace("clean", "blank")] = {}
    result = audited(audit, world, tables)
    rows_before = figures(usual(audit), {})
    rows_after = figures(result, {})
    blank = [row for key, row in rows_after.items() if key[0] == "blank"]
    assert {row.metric for row in blank} <= {row.metric for row in rows_before.values()}
    assert blank or not any(metric.missing for metric in about(audit).metrics)
    assert all(row.status == "not_estimable" and row.note for row in blank)
    # What is corrected for the number of tests may follow from that number.
    for key, row in rows_before.items():
        for field in ("value", "low", "high", "n", "clusters", "no_effect"):
            if (value := getattr(row, field)) is not None:
                value = pytest.approx(value, rel=1e-9, abs=1e-12)
            assert getattr(rows_after[key], field) == value, (*key, field)


@EVERY
def test_the_paper_preset_decides_by_percentiles(audit, world, usual):
    """Where there are any."""
    usual_rows = figures(usual(audit), {})
    paper = audited(audit, world, tables_of(world, audit), preset="paper")
    became = {
        row.interval_method
        for key, row in figures(paper, {}).items()
        if key in usual_rows and row.interval_method != usual_rows[key].interval_method
    }
    # Memory by stage has no bootstrap, nor has what remains of rows.
    assert ("percentile" in became) == (audit not in ("stages", "erasure"))


@EVERY
def test_what_is_concluded_from_a_file_is_what_was_concluded(
    audit, world, usual, tmp_path
):
    """Evidence is all that a conclusion needs."""
    result = usual(audit)
    result.evidence.write(tmp_path / "evidence.parquet")
    evidence_read = Evidence.read(tmp_path / "evidence.parquet")
    pd.testing.assert_frame_equal(evidence_read.frame(), result.evidence.frame())
    assert repr(evidence_read.facts) == repr(dict(result.evidence.facts))


@EVERY
def test_a_row_that_stands_twice_is_no_second_cluster(audit, world, usual):
    """Copies under other ids, of a train and of a test row, stay in their cluster."""
    content, reference = deepcopy(dict(world.content)), dict(world.reference)
    for split, side in (("train", "members"), ("test", "non_members")):
        key = next(e["id"] for e in content["examples"] if e["split"] == split)
        for name, field in (("examples", "id"), ("pairs", "example")):
            records = [record for record in content[name] if record[field] == key]
            content[name] += [{**record, field: f"{key}'"} for record in records]
        reference[f"{key}'"] = reference[key]
        content["membership"][side].append(f"{key}'")
    world_with_copies = World(content, reference)
    rows_before = figures(usual(audit), {})
    rows_after = figures(
        audited(audit, world_with_copies, tables_of(world_with_copies, audit)), {}
    )

    def doseless(rows: Any) -> set[Any]:
        # What stands in a row more has another dose.
        return {k for k in rows if "trend" not in k and not k[-1].startswith("dose:")}

    assert doseless(rows_before) == doseless(rows_after)
    for key, row in rows_before.items():
        if key not in doseless(rows_before):
            continue
        assert rows_after[key].clusters == row.clusters, key
    passes = planned(audit, world_with_copies).values()
    if any(key.endswith("'") for keys in passes for key in keys):
        assert any(
            rows_after[key].n > rows_before[key].n for key in doseless(rows_before)
        )


WHY_NOTHING = {
    **dict.fromkeys(("matched", "rank", "extract", "noise"), "no identifier"),
    **dict.fromkeys(("mia", "series"), "no members or no non-members"),
    "nll": "no scored token",
    "canary": "no canary",
    "twins": "built without twins",
    "utility": "fomc has no test row without a canary",
}


@EVERY
def test_where_there_is_nothing_to_score_the_reason_is_told(audit, world):
    content = deepcopy(dict(world.content))
    content["examples"] = [e for e in content["examples"] if e["split"] == "train"]
    for example in content["examples"]:
        example |= {"spans": [], "low": []}
    content |= {"membership": {"members": [], "non_members": []}}
    content |= dict.fromkeys(("pairs", "unmatched", "canaries", "twins"), [])
    empty_world = World(content, world.reference)
    empty = empty_world.manifest
    assert planned(audit, empty_world) == {}
    result = audited(audit, empty_world, {"x": {}})
    audit_class = about(audit)
    assert {row.metric for row in result.results} >= {
        metric.name for metric in audit_class.metrics if metric.missing
    }
    # Without a series or pairs there is nothing that a row could be of.
    assert result.results or audit_class.of_series or audit == "matched"
    reason = audit_class().why_nothing(empty)
    assert WHY_NOTHING.get(audit, "") in reason
    for row in result.results:
        assert (row.status, row.note) == ("not_estimable", reason)
    assert [finding.claim for finding in result.findings] == ["not_tested"] * bool(
        reason
    )
    assert all(reason in line for line in result.verdict)


@EVERY
def test_no_text_stands_in_evidence_and_tables_are_json(audit, world, usual):
    result, manifest = usual(audit), world.manifest
    json.dumps(result.tables, allow_nan=False)
    frame = result.evidence.frame()
    words = set(frame.select_dtypes(["object", "string"]).astype(str).to_numpy().flat)
    ranked = (*manifest.canaries, *manifest.twins)
    assert not words & {
        string for ranked_item in ranked for string in ranked_item.candidates
    }
    # Identifiers are of characters that stand nowhere else, other text is of x.
    assert all(word.isascii() and "xx" not in word for word in words)
