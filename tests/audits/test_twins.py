"""Identifiers among their twins: figures by hand, claims, and what is left open."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import audited
import numpy as np
import pytest
from audited import claims, plan, twins

from spark_audit.audits.base import Context
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import example_of, key_of
from spark_audit.manifest.file import restricted_to
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult
from spark_audit.scoring.table import Pass, TokenTable

CANDIDATES = Pass("candidates")
Tables = Mapping[str, Mapping[Pass, TokenTable]]
Shift = Callable[[int], float]
DOSES = (1, 2, 4, 16)


def run(tables: Tables, manifest: Manifest, **options: Any) -> AuditResult:
    result = twins(tables, manifest, **options)
    assert all(finding.sentence for finding in result.findings)
    return result


@pytest.fixture
def plant(make_case) -> Callable[..., Manifest]:
    """``plant(trained=80, never=40, size=32, contexts=1)``: a manifest of twins."""

    def make(
        trained: int = 80,
        never: int = 40,
        *,
        size: int = 32,
        contexts: int = 1,
        kinds: tuple[str, str] = ("NAME", "EMAIL"),
        origin: str = "injected",
    ) -> Manifest:
        rng = np.random.default_rng(5)
        content = make_case(sources=2).manifest.model_dump(mode="json")
        blank = content["examples"][0]
        sets = []
        rows = []
        for i in range(trained + never):
            places = [f"r{i:03d}-{j}" for j in range(contexts)]
            span = {**blank["spans"][0], "type": kinds[i % 2], "origin": origin}
            own_fields = {**blank, "cluster": f"c{i:03d}", "spans": [span]}
            rows += [{**own_fields, "id": key} for key in places]
            sets.append(
                {
                    "id": str(i),
                    "type": kinds[i % 2],
                    "contexts": [
                        {
                            "example": key,
                            "char_start": span["start"],
                            "char_end": span["end"],
                        }
                        for key in places
                    ],
                    "candidates": [f"s{j}" for j in range(size - i % 3)],
                    "true_index": int(rng.integers(size - 3)),
                    "dose": DOSES[i // 2 % 4] if i < trained else 0,
                }
            )
        content["examples"] += rows
        return seal({**content, "twins": sets, "counts": {"twins": len(sets)}})

    return make


def table(manifest: Manifest, *, seed: int, lift: Shift, noise: float) -> TokenTable:
    """NLLs that all checkpoints share but for ``noise``; the true one's is lowered."""
    items = []
    for twin in manifest.twins:
        shared = np.random.default_rng([999, int(twin.id)])
        rng = np.random.default_rng([seed, int(twin.id)])
        for context in twin.contexts:
            count = len(twin.candidates)
            nll = 4 + shared.normal(0, 0.5, count) + rng.normal(0, noise, count)
            nll[twin.true_index] -= lift(twin.dose)
            columns = {"nll_mean": nll, "nll_sum": 5 * nll}
            items.append(
                (
                    key_of("twins", twin.id, context.example),
                    np.arange(count, dtype=np.int32),
                    {k: v.astype(np.float32) for k, v in columns.items()},
                )
            )
    return TokenTable.from_items(items, kind="candidates")


def tables(
    manifest: Manifest, *, base: Shift | None = lambda dose: 0.3, **lifts: Shift
) -> dict[str, dict[Pass, TokenTable]]:
    """Checkpoints by what the true string's NLL is lowered by, from its dose."""
    scored = {"base": base, **lifts} if base else lifts
    return {
        name: {CANDIDATES: table(manifest, seed=i, lift=lift, noise=0.2)}
        for i, (name, lift) in enumerate(scored.items())
    }


figure = partial(audited.figure, checkpoint="one", variant="trained")


def claim(result: AuditResult) -> str:
    (finding_claim,) = claims(result, "one")
    return finding_claim


def test_memory_is_claimed_of_what_rose_beyond_both(plant):
    manifest = plant()
    result = run(tables(manifest, one=lambda d: 0.8 if d else 0.3), manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.family, finding.metric) == (
        "memory",
        "primary",
        "rise",
    )
    assert finding.p < 0.01
    # Most of a rise may be a kind that was learned: what is beyond it is told, too.
    beyond_row = figure(result, metric="beyond", variant="rise")
    assert beyond_row.value is not None
    assert finding.says == "twins.memory"
    assert {"twins.since_base", "twins.beyond"} <= {*finding.further}
    withdrawn = finding.model_copy(update={"claim": "nothing_shown"})
    nothing = finding.model_copy(update={"says": "twins.nothing"})
    assert withdrawn.text == nothing.text


def test_memory_of_the_highest_dose_alone_is_found(plant):
    manifest = plant()
    result = run(tables(manifest, one=lambda d: 1.0 if d >= 16 else 0.3), manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.group) == ("memory", "dose:16+")
    assert finding.says == "twins.dose_memory"


