"""Whether the rows that are listed as trained are those that a checkpoint learned."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from made_reports import said

from spark_audit.audits.setup_guards import setup_guards
from spark_audit.audits.trained_rows import (
    MAX_P_BETTER_FIT,
    TRAINED_ROWS_FIT,
    question_of,
    without_answered,
)
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.results import Guard, Row
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass, TokenTable

TOKENS = 60
Change = Callable[[str], float]


@pytest.fixture(scope="module")
def scene(make_case) -> Any:
    """40 trained rows ``e000`` to ``e039`` and 20 held-out ones, of two tasks."""
    return make_case(sources=40, tests=20)


def scored(
    reference: Mapping[str, np.ndarray],
    change: Change = lambda key: 0.0,
    *,
    response: Change = lambda key: 0.0,
    border: int = TOKENS,
    noise: float = 0.05,
    seed: int = 1,
) -> dict[Pass, TokenTable]:
    """A plain pass: ``change`` a token of a row, ``response`` from ``border`` on."""
    rng = np.random.default_rng(seed)
    items = []
    for key, nll in reference.items():
        columns = {
            name: np.zeros(TOKENS, dtype) for name, dtype in PLAIN_COLUMNS.items()
        }
        columns["rank_lo"] = np.full(TOKENS, 7, np.int32)
        own_nll = nll + change(key) + noise * rng.standard_normal(TOKENS)
        own_nll[border:] += response(key)
        columns["nll"] = own_nll.astype(np.float32)
        position = np.arange(1, TOKENS, dtype=np.int32)
        items.append((key, position, {name: c[1:] for name, c in columns.items()}))
    return {Pass(): TokenTable.from_items(items)}


def fits(manifest: Manifest, **tables: Any) -> dict[str, Guard]:
    """The guard of each checkpoint that has one."""
    names = {name: name for name in tables if name != "base"}
    guards = setup_guards(tables, manifest, names=names, weights={})
    return {
        guard.checkpoint: guard for guard in guards if guard.name == TRAINED_ROWS_FIT
    }


def is_trained(key: str) -> bool:
    return key < "e040"


def drifts(seed: int) -> Change:
    """Both sides are learned alike, as by a training on other rows of the kind."""

    def drift(key: str) -> float:
        rng = np.random.default_rng([seed, *key.encode()])
        return float(rng.normal(-0.4, 0.1))

    return drift


def test_a_checkpoint_of_these_rows_fits_them(scene):
    base = scored(scene.reference, noise=0.0)
    learned = scored(scene.reference, lambda key: -0.5 if is_trained(key) else -0.3)
    for tables in ({"base": base, "x": learned}, {"x": learned}):
        guard = fits(scene.manifest, **tables)["x"]
        assert guard.passed is True
        assert guard.facts["p"] < 1e-6
        trained = guard.facts["trained"]
        held_out = guard.facts["held_out"]
        assert isinstance(trained, Row)
        assert isinstance(held_out, Row)
        assert trained.value == pytest.approx(-0.5, abs=0.01)
        assert held_out.value == pytest.approx(-0.3, abs=0.01)
        assert (trained.clusters, held_out.clusters) == (40, 20)


def test_a_checkpoint_of_other_rows_is_asked_for_its_list(scene):
    """Likelier by half a nat, and on either side alike."""
    base = scored(scene.reference, noise=0.0)
    guards = [
        fits(scene.manifest, base=base, x=scored(scene.reference, drifts(seed)))["x"]
        for seed in range(20)
    ]
    # One of twenty may fit by chance, at the level of the test.
    assert sum(guard.passed is None for guard in guards) >= 17
    assert all(
        (guard.facts["p"] >= MAX_P_BETTER_FIT) == (guard.passed is None)
        for guard in guards
    )


def test_rows_that_held_out_ones_are_ahead_of_are_asked_for(scene):
    """A template that hurts the trained rows: more than no difference, and asked."""
    base = scored(scene.reference, noise=0.0)
    hurt = scored(scene.reference, lambda key: 0.3 if is_trained(key) else 0.1)
    guard = fits(scene.manifest, base=base, x=hurt)["x"]
    assert guard.passed is None
    assert guard.facts["p"] == 1.0


def test_a_training_on_labels_alone_fits_by_its_responses(scene):
    """Two tokens of 60 learned: in whole rows, they are lost in the noise."""
    content = scene.manifest.model_dump(mode="json")
    for row in content["examples"]:
        row["response_token"] = TOKENS - 2
    manifest = seal(content)
    base = scored(scene.reference, noise=0.0)
    labels = scored(
        scene.reference,
        drifts(3),
        response=lambda key: -1.0 if is_trained(key) else -0.2,
        border=TOKENS - 2,
    )
    assert fits(manifest, base=base, x=labels)["x"].passed is True
    assert fits(scene.manifest, base=base, x=labels)["x"].passed is None


def test_a_training_that_hardly_moved_anything_is_asked_for(scene):
    """Nobody can tell it from a training on other rows; the question says so."""
    base = scored(scene.reference, noise=0.0)
    little = scored(
        scene.reference, lambda key: -0.002 * is_trained(key), noise=0.3, seed=4
    )
    guard = fits(scene.manifest, base=base, x=little)["x"]
    assert guard.passed is None
    assert "guard.trained_rows_fit_alike" in guard.further


def test_few_groups_on_a_side_are_not_judged(make_case):
    for sources, tests, judged in ((40, 4, False), (4, 20, False), (40, 10, True)):
        case = make_case(sources=sources, tests=tests)
        learned = scored(case.reference, lambda key: -0.3)
        guards = fits(case.manifest, base=scored(case.reference, noise=0.0), x=learned)
        assert bool(guards) == judged
    trained_alone = make_case(sources=40)
    assert (
        fits(
            trained_alone.manifest, x=scored(trained_alone.reference, lambda key: -0.3)
        )
        == {}
    )


def test_a_relearned_checkpoint_is_not_asked(scene):
    drifted = scored(scene.reference, drifts(0))
    guards = fits(
        scene.manifest, **{"x": drifted, "x+relearn": drifted, "x+int8": drifted}
    )
    assert set(guards) == {"x", "x+int8"}


def test_seeds_share_one_list(scene):
    learned = scored(scene.reference, lambda key: -0.5 if is_trained(key) else -0.3)
    drifted = scored(scene.reference, drifts(0))
    guards = fits(scene.manifest, **{"x[1]": learned, "x[2]": drifted, "y": drifted})
    assert {name: guard.passed for name, guard in guards.items()} == {
        "x[1]": True,
        "y": None,
    }
    assert question_of(guards.values(), "x") is None
    guards_asked = fits(scene.manifest, **{"x[1]": drifted, "x[2]": drifted})
    assert question_of(guards_asked.values(), "x") == guards_asked["x[1]"]


def test_whatever_is_given_away_answers(scene):
    drifted = scored(scene.reference, drifts(0))
    tables = {name: drifted for name in ("x", "x+int8", "y", "z")}
    guards_asked = fits(scene.manifest, **tables)
    assert len(guards_asked) == 4
    findings = [
        said("extract", "x+int8", "verbatim", p=0.001, family="primary"),
        said("mia", "y", "membership", p=0.001, family="primary", status="void"),
        said("matched", "z", "nothing_shown", p=0.5, family="primary"),
    ]
    guards_left = without_answered(guards_asked.values(), findings, void=["z"])
    assert [guard.checkpoint for guard in guards_left] == ["y"]


def test_a_base_that_was_scored_on_other_tokens_is_refused(scene):
    base = scored(scene.reference, noise=0.0)[Pass()]
    shorter = []
    for key, position, columns in base.items():
        shorter.append(
            (key, position[:-1], {name: c[:-1] for name, c in columns.items()})
        )
    tables = {
        "base": {Pass(): TokenTable.from_items(shorter)},
        "x": scored(scene.reference, lambda key: -0.3),
    }
    with pytest.raises(InputError, match="^example '"):
        fits(scene.manifest, **tables)
