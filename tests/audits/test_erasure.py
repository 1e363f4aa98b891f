"""The audit of erasure: forget sets, verdicts, mistakes of the setup, its scores."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from audited import audited, evidence, figure, made, plan
from sklearn.metrics import roc_auc_score

from spark_audit.audits.erasure.comparison import (
    ErasureComparison,
    MemoryTestResult,
)
from spark_audit.audits.erasure.field_scores import (
    RowScores,
    labelled_tokens,
    privleak,
)
from spark_audit.audits.erasure.verdicts import (
    CheckpointTests,
    chosen_verdicts,
    margin_of,
)
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.file import restricted_to
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult
from spark_audit.scoring.table import Pass, TokenTable

N_FORGET = 40
SPREAD = 0.2
"""Nats by which rows differ from each other in how they move."""

Shape = Mapping[str, float]
"""Side -> how far the tokens of its rows moved since the base, nats."""

Scores = tuple[float, float, float]
"""Exact memorisation, extraction strength and an attack's score of a row."""

LEARNED: Shape = {"forget": -1.2, "retained": -1.2, "held_out": -0.2}
RETRAINED: Shape = {**LEARNED, "forget": -0.2}
UNTOUCHED = LEARNED
ASCENT: Shape = {**LEARNED, "forget": 1.0}
DESTROYED: Shape = {"forget": 9.0, "retained": 9.0, "held_out": 9.0}
SAME: Shape = {"forget": 0.0, "retained": 0.0, "held_out": 0.0}


class Scene:
    """A manifest of which some trained rows should be forgotten, and made-up scores."""

    def __init__(self, case: Any, folder: Any) -> None:
        self.case = case
        self.manifest = case.manifest
        trained = [e.id for e in self.manifest.examples if e.split == "train"]
        self.forget = set(trained[:N_FORGET])
        self.file = folder / "forget.txt"
        self.file.write_text("\n".join(sorted(self.forget)) + "\n")

    def side_of(self, key: str) -> str:
        if self.manifest.by_id[key].split == "test":
            return "held_out"
        return "forget" if key in self.forget else "retained"

    def moved(self, name: str, shape: Shape) -> Callable[[str, np.ndarray], np.ndarray]:
        """Each row moves as its side does, and by chance; copies of a model alike."""

        def change(key: str, reference: np.ndarray) -> np.ndarray:
            rng = np.random.default_rng(seed_for(1, name, key))
            shift = shape[self.side_of(key)] + rng.normal(0, SPREAD)
            if shape is SAME:
                shift = 0.0
            return (reference + shift).clip(0.001)

        return change

    def tables(self, **shapes: Shape) -> dict[str, dict[Pass, TokenTable]]:
        shapes = {"base": SAME, "before": LEARNED, **shapes}
        return self.case.tables(
            **{name: self.moved(name, shape) for name, shape in shapes.items()}
        )

    def audited(self, tables: Any, **options: Any) -> AuditResult:
        options = {"forget": (str(self.file),), "before": "before", **options}
        return audited("erasure", tables, self.manifest, **options)


@pytest.fixture(scope="module")
def scene(make_case, tmp_path_factory) -> Scene:
    case = make_case(sources=80, tests=60, seed=5, tokens=60)
    return Scene(case, tmp_path_factory.mktemp("forget"))


def verdicts(result: AuditResult) -> dict[str, str]:
    return {f.checkpoint: f.verdict for f in result.findings if f.verdict}


# forget sets


def rows_of(scene: Scene, *forget: str, **options: Any) -> set[str]:
    audit = made("erasure", {"forget": forget, "before": "before", **options})
    audit.check_manifest(scene.manifest)
    return set(audit.rows_to_forget(scene.manifest))


def test_rows_sources_and_groups_are_named_one_per_line(scene, tmp_path):
    rows = [e for e in scene.manifest.examples if e.split == "train"]
    names = [rows[0].id, rows[1].source_id, rows[2].cluster]
    file = tmp_path / "persons.txt"
    file.write_text("\n\n".join(names), encoding="utf-8-sig")
    expected = {
        e.id
        for e in rows
        if e.id == names[0] or e.source_id == names[1] or e.cluster == names[2]
    }
    assert rows_of(scene, str(file)) == expected


def test_a_task_and_the_task_of_a_stage_are_all_of_its_trained_rows(scene):
    tasks = sorted({e.task for e in scene.manifest.examples})
    of_first = {
        e.id
        for e in scene.manifest.examples
        if e.task == tasks[0] and e.split == "train"
    }
    assert rows_of(scene, f"task={tasks[0]}") == of_first
    order = ",".join(reversed(tasks))
    assert rows_of(scene, f"stage={len(tasks)}", order=order) == of_first


