"""Figures by group of rows: the field, the groups that are shown, and the worst one."""

import json
from pathlib import Path
from typing import Any

import groups as scenes
import numpy as np
import pandas as pd
import pytest
from audited import conclude, figure, the_one

from spark_audit.audits import Extraction, Matched, Membership, Rank
from spark_audit.audits.claims import at_level, corrected
from spark_audit.audits.groups.column import group_column, groups_of_units
from spark_audit.audits.groups.field import (
    MAX_GROUPS,
    NOT_STATED,
    OTHER_GROUPS,
    GroupField,
    row_groups,
)
from spark_audit.audits.groups.merging import shown_groups
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import SEVERITY

LEAKS = {scene.audit: scene.effect for scene in scenes.SCENES}

# --- the field ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest(make_case) -> Any:
    return make_case(sources=6, tests=6).manifest


def written(folder: Path, lines: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        pd.DataFrame(lines).to_csv(path, index=False)
    return str(path)


def names_by_row(by: str, manifest: Any) -> Any:
    return row_groups(GroupField.of_option(by), manifest)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_row_without_a_value_or_a_line_is_in_a_group_of_its_own(
    manifest, tmp_path, name
):
    ids = [example.id for example in manifest.examples]
    lines = [{"id": key, "kind": ["a", "b"][i % 2]} for i, key in enumerate(ids[:-1])]
    lines[0]["kind"] = ""
    # The file may have more rows than the manifest.
    lines.append({"id": "elsewhere", "kind": "c"})
    groups = names_by_row(f"kind={written(tmp_path, lines, name)}", manifest)
    expected = {line["id"]: line["kind"] or NOT_STATED for line in lines[:-1]}
    assert groups.name_by_row == {**expected, ids[-1]: NOT_STATED}


def test_numbers_and_codes_are_groups_as_they_are_written(manifest, tmp_path):
    ids = [example.id for example in manifest.examples]
    codes = ["007", "NA", "3"]
    lines = [{"id": key, "code": codes[i % 3]} for i, key in enumerate(ids)]
    groups = names_by_row(f"code={written(tmp_path, lines, 'rows.csv')}", manifest)
    assert {*groups.name_by_row.values()} == {"007", "NA", "3"}
    whole = [{"id": key, "ward": i % 2 or None} for i, key in enumerate(ids)]
    groups = names_by_row(f"ward={written(tmp_path, whole)}", manifest)
    assert {*groups.name_by_row.values()} == {"1", NOT_STATED}


def test_what_looks_like_a_person_has_a_number_and_many_such_are_refused(
    manifest, tmp_path
):
    ids = [example.id for example in manifest.examples]
    values = ["cardiology", "surgery", "John Smith", "other groups"]
    lines = [{"id": key, "ward": values[i % 4]} for i, key in enumerate(ids)]
    groups = names_by_row(f"ward={written(tmp_path, lines)}", manifest)
    names = {*groups.name_by_row.values()}
    assert {"cardiology", "surgery"} < names
    assert len(names) == 4
    assert not names & {"John Smith", OTHER_GROUPS}
    assert groups.n_numbered == 2

    people = ["John Smith", "anna@example.org", "surgery"]
    lines = [{"id": key, "ward": people[i % 3]} for i, key in enumerate(ids)]
    with pytest.raises(InputError) as error:
        names_by_row(f"ward={written(tmp_path, lines)}", manifest)
    assert "Smith" not in str(error.value)


def refused(by: str, manifest: Any) -> str:
    with pytest.raises(InputError) as error:
        names_by_row(by, manifest)
    return str(error.value)


def test_a_field_that_groups_nothing_is_refused_with_what_there_is(manifest, tmp_path):
    ids = [example.id for example in manifest.examples]
    assert "task" in refused("taks", manifest), "the nearest name"
    assert "id" in refused("id", manifest)
    refused("=rows.csv", manifest)
    refused("ward=", manifest)

    lines = [{"id": key, "ward": "a", "day": "b"} for key in ids]
    path = written(tmp_path, lines)
    refused(f"ward={path}", manifest)
    message = refused(f"wart={path}", manifest)
    assert {"ward,", "day"} <= {*message.split()}, "the columns that there are"
    refused(f"ward={tmp_path / 'missing.csv'}", manifest)
    refused(f"ward={tmp_path / 'rows.pickle'}", manifest)

    others = [{"id": f"x{i}", "ward": str(i % 2)} for i in range(9)]
    refused(f"ward={written(tmp_path, others)}", manifest)
    twice = [{"id": ids[0], "ward": "a"}, {"id": ids[0], "ward": "b"}]
    refused(f"ward={written(tmp_path, twice)}", manifest)
    nested = [{"id": key, "ward": ["a"]} for key in ids]
    refused(f"ward={written(tmp_path, nested)}", manifest)
    (tmp_path / "broken.jsonl").write_text("{")
    refused(f"ward={tmp_path / 'broken.jsonl'}", manifest)


def test_as_many_values_as_rows_are_no_groups(make_case, tmp_path):
    case = make_case(sources=MAX_GROUPS + 1)
    ids = [example.id for example in case.manifest.examples]
    lines = [{"id": key, "name": f"v{i}"} for i, key in enumerate(ids)]
    message = refused(f"name={written(tmp_path, lines)}", case.manifest)
    assert str(len(ids)) in message


def test_only_three_audits_have_the_option():
    for audit in (Matched, Membership, Extraction):
        assert audit(by="task").by == "task"
        with pytest.raises(InputError):
            audit(by="id")
    with pytest.raises(TypeError):
        Rank(by="task")  # type: ignore[call-arg]


@pytest.mark.parametrize("word", ["--by", "--by=task"])
def test_an_audit_without_groups_names_those_that_have_them(word, capsys):
    assert command_line(["rank", "--ckpt", "runs/x", word, "task"]) == 2
    message = capsys.readouterr().err
    for name in ("matched", "mia", "extract", "all"):
        assert name in message


def test_evidence_has_the_groups_in_a_column_of_the_field(manifest, tmp_path):
    ids = [example.id for example in manifest.examples]
    lines = [{"id": key, "ward": "ab"[i % 2]} for i, key in enumerate(ids)]
    by = f"ward={written(tmp_path, lines)}"
    column = group_column(by, manifest, [*ids, "no row"])
    assert column is not None
    units = pd.DataFrame({column.name: column.values})
    evidence = Evidence.of(units, [("a", {"x": np.zeros(len(units))})], column.facts)
    evidence.write(tmp_path / "other.parquet")
    groups = groups_of_units(Evidence.read(tmp_path / "other.parquet"))
    assert groups is not None
    assert groups.field == "ward"
    assert [*groups.names] == [*(line["ward"] for line in lines), ""]
    assert group_column(None, manifest, ids) is None


# --- which groups are shown -----------------------------------------------------------


def shown(**sizes: tuple[int, int]) -> Any:
    """Groups of so many trained and held-out rows, each a cluster of its own."""
    names = []
    is_trained = []
    for name, (n_trained, n_held_out) in sizes.items():
        names += [name] * (n_trained + n_held_out)
        is_trained += [True] * n_trained + [False] * n_held_out
    clusters = np.arange(len(names)).astype(str)
    return shown_groups(
        np.array(names), clusters, np.array(is_trained), lambda mask: mask
    )


def test_small_groups_are_one_with_the_smallest_of_the_others():
    assert shown(a=(9, 9), b=(8, 8)).masks.keys() == {"a", "b"}
    merged = shown(a=(9, 9), b=(8, 8), c=(7, 7), d=(2, 9))
    assert merged.masks.keys() == {"a", "b", OTHER_GROUPS}
    assert merged.n_merged == 2
    # Too few on the other side alone are too few, and nothing is left out.
    other = shown(a=(9, 9), b=(8, 8), c=(7, 7), d=(9, 2))
    assert other.masks.keys() == {"a", "b", OTHER_GROUPS}
    assert sum(mask.sum() for mask in other.masks.values()) == 59
    # With two groups, one small, there is nothing to compare.
    assert not shown(a=(9, 9), b=(2, 2)).masks
    assert not shown(a=(2, 2), b=(2, 2)).masks


# --- the worst group ------------------------------------------------------------------


def finding_of(audit: str, effect: float, seed: int = 0, **changes: Any) -> Any:
    evidence_of, finding_of_audit = scenes.AUDITS[audit]
    sizes = changes.get("sizes", scenes.EQUAL)
    evidence = evidence_of(sizes, effect, np.random.default_rng(seed))
    return finding_of_audit(evidence)


@pytest.mark.parametrize("audit", scenes.AUDITS)
def test_one_leaking_group_of_eight_is_found_and_named(audit):
    found = [finding_of(audit, LEAKS[audit], seed) for seed in range(4)]
    assert sum(finding.group_value == scenes.LEAKING for finding in found) >= 3
    assert sum(SEVERITY[finding.claim] >= 4 for finding in found) >= 3
    for finding in found:
        assert finding.sentence
        withdrawn = finding.model_copy(update={"claim": "nothing_shown"})
        assert withdrawn.sentence


@pytest.mark.parametrize("audit", scenes.AUDITS)
def test_without_a_leak_no_group_is_claimed_and_each_says_what_could_be_seen(audit):
    findings = [finding_of(audit, 0.0, seed) for seed in range(3)]
    assert [finding.claim for finding in findings].count("nothing_shown") >= 2
    (concluded,) = corrected(findings[:1])
    others = {test.group for test in concluded.power if test.group}
    assert len(others) == scenes.N_GROUPS - 1
    assert 0 < concluded.least_of_groups <= concluded.most_of_groups
    assert concluded.sentence


def test_p_is_corrected_for_the_number_of_groups():
    one_group_more = [*scenes.EQUAL, 60]
    of_eight = finding_of("mia", 1.5)
    of_nine = finding_of("mia", 1.5, sizes=one_group_more)
    for finding, n_groups in ((of_eight, 8), (of_nine, 9)):
        assert {test.n_tests for test in finding.power} == {n_groups}
        assert {bound.n_tests for bound in finding.bounds} == {n_groups}
    assert of_eight.facts["groups"] == 8


def test_where_all_groups_leak_alike_none_stands_out():
    assert "groups.stands_out" in finding_of("matched", 0.35).further

    everywhere = [f"g{i}" for i in range(scenes.N_GROUPS)]
    rng = np.random.default_rng(0)
    evidence = scenes.identifiers(scenes.EQUAL, 0.35, rng, leaking=everywhere)
    finding = scenes.memory_finding(evidence)
    assert finding.claim == "memory"
    assert "groups.not_apart" in finding.further
    assert "groups.others" in finding.further
    assert len(finding.facts["others"]) >= 5


def test_rows_have_the_smallest_effect_of_their_group_at_the_level_of_the_claim():
    evidence = scenes.answers([60, 30, 20], 0.4, np.random.default_rng(1))
    findings = [scenes.extraction_finding(evidence)]
    by_group = scenes.extraction_rows(evidence)
    (finding,) = corrected(findings)
    rows = {row.group_value: row for row in at_level(by_group, [finding])}
    assert len(rows) == 3
    own = rows[finding.group_value]
    # Findings are in percentage points, rows in shares.
    assert own.value == pytest.approx(finding.value / 100)
    assert own.mde == pytest.approx(finding.mde / 100)
    assert own.at_most == pytest.approx(finding.at_most / 100)
    mde_by_size = [rows[name].mde for name in ("g0", "g1", "g2")]
    assert mde_by_size == sorted(mde_by_size), "the fewer, the coarser"


def test_texts_that_tell_a_group_apart_make_its_membership_no_claim():
    rng = np.random.default_rng(0)
    evidence = scenes.examples(scenes.EQUAL, 1.5, rng)
    # The guess without the checkpoint knows about as much as its score.
    score = evidence.row("mine", scenes.GROUP_SCORE)
    known = score + rng.normal(0, 0.3, len(score))
    texts = [known, np.full(len(known), np.nan)]
    evidence = Evidence(
        evidence.units,
        evidence.checkpoints,
        {**evidence.values, "texts": np.stack(texts)},
        evidence.facts,
    )
    finding = scenes.membership_finding(evidence)
    assert finding.claim == "confounded"
    assert finding.says == "mia.group_confounded"
    assert finding.sentence


def test_figures_by_group_are_those_of_an_audit_of_the_group_alone():
    evidence = scenes.identifiers([30, 20, 10], 0.3, np.random.default_rng(2))
    context = scenes.CONTEXT
    both = conclude("matched", evidence, context)
    for name in ("g0", "g1", "g2"):
        keep = (evidence.units[scenes.COLUMN] == name).to_numpy()
        units = evidence.units[keep].reset_index(drop=True)
        alone = Evidence.of(
            units, [("mine", {"nll_sum": evidence.row("mine", "nll_sum")[keep]})]
        )
        expected = figure(conclude("matched", alone, context), "mine", "memory")
        row = figure(both, "mine", "memory", group=f"group:{name}")
        assert (row.value, row.low, row.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )
        assert row.clusters == expected.clusters


def test_fewer_than_two_groups_are_not_tested():
    finding = finding_of("matched", 0.3, sizes=[30, 2])
    assert finding.claim == "not_tested"
    assert finding.says == "groups.none"
    assert finding.sentence
    assert the_one([finding], group_kind="pooled") is finding
