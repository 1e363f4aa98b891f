"""Memory by stage and task: planted courses, what must not be said, and how often."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
import pytest
from audited import conclude, evidence, figure, of_frame, stages
from scipy import stats

from spark_audit.audits import find
from spark_audit.audits.base import Context
from spark_audit.audits.stages.memory_cells import TaskCell, stage_row
from spark_audit.audits.stages.states import states_of_tasks
from spark_audit.errors import InputError
from spark_audit.results import AuditResult, Row
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.memory_contrast import Memory

Course: TypeAlias = Mapping[str, Sequence[float]]
TASKS = ("a", "b", "c")
NONE: Course = {task: (0.0, 0.0, 0.0) for task in TASKS}


def made(
    trained: Course,
    *,
    drift: Sequence[float] = (0.0, 0.0, 0.0),
    seed: int = 0,
    name: str = "er",
    ordered: bool = True,
    held: int = 30,
    noise: Callable[[np.random.Generator, int], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Evidence of a series: identifiers of trained rows moved by so many nats a token.

    ``trained`` is what each stage holds of a task since the base; ``drift`` moves both
    sides. Every identifier keeps luck of its own, and has some anew at every stage.
    """
    rng = np.random.default_rng(seed)
    noise_of_spans = noise or (lambda rng, n: rng.normal(0, 0.4, n))
    frames = []
    for position, task in enumerate(TASKS, start=1):
        size = 30 + held
        split = np.array(["train"] * 30 + ["test"] * held)
        tokens = rng.integers(2, 6, size)
        base = tokens * rng.gamma(4.0, 0.75, size)
        noise_of_task = noise_of_spans(rng, size)
        spans = pd.DataFrame(
            {
                "example": [f"{task}{k}" for k in range(size)],
                "cluster": [f"{task}{k}" for k in range(size)],
                "task": task,
                "split": split,
                "type": np.where(np.arange(size) % 2, "NAME", "EMAIL"),
                "start": 3,
                "dose": (split == "train").astype(int),
                "form": 0,
                "cue": 0,
                "stratum": 1,
                "text_auc": np.nan,
                "elsewhere": 0,
                "trained_at": position if ordered else 0,
                "n_tokens": tokens,
                "ref_sum": base,
            }
        )
        for stage in range(1, len(drift) + 1):
            luck = noise_of_task + noise_of_spans(rng, size) / 2
            moved = drift[stage - 1] + trained[task][stage - 1] * (split == "train")
            total = np.maximum(base + tokens * (luck + moved + 2.0), 0.01)
            frame_of_stage = spans.assign(checkpoint=f"{name}@{stage}", nll_sum=total)
            frames.append(frame_of_stage)
    return pd.concat(frames, ignore_index=True)


def told(*frames: pd.DataFrame) -> AuditResult:
    spans = pd.concat(frames, ignore_index=True)
    result = conclude("stages", of_frame(spans, "nll_sum trained_at"), Context())
    assert all(finding.sentence for finding in result.findings)
    assert all(guard.detail for guard in result.guards)
    return result


def states(result: AuditResult, name: str = "er") -> dict[str, list[str]]:
    states_by_name: dict[str, list[str]] = {}
    for record in result.tables["stages_states"]:
        if record["checkpoint"] == name:
            states_by_name.setdefault(record["task"], []).append(record["state"])
    return states_by_name


def again(result: AuditResult) -> list[tuple[str, int]]:
    records = result.tables["stages_states"]
    return [(r["task"], r["stage"]) for r in records if r["likelier_again"]]


def cell(result: AuditResult, metric: str, stage: int, group: str) -> Row:
    return figure(result, "er", metric, str(stage), group)


PLANTED: Course = {
    "a": (-1.5, 0.0, -1.5),
    "b": (0.0, -1.5, -1.5),
    "c": (0.0, 0.0, 0.0),
}


# --- planted courses ------------------------------------------------------------------