def test_one_request_needs_no_list_and_a_path_is_one(scene):
    for forget in (str(scene.file), scene.file, [scene.file]):
        audit = made("erasure", {"forget": forget, "before": "before"})
        assert audit.rows_to_forget(scene.manifest) == scene.forget
        assert audit.inputs == [scene.file]


def test_of_a_part_of_the_manifest_those_rows_are_forgotten_that_it_has(scene):
    some = {e.id for e in scene.manifest.examples if not e.id.endswith("3-0")}
    audit = made("erasure", {"forget": (str(scene.file),), "before": "before"})
    part = restricted_to(scene.manifest, some)
    assert audit.rows_to_forget(part) == scene.forget & some
    assert set(audit.plan(part)[Pass()]) == some
    tables = scene.tables(after=RETRAINED)
    result = audited("erasure", tables, part, forget=audit.forget, before="before")
    assert verdicts(result)["after"] in ("ERASED", "CANNOT TELL")


def test_only_trained_rows_are_forgotten_and_no_row_of_a_canary_is_scored(scene):
    scored = set(
        plan("erasure", scene.manifest, forget=(str(scene.file),), before="before")[
            Pass()
        ]
    )
    assert rows_of(scene, str(scene.file)) == scene.forget
    assert scored == {e.id for e in scene.manifest.examples if e.canary_id is None}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["nobody", "e000-0", "", "no one", "none"], ": lines 1, 4, 5;"),
        (["jane@a.org", "555-0107", "c", "d"], ": lines 1, 2, 3, ...;"),
        (["", "e085-0", "e085-0"], ": line 2;"),
        ([], "has no id"),
    ],
)
def test_lines_with_ids_of_no_trained_row_are_named_and_no_id(
    scene, tmp_path, lines, words
):
    file = tmp_path / "forget.txt"
    file.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        rows_of(scene, str(file))
    assert words in str(caught.value)
    # Who asked to be forgotten is in no log.
    assert not any(key in str(caught.value) for key in lines if len(key) > 4)


@pytest.mark.parametrize(
    "forget",
    [(), ("task=nothing",), ("stage=0",), ("stage=2",), ("no/such/file",)],
)
def test_a_forget_set_that_names_no_trained_row_is_refused(scene, forget):
    with pytest.raises(InputError):
        rows_of(scene, *forget)


@pytest.mark.parametrize(
    "options",
    [
        {"before": None},
        {"before": "else"},
        {"before": "before", "retrained": "else"},
        {"before": "before", "retrained": "before"},
    ],
)
def test_names_of_no_checkpoint_are_refused_before_scoring(scene, options):
    audit = made("erasure", {"forget": (str(scene.file),), **options})
    with pytest.raises(InputError):
        audit.check_names(["before", "after"])


def test_a_call_without_a_checkpoint_after_erasure_is_refused(scene):
    audit = made("erasure", {"forget": (str(scene.file),), "before": "before"})
    with pytest.raises(InputError):
        audit.check_names(["before"])


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_is_above_0(margin):
    with pytest.raises(InputError):
        made("erasure", {"margin": margin})


# verdicts


@pytest.mark.parametrize(
    ("shape", "verdict", "claim"),
    [
        (UNTOUCHED, "REMEMBERED", "memory"),
        (RETRAINED, "ERASED", "erased"),
        (ASCENT, "BETRAYS", "betrays"),
        (DESTROYED, "BROKEN", "not_tested"),
    ],
)
def test_each_shape_has_its_verdict(scene, shape, verdict, claim):
    result = scene.audited(scene.tables(after=shape))
    assert verdicts(result) == {"after": verdict}
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert finding.claim == claim


def test_what_relearning_brings_back_was_suppressed(scene):
    shapes = {
        "base+relearn": SAME,
        "before+relearn": LEARNED,
        "after": RETRAINED,
        "after+relearn": LEARNED,
        "other": RETRAINED,
        "other+relearn": RETRAINED,
    }
    result = scene.audited(scene.tables(**shapes))
    assert verdicts(result) == {"after": "SUPPRESSED", "other": "ERASED"}