def test_without_a_detection_no_remark_says_that_identifiers_rose(plant):
    manifest = plant()
    result = run(tables(manifest, one=lambda dose: 0.3), manifest)
    (finding,) = result.findings
    assert finding.says in ("twins.nothing", "twins.still")
    assert not {"twins.beyond", "twins.also_beyond"} & {*finding.further}


def test_a_highest_dose_of_few_groups_costs_no_test(plant):
    """Of two groups a sign flip reaches p 0.5 at best, and would still be counted."""
    manifest = plant()
    most = [twin.id for twin in manifest.twins if twin.dose == max(DOSES)]
    doses = {key: max(DOSES) // 2 for key in most[2:]}
    content = manifest.model_dump(mode="json")
    for twin in content["twins"]:
        twin["dose"] = doses.get(twin["id"], twin["dose"])
    few = seal(content)
    result = run(tables(few, one=lambda d: 0.45 if d else 0.3), few)
    (finding,) = result.findings
    row = figure(result, metric="rise", group="dose:16+")
    assert row.clusters == 2
    assert finding.group == "pooled"
    assert {power.n_tests for power in finding.power} == {1.0}


@pytest.mark.parametrize(
    ("lift", "expected"),
    [
        (lambda dose: 0.3, "nothing_shown"),
        (lambda dose: 0.9, "formats"),
        (lambda dose: 0.3 if dose == 0 else -0.9, "betrays"),
        (lambda dose: -0.6, "moved"),
    ],
)
def test_each_lift_of_twins_has_its_claim(plant, lift, expected):
    manifest = plant()
    assert claim(run(tables(manifest, one=lift), manifest)) == expected


def test_without_identifiers_never_trained_on_the_base_is_the_null(plant):
    manifest = plant(never=0, kinds=("PHONE", "SSN"))
    for lift, expected in ((0.9, "memory"), (0.3, "nothing_shown"), (-0.6, "moved")):
        result = run(tables(manifest, one=lambda d, x=lift: x), manifest)
        assert claim(result) == expected
    # Four clusters never trained on tell nothing: they are no control.
    few = plant(never=4, kinds=("PHONE", "SSN"))
    result = run(tables(few, one=lambda dose: 0.9), few)
    assert claim(result) == "memory"
    assert not [row for row in result.results if row.metric == "beyond"]


def test_where_only_held_out_identifiers_have_twins_memory_is_not_tested(plant):
    manifest = plant(trained=0, never=20)
    result = run(tables(manifest, one=lambda dose: 0.3), manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.says) == ("not_tested", "twins.no_trained")
    assert finding.p is None


def test_why_no_group_is_held_out_is_known(plant):
    """Nobody was, or text alone tells those who were from trained ones."""
    nobody, evidence_of_all = (
        audited.evidence("twins", tables(manifest, one=lambda dose: 0.3), manifest)
        for manifest in (plant(never=0), plant())
    )
    not_comparable = replace(
        evidence_of_all, units=evidence_of_all.units.assign(stratum=-1)
    )
    for evidence_known, left_out, why in (
        (nobody, 0, "twins.none_held_out"),
        (not_comparable, 40, "twins.none_comparable"),
    ):
        (finding,) = audited.conclude("twins", evidence_known, Context()).findings
        assert (finding.facts["never"], finding.facts["left_out"]) == (0, left_out)
        assert why in finding.further
        assert finding.sentence


def test_a_single_group_that_was_held_out_is_one_group(plant):
    evidence_of_all = audited.evidence(
        "twins", tables(plant(), one=lambda dose: 0.3), plant()
    )
    is_held_out = evidence_of_all.units["dose"] == 0
    units = evidence_of_all.units.assign(stratum=-1)
    units["cluster"] = units["cluster"].where(~is_held_out, "one group")
    (finding,) = audited.conclude(
        "twins", replace(evidence_of_all, units=units), Context()
    ).findings
    assert finding.facts["left_out"] == 1
    assert "twins.none_comparable_of_one" in finding.further
    assert finding.sentence


def test_natural_numbers_have_what_they_begin_with_and_no_memory_is_told_of_it(plant):
    """Nobody is held out, and all have one country's code: a model learns that."""
    manifest = plant(never=0, kinds=("PHONE", "SSN"), origin="natural")
    assert claim(run(tables(manifest, one=lambda dose: 0.9), manifest)) == "confounded"
    by_dose = run(tables(manifest, one=lambda dose: 0.3 + 0.08 * dose), manifest)
    assert claim(by_dose) == "memory"


def test_without_the_base_sides_are_held_against_each_other(plant):
    manifest = plant()
    result = run(tables(manifest, base=None, one=lambda d: 0.9 if d else 0.3), manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.metric, finding.variant) == (
        "memory",
        "beyond",
        "exposure",
    )
    assert figure(result, metric="rise").status == "not_estimable"
    result = run(tables(manifest, base=None, one=lambda d: 0.9), manifest)
    assert claim(result) == "nothing_shown"
    neither = plant(never=0)
    result = run(tables(neither, base=None, one=lambda d: 0.9), neither)
    assert claim(result) == "not_tested"
    assert result.findings[0].p is None


def test_a_collapsed_model_resolves_nothing(plant):
    manifest = plant()
    scored = tables(manifest, one=lambda d: 0.3)
    tied = replace(
        scored["one"][CANDIDATES],
        columns={
            name: np.full_like(values, 2.0)
            for name, values in scored["one"][CANDIDATES].columns.items()
        },
    )
    for name in ("one", "base"):
        result = run({**scored, name: {CANDIDATES: tied}}, manifest)
        (finding,) = result.findings
        assert (finding.claim, finding.status) == ("not_tested", "not_resolvable")
        assert figure(result, metric="rise").status == "not_resolvable"
    result = run({**scored, "one": {CANDIDATES: tied}}, manifest)
    row = figure(result, metric="exposure_mean")
    # A tie counts as on average over random orders: what chance gives.
    expected = np.mean(
        [
            np.mean(np.log2(n / np.arange(1, n + 1)))
            for n in (len(x.candidates) for x in manifest.twins if x.dose)
        ]
    )
    assert row.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("never", [40, 6])
def test_a_copy_of_the_base_says_how_many_it_would_have_seen_move(plant, never):
    manifest = plant(never=never)
    base = table(manifest, seed=1, lift=lambda dose: 0.3, noise=0.2)

    def told(moved: int) -> Any:
        lowered = base.columns["nll_mean"].copy()
        for twin in manifest.twins[:moved]:
            (context,) = twin.contexts
            rows = base.rows(key_of("twins", twin.id, context.example))
            lowered[rows.start + twin.true_index] = 0.1
        mine = replace(base, columns={**base.columns, "nll_mean": lowered})
        scored = {"base": {CANDIDATES: base}, "one": {CANDIDATES: mine}}
        (finding,) = run(scored, manifest).findings
        return finding

    still = told(0)
    few = int(np.ceil(still.mde))
    assert told(few + few // 8 + 1).claim == "memory"
    assert told(few // 2).claim != "memory"


def _first_of_all(manifest: Any, base: Any, *, but: int = 0) -> Any:
    """Scores by which trained identifiers rank first, except the first ``but``."""
    nll = base.columns["nll_mean"].copy()
    for twin in [twin for twin in manifest.twins if twin.dose][but:]:
        for context in twin.contexts:
            rows = base.rows(key_of("twins", twin.id, context.example))
            nll[rows.start + twin.true_index] = 0.1
    return replace(base, columns={**base.columns, "nll_mean": nll})


def test_ranks_that_cannot_rise_are_no_test(plant):
    """The base ranks all first: that no rank has changed says nothing."""
    manifest = plant()
    scores = table(manifest, seed=1, lift=lambda dose: 0.3, noise=0.2)

    first = _first_of_all(manifest, scores)
    result = run({"base": {CANDIDATES: first}, "one": {CANDIDATES: first}}, manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.says) == ("not_tested", "twins.at_ceiling")
    assert finding.mde is None
    assert finding.value is None
    assert figure(result, metric="top1_rate").value == 1.0

    most = _first_of_all(manifest, scores, but=20)
    result = run({"base": {CANDIDATES: most}, "one": {CANDIDATES: most}}, manifest)
    (finding,) = result.findings
    assert (finding.claim, finding.says) == ("nothing_shown", "twins.still")


def test_the_plan_names_every_context_and_its_row(plant):
    manifest = plant(trained=3, never=2, contexts=2)
    keys = plan("twins", manifest)[CANDIDATES]
    assert len(keys) == 10
    rows = {example_of(CANDIDATES, key) for key in keys}
    assert rows == {c.example for twin in manifest.twins for c in twin.contexts}
    restricted = restricted_to(manifest, {"r000-0", "r001-0", "r001-1"})
    assert [twin.id for twin in restricted.twins] == ["1"]


def test_identifiers_of_joined_rows_are_one_cluster(plant):
    content = plant(contexts=2).model_dump(mode="json")
    for row in content["examples"]:
        if row["id"] in ("r000-1", "r001-0"):
            row["cluster"] = "shared"
    manifest = seal(content)
    result = run(tables(manifest, one=lambda d: 0.3), manifest)
    row = figure(result, metric="rise")
    assert (row.n, row.clusters) == (80, 79)