def test_a_planted_course_is_told_stage_by_stage():
    result = told(made(PLANTED, drift=(-1.0, -0.5, 0.5)))
    assert states(result) == {
        "a": ["remembered", "forgotten", "remembered"],
        "b": ["not yet trained", "remembered", "remembered"],
        "c": ["not yet trained", "not yet trained", "not shown"],
    }
    assert again(result) == [("a", 3)]
    # Who leaks is told by the primary tests: none of these is a detection.
    claims = [finding.claim for finding in result.findings]
    assert claims == ["moved", "moved", "nothing_shown"]
    remembered, likelier, _ = result.findings
    assert remembered.says == "stages.remembered"
    assert "stages.forgotten_tasks" in remembered.further
    assert remembered.facts["forgotten_tasks"] == ["a"]
    assert remembered.facts["remembered_tasks"] == ["a", "b"]
    assert likelier.says == "stages.again"
    assert likelier.facts["again"] == [["a", "3"]]
    assert not any(finding.detected for finding in result.findings)


def test_figures_are_those_of_the_memory_contrast_by_task():
    frame = made(PLANTED)
    result = told(frame)
    wide = frame[frame["task"] == "a"].pivot(
        index="example", columns="checkpoint", values="nll_sum"
    )
    facts = frame[(frame["task"] == "a") & (frame["checkpoint"] == "er@1")]
    facts = facts.set_index("example").loc[wide.index]
    is_trained = (facts["split"] == "train").to_numpy()
    tokens = facts["n_tokens"].to_numpy()

    def plain(change: np.ndarray) -> float:
        """Held-out ones weighed by the trained ones' mix of types."""
        mean = change[is_trained].sum() / tokens[is_trained].sum()
        for type_name in ("NAME", "EMAIL"):
            is_type = (facts["type"] == type_name).to_numpy()
            share = tokens[is_trained & is_type].sum() / tokens[is_trained].sum()
            held = is_type & ~is_trained
            mean -= share * change[held].sum() / tokens[held].sum()
        return float(mean)

    since = (wide["er@3"] - facts["ref_sum"]).to_numpy()
    step = (wide["er@3"] - wide["er@2"]).to_numpy()
    assert cell(result, "memory", 3, "task:a").value == pytest.approx(plain(since))
    assert cell(result, "step", 3, "task:a").value == pytest.approx(plain(step))
    ((best, gain),) = zip(
        *(
            [row.value for row in result.results if row.metric == metric]
            for metric in ("memory_by_series", "memory_gain")
        ),
        strict=True,
    )
    by_task = {}
    for task, stage in zip(TASKS, (1, 2, 3), strict=True):
        rows_of_task = frame[frame["task"] == task].sort_values("example")
        stages = [
            rows_of_task[rows_of_task["checkpoint"] == f"er@{k}"]
            for k in range(stage, 4)
        ]
        sums = np.stack([stage["nll_sum"] for stage in stages])
        last_stage = stages[-1].assign(best=sums.min(0), gain=sums.min(0) - sums[-1])
        last_stage["best"] -= last_stage["ref_sum"]
        for type_name, spans_of_type in last_stage.groupby("type"):
            sides = (
                spans_of_type[spans_of_type["split"] == "train"],
                spans_of_type[spans_of_type["split"] == "test"],
            )
            means = [s[["best", "gain"]].sum() / s["n_tokens"].sum() for s in sides]
            by_task[task, type_name] = sides[0]["n_tokens"].sum(), means[0] - means[1]
    total = sum(weight for weight, _ in by_task.values())
    mean = sum(weight / total * difference for weight, difference in by_task.values())
    assert [best, gain] == pytest.approx(mean.tolist())
    for row in result.results:
        assert row.no_effect == 0
        assert row.low is not None
        assert row.high is not None


def test_stages_that_nobody_ordered_have_no_own_and_nothing_comes_again():
    result = told(made(PLANTED, ordered=False))
    assert states(result)["b"] == ["not shown", "remembered", "remembered"]
    assert again(result) == []
    assert all(r["trained_at"] is None for r in result.tables["stages_states"])
    assert result.findings[1].claim == "not_tested"


def test_what_is_lost_without_a_clear_rise_is_not_called_forgotten():
    def cell_of(task: str, stage: int, value: float, rise_p: float) -> TaskCell:
        side = Estimate(value, value - 0.2, value + 0.2, se=0.1)
        untested = Estimate.missing("-")
        return TaskCell(
            series="er",
            task=task,
            stage=stage,
            trained_at=1,
            memory=stage_row(side, "memory", "er", variant=str(stage), band=0.0),
            step=stage_row(untested, "step", "er", variant=str(stage), band=0.0),
            memory_p=Memory(side, side, side, 30.0).t_p(),
            step_p=None,
            rise_p=rise_p,
            trained_step_high=None,
        )

    cells = [
        cell_of(task, stage, value, rise_p)
        for task, rise_p in (("clear", 0.001), ("open", 0.2))
        for stage, value in ((1, -1.0), (2, -0.1))
    ]
    states = {
        (state.cell.task, state.cell.stage): state.state
        for state in states_of_tasks(cells)
    }
    assert states["clear", 1] == states["open", 1] == "remembered"
    assert (states["clear", 2], states["open", 2]) == ("forgotten", "not shown")