def test_what_rounding_the_base_under_an_adapter_brings_back_was_suppressed(scene):
    shapes = {
        "after": RETRAINED,
        "after+nf4": LEARNED,
        "other": RETRAINED,
        "other+nf4": RETRAINED,
    }
    result = scene.audited(scene.tables(**shapes))
    assert verdicts(result) == {"after": "SUPPRESSED", "other": "ERASED"}


@pytest.mark.parametrize(("shape", "is_told"), [(ASCENT, True), (RETRAINED, False)])
def test_what_comes_back_is_said_to_betray_only_if_it_does(scene, shape, is_told):
    shapes = {"base+relearn": SAME, "after": shape, "after+relearn": LEARNED}
    result = scene.audited(scene.tables(**shapes))
    assert verdicts(result) == {"after": "SUPPRESSED"}
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert ("erasure.suppressed_less_likely" in finding.further) is is_told


def test_what_relearning_does_to_the_base_is_no_memory(scene):
    drifted = {"forget": -0.5, "retained": 0.0, "held_out": 0.0}
    shapes = {
        "base+relearn": drifted,
        "after": RETRAINED,
        "after+relearn": {**RETRAINED, "forget": -0.7},
    }
    result = scene.audited(scene.tables(**shapes))
    assert verdicts(result) == {"after": "ERASED"}


def test_a_copy_that_is_not_bounded_leaves_nothing_erased(scene):
    """What hides in a copy may be more than the margin, though none is shown."""
    tables = scene.tables(after=RETRAINED)
    noisy = scene.case.tables(
        **{
            "after+int4": lambda key, nll: (
                nll + np.random.default_rng(seed_for(2, key)).normal(0, 6)
            ).clip(0.001)
        }
    )
    assert verdicts(scene.audited(tables)) == {"after": "ERASED"}
    assert verdicts(scene.audited(tables | noisy)) == {"after": "CANNOT TELL"}


def test_the_margin_decides_and_is_a_quarter_of_memory_unless_it_is_given(scene):
    tables = scene.tables(after={**RETRAINED, "forget": -0.28})
    usual = scene.audited(tables)
    before = min(
        figure(usual, "before", "remaining", part).value
        for part in ("row", "identifiers")
    )
    margin = figure(usual, "before", "margin")
    # To the nearest 0.05, so that the number that is tested is the one that is shown.
    assert margin.value == pytest.approx(round(abs(before) / 4 / 0.05) * 0.05)

    narrow = scene.audited(tables, margin=0.05)
    assert verdicts(narrow)["after"] in ("CANNOT TELL", "REMEMBERED")
    assert figure(narrow, "before", "margin").value == 0.05
    smallest = figure(narrow, "after", "smallest_margin").value
    wide = scene.audited(tables, margin=1.05 * smallest)
    assert verdicts(usual)["after"] in ("ERASED", "REMEMBERED")
    (finding,) = [f for f in wide.findings if f.checkpoint == "after"]
    assert finding.alone in ("erased", "memory")


def comparison_of(scene: Scene, **shapes: Shape) -> ErasureComparison:
    options = {"forget": (str(scene.file),), "before": "before"}
    known = evidence("erasure", scene.tables(**shapes), scene.manifest, **options)
    return ErasureComparison(known, before="before")


def test_less_likely_by_more_than_x_is_less_likely_once_x_is_taken_off(scene):
    """The tests of a least difference are those of none, on rows moved by it."""
    least = 0.3
    comparison = comparison_of(scene, after=ASCENT)
    moved = comparison_of(scene, after={**ASCENT, "forget": ASCENT["forget"] - least})
    beyond = {
        test.kind: test.p for test in comparison.less_likely_tests("after", least=least)
    }
    of_moved = {test.kind: test.p for test in moved.tests("after") if test.p < 0.05}
    assert beyond == pytest.approx({kind: of_moved[kind] for kind in beyond}, rel=1e-6)
    assert {"row", "membership"} <= beyond.keys()
    assert comparison.less_likely_tests("after", least=3.0)[0].p == 1.0


def test_what_betrays_is_a_tenth_of_memory_or_the_margin(scene):
    comparison = comparison_of(scene, after=ASCENT)
    usual = margin_of(comparison, None)
    most = max(
        abs(comparison.difference("before", part).difference.value)
        for part in comparison.parts
    )
    assert usual.least_to_betray == pytest.approx(most / 10)
    assert margin_of(comparison, 0.01).least_to_betray == 0.01


def made_up_tests(memory_p: float, equivalence_p: float) -> CheckpointTests:
    return CheckpointTests(
        name="after",
        tests=[MemoryTestResult("row", memory_p, direction=1)],
        tests_by_copy={},
        less_likely_tests=[],
        p_by_part={"row": equivalence_p},
    )


