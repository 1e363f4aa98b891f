"""The matched audit of relearned checkpoints: memory that comes back."""

from dataclasses import replace
from typing import Any

import pytest
from audited import (
    conclude,
    evidence,
    figure,
)
from matched_scenes import moved, same

from spark_audit.audits.base import Context


def relearned(case: Any, before: float, after: float, *, base: float = 0.0) -> Any:
    """Identifiers moved by ``before``, and after relearning by ``after``, if trained.

    ``base``: by how much relearning moves trained ones on the base.
    """

    def by(trained: float, seed: int) -> Any:
        return moved(case, trained=trained, never=0.0, other=0.0, spread=0.3, seed=seed)

    changes = {"base": same, "base+relearn": by(base, 1)}
    changes |= {"ours": by(before, 2), "ours+relearn": by(after, 3)}
    context = Context(baselines={"ours+relearn": "ours"})
    scene_evidence = evidence(
        "matched", case.tables(**changes), case.manifest, placebo_draws=0
    )
    return conclude(
        "matched", scene_evidence, context, rematched=False, placebo_draws=0
    )


@pytest.mark.parametrize(
    ("before", "after", "base", "says", "claim"),
    [
        (0.0, -1.5, 0.0, "returned", "memory"),
        # Suppression that is taken back is no memory.
        (1.5, 0.0, 0.0, "not_returned", "nothing_shown"),
        (0.0, 0.0, 0.0, "not_returned", "nothing_shown"),
        # What the rows do to the base as well came from the rows.
        (0.0, -1.5, -1.5, "not_returned", "nothing_shown"),
        (-1.5, -1.5, 0.0, "return_known", "nothing_shown"),
    ],
)
def test_what_comes_back_is_memory_beyond_before_and_the_base(
    make_case, before, after, base, says, claim
):
    case = make_case(sources=60, tests=40, seed=33)
    result = relearned(case, before, after, base=base)
    own_findings = [f for f in result.findings if f.metric == "returned"]
    assert [(f.says, f.claim) for f in own_findings] == [(f"matched.{says}", claim)]
    assert not [f for f in result.findings if f.checkpoint == "base+relearn"]
    row = next(r for r in result.contrasts if r.metric == "returned")
    assert row.value == pytest.approx(after - before - base, abs=0.25)
    assert (row.checkpoint, row.baseline) == ("ours+relearn", "ours")
    rested = figure(result, "ours+relearn", "returned", "after")
    assert rested.value == pytest.approx(after - base, abs=0.25)


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ((0.0, 0.0), "returned"),
        # The replicate itself remembers.
        ((-1.5, 1.5), "return_known"),
        # It does not, but the mean of all replicates does.
        ((0.0, -3.0), "return_known_of_method"),
    ],
)
def test_nothing_came_back_to_a_replicate_that_remembers_or_whose_method_does(
    make_case, before, says
):
    case = make_case(sources=60, tests=40, seed=33)
    changes = {"base": same, "base+relearn": same}
    levels = {"ours[1]": before[0], "ours[2]": before[1], "ours[1]+relearn": -3.0}
    for seed, (name, trained) in enumerate(levels.items()):
        changes[name] = moved(
            case, trained=trained, never=0.0, other=0.0, spread=0.3, seed=seed
        )
    context = Context(baselines={"ours[1]+relearn": "ours[1]"})
    scene_evidence = evidence(
        "matched", case.tables(**changes), case.manifest, placebo_draws=0
    )
    result = conclude(
        "matched", scene_evidence, context, rematched=False, placebo_draws=0
    )

    (finding,) = [f for f in result.findings if f.metric == "returned"]
    assert finding.says == f"matched.{says}"
    assert finding.detected == (says == "returned")
    assert finding.sentence


@pytest.mark.parametrize(("stratum", "says"), [(1, ["matched.returned"]), (-1, [])])
def test_a_replicate_gets_no_return_where_text_tells_the_sides_apart(
    make_case, stratum, says
):
    case = make_case(sources=60, tests=40, seed=33)
    changes = {"base": same, "base+relearn": same, "ours[1]": same}
    changes["ours[1]+relearn"] = moved(case, trained=-3.0, never=0.0, other=0.0)
    scene_evidence = evidence(
        "matched", case.tables(**changes), case.manifest, placebo_draws=0
    )
    is_identifier = scene_evidence.units["role"].isin(["pii", "unmatched"])
    units = scene_evidence.units.assign(
        form=0,
        stratum=stratum * is_identifier,
        text_auc=is_identifier.map({True: 0.7}),
    )

    context = Context(baselines={"ours[1]+relearn": "ours[1]"})
    result = conclude(
        "matched",
        replace(scene_evidence, units=units),
        context,
        rematched=False,
        placebo_draws=0,
    )
    assert [f.says for f in result.findings if f.metric == "returned"] == says


@pytest.mark.parametrize("missing", ["base", "base+relearn", "ours"])
def test_nothing_comes_back_without_what_it_is_held_against(make_case, missing):
    case = make_case(sources=30, tests=20, seed=33)
    changes = dict.fromkeys(("base", "base+relearn", "ours", "ours+relearn"), same)
    del changes[missing]
    scene_evidence = evidence(
        "matched", case.tables(**changes), case.manifest, placebo_draws=0
    )
    result = conclude(
        "matched", scene_evidence, Context(), rematched=False, placebo_draws=0
    )
    assert {row.checkpoint for row in result.results} > {"ours+relearn"}
    figures = [*result.results, *result.contrasts, *result.findings]
    assert not [figure for figure in figures if figure.metric == "returned"]