def test_seeds_of_a_method_are_told_as_their_mean():
    evidence_of_seeds = [made(PLANTED, name=f"er[{k}]", seed=0) for k in (1, 2)]
    evidence_of_seeds[1]["nll_sum"] += 0.1 * evidence_of_seeds[1]["n_tokens"]
    states_of_seeds = told(*evidence_of_seeds)
    states_of_one = told(made(PLANTED))
    assert {row.checkpoint for row in states_of_seeds.results} == {"er"}
    # What is added to both sides cancels.
    assert cell(states_of_seeds, "memory", 1, "task:a").value == pytest.approx(
        cell(states_of_one, "memory", 1, "task:a").value
    )


def test_a_task_that_not_all_seeds_have_reached_does_not_count_for_the_gain():
    complete, stopped = (made(PLANTED, name=f"er[{k}]") for k in (1, 2))
    stopped = stopped[stopped["checkpoint"] != "er[2]@3"]
    without_task = [frame[frame["task"] != "c"] for frame in (complete, stopped)]

    result = told(complete, stopped)
    expected = told(*without_task)
    for metric in ("memory_by_series", "memory_by_last", "memory_gain"):
        value = figure(result, "er", metric).value
        assert value is not None
        assert value == pytest.approx(figure(expected, "er", metric).value)


# --- what must not be said ------------------------------------------------------------


def test_of_a_series_that_remembers_nothing_no_sentence_names_a_task():
    result = told(made(NONE))
    remembered, likelier, _ = result.findings
    assert (remembered.says, remembered.claim) == ("stages.nothing", "nothing_shown")
    assert remembered.further == ["stages.after_last"]
    assert (likelier.says, likelier.claim) == ("stages.not_again", "nothing_shown")
    assert "stages.again_tasks" not in likelier.further


def test_a_model_that_only_grows_surer_makes_nothing_likelier_again():
    """All NLL times a factor: what is remembered moves apart from what is not."""
    frame = made({**NONE, "a": (-1.5, -1.5, -1.5)})
    last = frame["checkpoint"] == "er@3"
    before = frame.loc[frame["checkpoint"] == "er@2", "nll_sum"].to_numpy()
    frame.loc[last, "nll_sum"] = 0.7 * before
    trained = (frame["split"] == "train") & (frame["task"] == "a") & last
    # Surer of what was likely, less sure of what was not: the gap grows by a half.
    frame.loc[trained, "nll_sum"] *= 0.6
    row = cell(told(frame), "step", 3, "task:a")
    assert row.high < 0
    assert row.no_effect_low is not None
    assert again(told(frame)) == []


def test_what_is_remembered_widens_the_null_of_the_next_stage():
    """However unclear levels are: memory is paired with the base, they are not."""
    result = told(made({**NONE, "a": (-0.6, -0.9, -0.9)}))
    held = cell(result, "memory", 1, "task:a")
    assert held.value is not None
    assert cell(result, "step", 2, "task:a").no_effect_low == pytest.approx(held.value)
    assert again(result) == []


def test_a_task_apart_before_it_was_trained_on_is_not_judged():
    result = told(made({**NONE, "c": (-1.5, -1.5, -1.5)}))
    assert states(result)["c"] == ["not yet trained", "not yet trained", "confounded"]
    (guard,) = result.guards
    assert guard.passed is None
    assert told(made(NONE)).guards[0].passed is True
    # Nor does it count in what all stages together show.
    frame = made({**NONE, "c": (-0.5, -1.5, 0.0)})
    figures = [
        [
            row.value
            for row in told(shortened).results
            if row.metric.startswith("memory_")
        ]
        for shortened in (frame, frame[frame["task"] != "c"])
    ]
    assert figures[0] == figures[1]