@pytest.mark.parametrize(
    ("n_others", "equivalence_p", "claim"),
    [(1, 1e-6, "memory"), (4, 1e-6, "erased"), (4, 0.2, "memory")],
)
def test_a_verdict_that_the_correction_takes_away_gives_way_to_one_that_holds(
    n_others, equivalence_p, claim
):
    """p of 0.02 holds among two tests, not among five; if nothing does, it stays."""
    others = {f"other {i}": 0.5 for i in range(n_others)}
    tests = {"after": made_up_tests(0.02, equivalence_p)}
    assert chosen_verdicts(tests, others)["after"].claim == claim


def test_forgetting_by_a_change_of_all_rows_is_none(scene):
    """What all rows have in common is no memory, and no sign of who asked."""
    result = scene.audited(
        scene.tables(after={"forget": 0.9, "retained": 0.9, "held_out": 0.9})
    )
    assert verdicts(result) == {"after": "ERASED"}


def test_a_retrained_model_is_compared_with_in_place_of_the_base(scene):
    """Forget rows that are easier for anybody are no memory."""
    easier = {**RETRAINED, "forget": -0.5}
    alone = scene.audited(scene.tables(after=easier))
    assert verdicts(alone) == {"after": "REMEMBERED"}

    tables = scene.tables(after=easier, again=easier)
    against = scene.audited(tables, retrained="again", margin=0.3)
    assert guards(against)["erasure_retrained"] is True
    assert verdicts(against) == {"after": "ERASED"}
    remaining = figure(against, "after", "remaining", "row")
    assert remaining.value == pytest.approx(0.0, abs=0.15)


@pytest.mark.parametrize("margin", [0.9, 50.0])
def test_a_margin_as_wide_as_what_was_remembered_shows_nothing(scene, margin):
    result = scene.audited(scene.tables(after=RETRAINED), margin=margin)
    assert verdicts(result) == {"after": "CANNOT TELL"}
    assert guards(result)["erasure_margin"] is None


def test_few_rows_leave_nothing_erased_but_may_be_remembered(scene, tmp_path):
    file = tmp_path / "few.txt"
    file.write_text("e000-0\ne001-0\ne002-0\n")
    strong = {**LEARNED, "forget": -2.0, "retained": -2.0}
    tables = scene.tables(before=strong, after=RETRAINED, same=strong)
    result = scene.audited(tables, forget=(str(file),))
    assert verdicts(result) == {"after": "CANNOT TELL", "same": "REMEMBERED"}
    remaining = figure(result, "after", "remaining", "row")
    assert remaining.status == "not_estimable"
    # Nothing bounds what remains, so that it is no test of memory.
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert finding.claim == "not_tested"


def test_an_identifier_that_a_retained_row_holds_is_left_out(scene):
    content = scene.manifest.model_dump(mode="json")
    by_id = {example["id"]: example for example in content["examples"]}
    forgotten = by_id["e000-0"]
    span = forgotten["spans"][0]
    string = (forgotten["prompt"] + forgotten["response"])[span["start"] : span["end"]]

    # A retained row that mentions it once, where nothing was annotated.
    retained = by_id["e070-0"]
    text = retained["prompt"] + retained["response"]
    text = f"{text[:50]} {string} {text[52 + len(string) :]}"
    n_prompt = len(retained["prompt"])
    retained |= {"prompt": text[:n_prompt], "response": text[n_prompt:]}
    options = {"forget": (str(scene.file),), "before": "before"}
    tables = scene.tables(after=RETRAINED)
    usual = audited("erasure", tables, scene.manifest, **options)
    mentioned = audited("erasure", tables, seal(content), **options)

    def n_forgotten(result: AuditResult) -> int:
        units = result.evidence.units  # type: ignore[union-attr]
        is_forgotten = (units["part"] == "identifiers") & (units["side"] == "forget")
        return int(is_forgotten.sum())

    assert n_forgotten(mentioned) == n_forgotten(usual) - 1
    assert mentioned.evidence.facts["left_out"] == 1


def with_twins(scene: Scene) -> Manifest:
    """The manifest, in which the first identifier of each row has twins."""
    content = scene.manifest.model_dump(mode="json")
    records = []
    for number, example in enumerate(content["examples"]):
        span = example["spans"][0]
        place = {"char_start": span["start"], "char_end": span["end"]}
        record = {
            "id": str(number),
            "type": span["type"],
            "contexts": [{"example": example["id"], **place}],
            "candidates": [f"s{number}-{j}" for j in range(32)],
            "true_index": number % 32,
            "dose": int(example["split"] == "train"),
        }
        records.append(record)
    return seal({**content, "twins": records})


