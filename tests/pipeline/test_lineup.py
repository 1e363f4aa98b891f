"""Who is opened, who scores what, and which audit sees whom."""

from typing import Any

import pytest
from audited import chosen

from spark_audit.audits import Matched, Utility
from spark_audit.checkpoints.specs import Spec
from spark_audit.pipeline.lineup import make_lineup, make_plans
from spark_audit.scoring.table import Pass

PLAIN = Pass()


@pytest.fixture
def folders(tmp_path, make_adapter):
    """A single adapter, and a series of two as TRACE saves it."""
    one = make_adapter(tmp_path / "one")
    for stage in ("0", "1"):
        make_adapter(tmp_path / "series" / stage)
    return {"one": str(one), "series": str(tmp_path / "series")}


def names(found: Any) -> list[str]:
    return [spec.name for spec in found.specs]


def test_a_list_is_a_series_for_utility_alone(folders):
    specs = [
        Spec("run", (folders["one"], folders["one"])),
        Spec("x", (folders["one"],)),
    ]
    found = make_lineup(specs, chosen("utility"))
    assert names(found) == ["x", "run@1", "run@2"]
    assert found.stages == {"run@1", "run@2"}
    assert found.entry("run@2") == "run"
    assert [found.sees(n, Utility()) for n in ("run@1", "x", "base")] == [True] * 3
    assert [found.sees(n, Matched()) for n in ("run@1", "x")] == [False, True]


def test_a_list_of_series_is_replicates_for_utility_too(folders):
    found = make_lineup(
        [Spec("run", (folders["series"], folders["series"]))], chosen("utility")
    )
    assert names(found) == ["run[1]@1", "run[1]@2", "run[2]@1", "run[2]@2"]
    assert found.stages == set(names(found))
    # One of the two is a single checkpoint: two stages, as they are written.
    mixed = make_lineup(
        [Spec("run", (folders["one"], folders["series"]))], chosen("utility")
    )
    assert names(mixed) == ["run@1", "run@2"]


def test_a_series_is_its_last_stage_for_every_other_audit(folders):
    found = make_lineup(
        [Spec("run", (folders["series"],))], chosen("matched", "utility")
    )
    assert names(found) == ["run", "run@1", "run@2"]
    assert [found.sees(n, Matched()) for n in ("run", "run@1")] == [True, False]
    assert [found.sees(n, Utility()) for n in ("run", "run@1")] == [False, True]
    # A stage is not looked at with rounded weights; the series is.
    assert found.scores("run+int8")
    assert not found.scores("run@1+int8")


def test_a_list_is_replicates_where_other_audits_are_asked_for(folders):
    spec = Spec("x", (folders["one"], folders["series"]))
    found = make_lineup([spec], chosen("nll", "utility"))
    assert names(found) == ["x", "x[2]@1", "x[2]@2"]
    assert found.both == {"x[1]"}
    assert [found.sees(n, Utility()) for n in ("x[1]", "x[2]")] == [True, False]
    assert [found.sees(n, Matched()) for n in ("x[1]", "x[2]")] == [True, True]


def test_a_series_beside_a_checkpoint_keeps_its_name(folders):
    specs = [
        Spec("x", (folders["one"],)),
        Spec("run", (folders["series"],)),
        Spec("a", (folders["series"],)),
    ]
    assert make_lineup(specs, chosen("utility")).names == ["x", "a", "run"]
    # Where every audit has something to look at, the names are those of the call.
    assert make_lineup(specs, chosen("matched", "utility")).names == ["x", "run", "a"]
    seeds = Spec("x", (folders["one"], folders["series"]))
    assert make_lineup([seeds], chosen("nll", "utility")).names == ["x"]


def test_a_limit_leaves_the_first_by_hash(make_case):
    case = make_case(sources=20)
    view, plans = make_plans(case.manifest, chosen("matched", "nll"), limit=7)
    assert len(view.examples) == 7
    for plan in plans:
        assert plan == {PLAIN: sorted(example.id for example in view.examples)}
    again, _ = make_plans(case.manifest, chosen("matched", "nll"), limit=5)
    assert {e.id for e in again.examples} < {e.id for e in view.examples}
    whole, _ = make_plans(case.manifest, chosen("matched"), limit=99)
    assert whole is case.manifest