def test_without_held_out_identifiers_nothing_is_estimable():
    result = told(made(PLANTED, held=0))
    assert {row.status for row in result.results} == {"not_estimable"}
    assert {
        s for states_of_series in states(result).values() for s in states_of_series
    } <= {
        "not yet trained",
        "not estimable",
    }
    assert [finding.claim for finding in result.findings] == ["not_tested"] * 2


def test_identifiers_of_several_tasks_belong_to_none():
    frame = made(PLANTED)
    frame.loc[(frame["task"] == "a") & (frame["split"] == "train"), "elsewhere"] = 1
    result = told(frame)
    assert cell(result, "memory", 1, "task:a").status == "not_estimable"
    assert states(result)["a"] == ["not estimable"] * 3
    assert states(result)["b"][1:] == ["remembered", "remembered"]


# --- evidence -------------------------------------------------------------------------


def test_only_series_are_looked_at_and_places_follow_the_order(make_case):
    case = make_case(sources=20, tests=20)
    tables = case.tables(
        **{name: lambda _, nll: nll for name in ("base", "x@1", "x@2")}
    )
    assert (
        len(evidence("stages", case.tables(base=lambda _, nll: nll), case.manifest))
        == 0
    )
    frame = evidence("stages", tables, case.manifest, order="yelp,fomc").frame()
    assert set(frame["checkpoint"]) == {"x@1", "x@2"}
    assert dict(zip(frame["task"], frame["trained_at"], strict=True)) == {
        "yelp": 1,
        "fomc": 2,
    }
    # As many stages as tasks, or which stage trained which task is not known.
    for order in ("yelp", None):
        scene_evidence = evidence("stages", tables, case.manifest, order=order)
        assert not scene_evidence.values["trained_at"].any()
    with pytest.raises(InputError, match="'imdb'"):
        evidence("stages", tables, case.manifest, order="imdb")


def test_without_a_series_it_says_nothing_and_needs_no_reason(make_case):
    case = make_case(sources=20, tests=20)
    tables = case.tables(base=lambda _, nll: nll, x=lambda _, nll: nll)
    result = stages(tables, case.manifest)
    assert (result.results, result.findings) == ([], [])


# --- how often it is wrong ------------------------------------------------------------


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Lognormal luck, of mean 0."""
    return np.asarray(0.3 * (rng.lognormal(0.0, 1.0, n) - np.exp(0.5)))


def uneven(rng: np.random.Generator, n: int) -> np.ndarray:
    """Luck of unequal spread."""
    return np.asarray(rng.normal(0, 0.4, n) * rng.choice([0.3, 2.0], n))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, skewed, uneven])
@pytest.mark.parametrize("course", ["nothing", "remembered", "forgotten"])
def test_at_most_5_percent_of_series_get_a_false_claim(noise, course):
    """Nothing comes again in any, what stays is not forgotten, nor made of nothing."""
    course_of: dict[str, Course] = {
        "nothing": NONE,
        "remembered": {
            "a": (-1.0, -1.0, -1.0),
            "b": (0.0, -1.0, -1.0),
            "c": (0.0, 0.0, -1.0),
        },
        "forgotten": {"a": (-1.0, 0.0, 0.0), "b": (0.0, -1.0, 0.0), "c": (0.0,) * 3},
    }
    runs = 250
    false = 0
    claimed = 0
    lost = 0
    added = 0
    for seed in range(runs):
        result = told(
            made(
                course_of[course],
                drift=(-1, 0.5, -1),
                noise=noise,
                held=15,
                seed=seed,
            )
        )
        false += bool(again(result))
        named = {
            s for states_of_series in states(result).values() for s in states_of_series
        }
        claimed += bool(named & {"remembered", "less likely"})
        lost += "forgotten" in named
        added += result.findings[-1].claim == "moved"
    most = stats.binom.ppf(0.99, runs, 0.05)
    assert false <= most, false / runs
    if course == "nothing":
        assert claimed <= most, claimed / runs
    if course == "forgotten":
        assert added >= 0.5 * runs, added / runs
    else:
        assert max(lost, added) <= most, (lost / runs, added / runs)


@pytest.mark.parametrize("audit", ["stages", "utility", "series"])
def test_an_order_of_unknown_tasks_is_refused_before_anything_is_scored(
    audit, make_case
):
    with pytest.raises(InputError, match="--order"):
        find(audit)(order="no-task").plan(make_case().manifest)