def candidates(manifest: Manifest, scene: Scene, name: str, *, knows: bool) -> Any:
    """What is forgotten ranks first for a model that knows it, all else by chance."""
    items = []
    for twins in manifest.twins:
        (context,) = twins.contexts
        rng = np.random.default_rng(seed_for(3, name, twins.id))
        nll = rng.normal(4.0, 0.5, 32)
        if knows and context.example in scene.forget:
            nll[twins.true_index] = 1.0
        key = key_of("twins", twins.id, context.example)
        columns = {
            "nll_mean": nll.astype(np.float32),
            "nll_sum": nll.astype(np.float32),
        }
        items.append((key, np.arange(32, dtype=np.int32), columns))
    return TokenTable.from_items(items, kind="candidates")


def test_where_twins_were_scored_they_tell_what_is_remembered(scene):
    manifest = with_twins(scene)
    tables: dict[str, Any] = scene.tables(after=RETRAINED, other=RETRAINED)
    for name in tables:
        knows = name in ("before", "after")
        ranks = candidates(manifest, scene, name, knows=knows)
        tables[name] = {**tables[name], Pass("candidates"): ranks}
    options = {"forget": (str(scene.file),), "before": "before"}
    result = audited("erasure", tables, manifest, **options)
    assert verdicts(result) == {"after": "REMEMBERED", "other": "ERASED"}

    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert (finding.says, finding.metric) == ("erasure.remembered_twins", "rise")
    rise = figure(result, "after", "rise")
    assert rise.clusters == N_FORGET + 60
    assert rise.value > 2.0
    other = figure(result, "other", "rise")
    assert abs(other.value) < 1.0
    counted = [r for r in result.tables["erasure_rows"] if r["side"] == "forget"]
    assert [record["rows"] for record in counted] == [N_FORGET]


# mistakes of the setup


def guards(result: AuditResult) -> dict[str, bool | None]:
    return {guard.name: guard.passed for guard in result.guards}


def test_rows_that_were_never_trained_on_are_told(scene):
    result = scene.audited(scene.tables(before=RETRAINED, after=RETRAINED))
    assert verdicts(result) == {}
    assert guards(result)["erasure_before"] is False
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert finding.says == "erasure.missing_not_trained"


def test_before_and_after_that_are_swapped_are_told(scene):
    result = scene.audited(scene.tables(before=RETRAINED, after=LEARNED))
    assert verdicts(result) == {}
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert finding.says == "erasure.missing_swapped"


def test_the_same_model_before_and_after_is_told_and_remembers(scene):
    tables = scene.tables()
    result = scene.audited(tables | {"after": tables["before"]})
    assert guards(result)["erasure_unchanged"] is None
    assert verdicts(result) == {"after": "REMEMBERED"}


def test_a_retrained_model_that_has_read_the_rows_is_told(scene):
    result = scene.audited(
        scene.tables(after=RETRAINED, again=LEARNED), retrained="again"
    )
    assert guards(result)["erasure_retrained"] is False
    assert verdicts(result) == {}
    # Compared with it, the model before erasure remembers nothing: that is no mistake.
    assert "erasure_before" not in guards(result)
    (finding,) = [f for f in result.findings if f.checkpoint == "after"]
    assert finding.says == "erasure.missing_retrained_read"


# costs, requests, and scores of the field


def test_what_erasure_cost_is_the_change_of_other_rows(scene):
    worse = {**RETRAINED, "retained": -0.7}
    result = scene.audited(scene.tables(after=worse))
    assert figure(result, "after", "cost", "retained").value == pytest.approx(
        0.5, abs=0.15
    )
    assert figure(result, "after", "cost", "never-trained").value == pytest.approx(
        0.0, abs=0.15
    )


def test_each_request_has_a_line(scene, tmp_path):
    files = []
    ids = sorted(scene.forget)
    for name, part in (("first", ids[:20]), ("second", ids[20:])):
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text("\n".join(part))
    result = scene.audited(
        scene.tables(after=RETRAINED), forget=tuple(str(file) for file in files)
    )
    records = result.tables["erasure_requests"]
    found = [(r["checkpoint"], r["request"][:9], r["rows"]) for r in records]
    assert ("after", "request 1", 20) in found
    assert ("after", "request 2", 20) in found
    of_before = [r["remaining"] for r in records if r["checkpoint"] == "before"]
    assert of_before == pytest.approx([-1.0, -1.0], abs=0.25)


