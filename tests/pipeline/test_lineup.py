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
    adapter = make_adapter(tmp_path / "one")
    for stage in ("0", "1"):
        make_adapter(tmp_path / "series" / stage)
    return {"one": str(adapter), "series": str(tmp_path / "series")}


def names(lineup: Any) -> list[str]:
    return [spec.name for spec in lineup.specs]


def test_a_list_is_a_series_for_utility_alone(folders):
    specs = [
        Spec("run", (folders["one"], folders["one"])),
        Spec("x", (folders["one"],)),
    ]
    lineup = make_lineup(specs, chosen("utility"))
    assert names(lineup) == ["x", "run@1", "run@2"]
    assert lineup.stages == {"run@1", "run@2"}
    assert lineup.entry("run@2") == "run"
    assert [lineup.sees(n, Utility()) for n in ("run@1", "x", "base")] == [True] * 3
    assert [lineup.sees(n, Matched()) for n in ("run@1", "x")] == [False, True]


def test_a_list_of_series_is_replicates_for_utility_too(folders):
    lineup = make_lineup(
        [Spec("run", (folders["series"], folders["series"]))], chosen("utility")
    )
    assert names(lineup) == ["run[1]@1", "run[1]@2", "run[2]@1", "run[2]@2"]
    assert lineup.stages == set(names(lineup))
    # One of the two is a single checkpoint: two stages, as they are written.
    mixed = make_lineup(
        [Spec("run", (folders["one"], folders["series"]))], chosen("utility")
    )
    assert names(mixed) == ["run@1", "run@2"]


def test_a_series_is_its_last_stage_for_every_other_audit(folders):
    lineup = make_lineup(
        [Spec("run", (folders["series"],))], chosen("matched", "utility")
    )
    assert names(lineup) == ["run", "run@1", "run@2"]
    assert [lineup.sees(n, Matched()) for n in ("run", "run@1")] == [True, False]
    assert [lineup.sees(n, Utility()) for n in ("run", "run@1")] == [False, True]
    # A stage is not looked at with rounded weights; the series is.
    assert lineup.scores("run+int8")
    assert not lineup.scores("run@1+int8")


def test_a_list_is_replicates_where_other_audits_are_asked_for(folders):
    spec = Spec("x", (folders["one"], folders["series"]))
    lineup = make_lineup([spec], chosen("nll", "utility"))
    assert names(lineup) == ["x", "x[2]@1", "x[2]@2"]
    assert lineup.both == {"x[1]"}
    assert [lineup.sees(n, Utility()) for n in ("x[1]", "x[2]")] == [True, False]
    assert [lineup.sees(n, Matched()) for n in ("x[1]", "x[2]")] == [True, True]


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
    plan_of_all, _ = make_plans(case.manifest, chosen("matched"), limit=99)
    assert plan_of_all is case.manifest