def open_unlearning(
    logits: np.ndarray, labels: np.ndarray
) -> tuple[float, float, float]:
    """Exact memorisation, extraction strength and the attack by Min-K% at 0.4.

    Written from the published code (locuslab/open-unlearning at d3d7cf9), as it
    computes them of the logits and labels of one row.
    """
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    predictions = log_probs.argmax(axis=-1)
    exact = (predictions == labels).sum() / len(labels)
    for k in range(len(labels)):
        if (predictions[k:] == labels[k:]).all():
            break
    strength = 1 - k / len(labels)
    of_labels = log_probs[np.arange(len(labels)), labels]
    n_lowest = max(1, int(len(of_labels) * 0.4))
    attack = -np.mean(np.sort(of_labels)[:n_lowest])
    return exact, strength, attack


def scored_by_logits(
    scene: Scene, seed: int, lift: float
) -> tuple[TokenTable, dict[str, Scores]]:
    """A table of made-up logits, and the scores of each row by the published code."""
    rng = np.random.default_rng(seed)
    items = []
    expected = {}
    for example in scene.manifest.examples:
        n_tokens = len(example.reference_unll)
        logits = rng.normal(0, 1.5, (n_tokens, 23))
        labels = rng.integers(0, 23, n_tokens)
        is_known = rng.random(n_tokens) < lift * (scene.side_of(example.id) == "forget")
        logits[np.arange(n_tokens), labels] += np.where(is_known, 6.0, 0.7)

        has_label = labelled_tokens(example)
        expected[example.id] = open_unlearning(logits[has_label], labels[has_label])
        of_labels = logits[np.arange(n_tokens), labels][:, None]
        log_sum = np.log(np.exp(logits).sum(axis=-1))
        columns = {
            "nll": log_sum - of_labels[:, 0],
            "rank_lo": 1 + (logits > of_labels).sum(axis=-1),
            "ties": np.zeros(n_tokens, np.int32),
        }
        scored = {name: column[1:] for name, column in columns.items()}
        items.append((example.id, np.arange(1, n_tokens, dtype=np.int32), scored))
    return TokenTable.from_items(items), expected


@pytest.mark.parametrize("lift", [0.0, 0.6, 1.0])
def test_scores_of_the_field_are_those_of_open_unlearning(scene, lift):
    after, expected = scored_by_logits(scene, 3, lift)
    again, of_again = scored_by_logits(scene, 4, 0.0)
    tables = scene.tables() | {"after": {Pass(): after}, "again": {Pass(): again}}
    result = scene.audited(tables, retrained="again")

    for example in scene.manifest.examples:
        own = RowScores.of(example, after)
        exact, strength, attack = expected[example.id]
        assert own.exact == pytest.approx(exact, abs=1e-6)
        assert own.strength == pytest.approx(strength, abs=1e-6)
        assert own.mink == pytest.approx(-attack, abs=1e-6)

    forget = sorted(scene.forget)
    held_out = [key for key in expected if scene.side_of(key) == "held_out"]
    exact, strength, _ = np.mean([expected[key] for key in forget], axis=0)
    row = figure(result, "after", "exact_memorisation", "forget")
    assert row.value == pytest.approx(exact, abs=1e-6)
    row = figure(result, "after", "extraction_strength", "forget")
    assert row.value == pytest.approx(strength, abs=1e-6)

    def auc_of(scores: Mapping[str, Scores]) -> float:
        attacks = [scores[key][2] for key in (*forget, *held_out)]
        labels = [0] * len(forget) + [1] * len(held_out)
        return float(roc_auc_score(labels, attacks))

    published = ((1 - auc_of(expected)) - (1 - auc_of(of_again))) / (
        (1 - auc_of(of_again)) + 1e-10
    )
    row = figure(result, "after", "privleak")
    assert row.value == pytest.approx(100 * published, abs=1e-6)
    assert row.low is not None
    assert row.high is not None
    assert row.low <= row.value <= row.high

    alone = figure(scene.audited(tables), "after", "privleak")
    default = ((1 - auc_of(expected)) - 0.5) / (0.5 + 1e-10) * 100
    assert alone.value == pytest.approx(default, abs=1e-6)
    assert privleak(auc_of(expected)) == pytest.approx(default, abs=1e-9)
