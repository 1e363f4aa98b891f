"""The utility audit: accuracy of every stage of a series."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from audited import conclude, evidence, plan, the_one, utility
from made_reports import made_report

from spark_audit.audits.base import Context
from spark_audit.audits.utility.audit import NO_TEST_ROW
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import key_of, task_labels
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Row
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.accuracy import bwt

GENERATE = Pass("generate")
CANDIDATES = Pass("candidates")
TASKS = ("yelp", "fomc", "agnews")
LABELS = (" Good", " Bad", " So so")

Right = Callable[[str, str], bool]


@pytest.fixture
def made(make_case) -> Callable[..., Manifest]:
    """``made(tests=60, rows=1, change=None)``: three tasks with two test rows a source.

    Two thirds of a task's responses are `` Good``.
    """

    def make(
        tests: int = 60, rows: int = 1, change: Callable[[dict[str, Any]], None] = id
    ) -> Manifest:
        case = make_case(sources=6, tests=tests, rows=rows)
        content = case.manifest.model_dump(mode="json")
        for i, example in enumerate(content["examples"]):
            example["task"] = TASKS[i // rows % 3]
            example["response"] = LABELS[(i // 3) % 3 and (i // 9) % 3]
            change(example)
        return seal(content)

    return make


def answered(manifest: Manifest, right: Right) -> dict[Pass, TokenTable]:
    """A checkpoint that is right where ``right(id, task)`` says so."""
    return {
        GENERATE: TokenTable.from_items(
            [
                (
                    example.id,
                    np.zeros(1, np.int32),
                    {
                        "strict": np.zeros(1, np.int8),
                        "normalised": np.full(
                            1, right(example.id, example.task), np.int8
                        ),
                        "stop": np.zeros(1, np.int8),
                        "n_tokens": np.ones(1, np.int32),
                    },
                )
                for example in manifest.examples
                if example.split == "test"
            ]
        )
    }


def share(p: dict[str, float], seed: int = 0) -> Right:
    """Right with a probability by task; the same example meets the same luck."""

    def right(key: str, task: str) -> bool:
        luck = np.random.default_rng([seed, int(key[1:4]), int(key[5:])]).random()
        return bool(luck < p[task])

    return right


def series(
    manifest: Manifest, name: str, stages: Sequence[dict[str, float]]
) -> dict[str, dict[Pass, TokenTable]]:
    return {
        f"{name}@{k}": answered(manifest, share(p)) for k, p in enumerate(stages, 1)
    }


LEARNING = (
    {"yelp": 0.9, "fomc": 0.3, "agnews": 0.3},
    {"yelp": 0.7, "fomc": 0.8, "agnews": 0.3},
    {"yelp": 0.5, "fomc": 0.7, "agnews": 0.9},
)
STEADY = (LEARNING[0], LEARNING[1] | {"yelp": 0.9}, dict.fromkeys(TASKS, 0.9))


def find(rows: Sequence[Row], **wanted: str) -> Any:
    return the_one(rows, **{"group": "pooled", "variant": "", **wanted})


def matrix_of(result: AuditResult, name: str) -> np.ndarray:
    records = [r for r in result.tables["accuracy_matrix"] if r["checkpoint"] == name]
    return np.array([[r[task] for task in TASKS] for r in records])


@pytest.mark.parametrize("name", ["stage", "after", "checkpoint", "accuracy"])
def test_a_task_may_have_the_name_of_a_column_of_the_matrix(made, name):
    """Its accuracy takes no place of another column, and its name is whole."""

    def change(example: dict[str, Any]) -> None:
        if example["task"] == "fomc":
            example["task"] = name

    stages = [{name if t == "fomc" else t: p for t, p in s.items()} for s in LEARNING]
    manifest = made(change=change)
    result = utility(series(manifest, "x", stages), manifest)
    report = made_report("x", tables=result.tables)
    for frame in (
        result.to_frame("accuracy_matrix"),
        report.to_frame("accuracy_matrix"),
    ):
        assert {*frame["checkpoint"]} == {"x"}
        assert {*frame["task"]} == {"yelp", name, "agnews"}
        of_task = frame[frame["task"] == name]
        assert [*of_task["stage"]] == [1, 2, 3]
        assert [*of_task["after"]] == ["yelp", name, "agnews"]

        # The figures are those of the same answers under another name.
        usual = made()
        same = utility(series(usual, "x", LEARNING), usual).to_frame("accuracy_matrix")
        assert [*of_task["accuracy"]] == [*same[same["task"] == "fomc"]["accuracy"]]


# --- what is asked --------------------------------------------------------------------


def test_only_test_rows_without_a_canary_are_asked(made):
    def change(example: dict[str, Any]) -> None:
        if example["id"] == "e010-0":
            example["canary_id"] = "c0"

    manifest = made(change=change)
    keys = plan("utility", manifest)[GENERATE]
    assert set(plan("utility", manifest)) == {GENERATE}
    assert keys == sorted(keys)
    assert len(keys) == 59
    assert "e010-0" not in keys
    assert all(manifest.by_id[key].split == "test" for key in keys)
    by_label = plan("utility", manifest, scorer="likelihood")
    assert by_label == {CANDIDATES: [key_of("labels", key) for key in keys]}


def test_an_order_may_leave_tasks_out(made):
    manifest = made()
    keys = plan("utility", manifest, order="agnews, yelp")[GENERATE]
    assert {manifest.by_id[key].task for key in keys} == {"agnews", "yelp"}
    with pytest.raises(InputError, match="'imdb'.*yelp, fomc, agnews"):
        plan("utility", manifest, order="imdb")


def test_train_rows_never_stand_in_for_test_rows(made):
    def change(example: dict[str, Any]) -> None:
        if example["task"] == "fomc":
            example["split"] = "train"

    manifest = made(change=change)
    result = utility(series(manifest, "x", LEARNING), manifest)
    for metric in ("last", "avg", "bwt", "forgetting", "learning_accuracy"):
        row = find(result.results, metric=metric)
        assert row.status == "not_estimable"
        assert row.note == f"fomc {NO_TEST_ROW}"
    absent = find(result.results, metric="accuracy", variant="3", group="task:fomc")
    assert absent.status == "not_estimable"
    accuracy = find(result.results, metric="accuracy", variant="3", group="task:yelp")
    assert accuracy.value is not None
    assert result.tables["accuracy_matrix"][0]["fomc"] is None


def test_evidence_of_a_task_without_a_question_is_read_again(made, tmp_path):
    def change(example: dict[str, Any]) -> None:
        if example["task"] == "fomc":
            example["split"] = "train"

    manifest = made(change=change)
    written = evidence("utility", series(manifest, "x", LEARNING), manifest)
    written.write(tmp_path / "utility.parquet")
    read = Evidence.read(tmp_path / "utility.parquet")
    assert (read.values["correct"] == -1).any()
    np.testing.assert_array_equal(read.values["correct"], written.values["correct"])


# --- figures --------------------------------------------------------------------------


def test_chance_is_the_commonest_response(made):
    manifest = made(tests=90)
    result = utility(series(manifest, "x", LEARNING), manifest)
    chances = []
    for task in TASKS:
        responses = [
            e.response
            for e in manifest.examples
            if e.task == task and e.split == "test"
        ]
        chances.append(max(map(responses.count, responses)) / len(responses))
        row = find(result.results, metric="accuracy", variant="1", group=f"task:{task}")
        assert row.no_effect == pytest.approx(chances[-1])
    assert max(chances) > 0.4
    assert find(result.results, metric="last").no_effect == pytest.approx(
        np.mean(chances)
    )
    assert find(result.results, metric="bwt").no_effect == 0.0


def test_stages_are_sorted_by_number(made):
    manifest = made(tests=60)
    stages = [dict.fromkeys(TASKS, 0.05 * k) for k in range(1, 12)]
    tables = series(manifest, "x", stages)
    tables = {name: tables[name] for name in sorted(tables)}
    assert list(tables)[1] == "x@10"
    result = utility(tables, manifest)
    matrix = matrix_of(result, "x")
    assert (np.diff(matrix.mean(axis=1)) >= 0).all()
    assert find(result.results, metric="last").value == pytest.approx(matrix[10].mean())
    assert "after" not in result.tables["accuracy_matrix"][0]


def test_the_order_decides_what_was_learned_when(made):
    manifest = made(tests=90)
    tables = series(manifest, "x", LEARNING)
    default = utility(tables, manifest)
    other_order = utility(tables, manifest, order="agnews,fomc,yelp")
    assert default.settings["order"] == "yelp,fomc,agnews"
    matrix = matrix_of(default, "x")
    turned = find(other_order.results, metric="bwt").value
    assert turned == pytest.approx(float(bwt(matrix[:, ::-1])))
    assert turned != pytest.approx(find(default.results, metric="bwt").value)
    assert find(other_order.results, metric="last").value == pytest.approx(
        find(default.results, metric="last").value
    )


# --- scorers --------------------------------------------------------------------------


def test_strict_reads_its_own_column(made):
    manifest = made(tests=60)
    tables = series(manifest, "x", LEARNING)
    assert (
        find(utility(tables, manifest, scorer="strict").results, metric="last").value
        == 0
    )


def test_likelihood_takes_the_likeliest_label(made):
    manifest = made(tests=60)
    labels = task_labels(manifest)
    right = share({"yelp": 0.9, "fomc": 0.6, "agnews": 0.2})
    items = []
    expected = []
    for key in plan("utility", manifest, scorer="likelihood")[CANDIDATES]:
        example = manifest.by_id[key.removeprefix("labels:")]
        candidate_labels = labels[example.task]
        true = candidate_labels.index(example.response)
        hit = right(example.id, example.task)
        nll = np.full(len(candidate_labels), 2.0, np.float32)
        nll[true if hit else (true + 1) % len(candidate_labels)] = 1.0
        positions = np.arange(len(candidate_labels), dtype=np.int32)
        items.append((key, positions, {"nll_sum": nll, "nll_mean": nll[::-1].copy()}))
        expected.append((example.task, hit))
    table = TokenTable.from_items(items)
    result = utility({"x": {CANDIDATES: table}}, manifest, scorer="likelihood")
    for task in TASKS:
        hits = [hit for of, hit in expected if of == task]
        row = find(result.results, metric="accuracy", variant="1", group=f"task:{task}")
        assert row.value == pytest.approx(np.mean(hits))


def test_free_text_has_no_likelihood(made):
    def change(example: dict[str, Any]) -> None:
        if example["task"] == "fomc":
            example["response"] = f" {example['id']}"

    manifest = made(tests=210, change=change)
    keys = plan("utility", manifest, scorer="likelihood")[CANDIDATES]
    assert not any(":e" in k and manifest.by_id[k[7:]].task == "fomc" for k in keys)
    result = utility({"x": {}}, manifest, scorer="likelihood")
    assert result.results[0].status == "not_estimable"
    assert len(plan("utility", manifest)[GENERATE]) == 210


def test_labels_that_the_scorer_cannot_tell_apart(made):
    labels = (" one!", " One", " ")

    def change(example: dict[str, Any]) -> None:
        if example["task"] == "fomc":
            example["response"] = labels[int(example["id"][1:4]) // 3 % 3]

    manifest = made(change=change)
    tables = series(manifest, "x", LEARNING)
    guards = {g.name: g for g in utility(tables, manifest).guards}
    assert guards["distinct labels"].passed is None
    strict = {g.name for g in utility(tables, manifest, scorer="strict").guards}
    assert "distinct labels" not in strict


# --- contrasts ------------------------------------------------------------------------


def test_checkpoints_that_answer_nothing_are_named(made):
    """At most at random right, half of the rest stopped at once."""
    manifest = made(tests=60)

    def table(stopped: float, n_tokens: int, stop: int) -> dict[Pass, TokenTable]:
        ids = [e.id for e in manifest.examples if e.split == "test"]
        items = []
        for i, key in enumerate(ids):
            at_once = i < stopped * len(ids)
            columns = {
                "strict": np.zeros(1, np.int8),
                "normalised": np.zeros(1, np.int8),
                "stop": np.full(1, stop if at_once else 0, np.int8),
                "n_tokens": np.full(1, n_tokens if at_once else 3, np.int32),
            }
            items.append((key, np.zeros(1, np.int32), columns))
        return {GENERATE: TokenTable.from_items(items)}

    tables = {
        "eos": table(0.6, 0, 0),
        "newline": table(0.9, 1, 1),
        "half": table(0.5, 0, 0),
        "short": table(1.0, 1, 0),
    }
    result = utility(tables, manifest)
    guards = {g.checkpoint: g for g in result.guards if g.name == "empty answers"}
    assert set(guards) == {"eos", "newline"}
    assert {g.passed for g in guards.values()} == {None}


def test_series_that_were_asked_otherwise_are_not_compared(made):
    manifest = made(tests=60)
    strict_evidence = evidence(
        "utility", series(manifest, "x", LEARNING), manifest, scorer="strict"
    )
    other_evidence = evidence("utility", series(manifest, "y", STEADY), manifest)
    united = Evidence.united([strict_evidence, other_evidence])
    result = conclude("utility", united, Context({"y": "x"}, replicates=200))
    assert all(c.status == "not_estimable" for c in result.contrasts)


def test_a_contrast_is_the_difference_of_both_series_with_its_test(made):
    manifest = made(tests=60)
    tables = series(manifest, "x", LEARNING) | series(manifest, "y", STEADY)
    series_evidence = evidence("utility", tables, manifest)
    result = conclude("utility", series_evidence, Context({"y": "x"}, replicates=200))
    for metric in ("last", "avg", "bwt"):
        contrast = find(result.contrasts, metric=metric, checkpoint="y")
        levels = {
            name: find(result.results, metric=metric, checkpoint=name).value
            for name in ("x", "y")
        }
        assert contrast.value == pytest.approx(levels["y"] - levels["x"])
        assert contrast.baseline == "x"
        assert contrast.low <= contrast.value <= contrast.high
        assert 0 < contrast.p <= 1
    changes = [f for f in result.findings if f.says.startswith("utility.change_")]
    assert [change.checkpoint for change in changes] == ["y"]


def as_chat_row(example: dict[str, Any]) -> None:
    """The response becomes a message, behind which a template writes its end."""
    turn_end = len(example["prompt"] + example["response"])
    turn = {"start": len(example["prompt"]), "end": turn_end, "role": "assistant"}
    example["response"] += "<|end|>"
    n_tokens = len(example["reference_unll"])
    example["training_input"] = {
        "special_tokens": "in_text",
        "turns": [turn],
        "supervised": [],
        "supervised_tokens": [],
        "max_length": None,
        "truncation": "end",
        "fed_tokens": [0, n_tokens],
        "fed_text": [0, turn_end + len("<|end|>")],
        "token_ids": None,
    }


def test_a_row_of_chat_data_is_judged_by_its_last_message_without_the_template(made):
    def silent(example: dict[str, Any]) -> None:
        example["response"] = ""
        as_chat_row(example)
        user = {"start": 0, "end": len(example["prompt"]), "role": "user"}
        example["training_input"]["turns"] = [user]

    plain = made()
    chat = made(change=as_chat_row)
    keys = plan("utility", plain, scorer="likelihood")[CANDIDATES]
    assert plan("utility", chat, scorer="likelihood")[CANDIDATES] == keys
    results = []
    for manifest in (plain, chat):
        # Of each task's labels, sorted, the second is likeliest: " Good".
        nll = {"nll_sum": np.array([2.0, 1.0, 3.0], np.float32)}
        positions = np.arange(3, dtype=np.int32)
        table = TokenTable.from_items([(key, positions, nll) for key in keys])
        tables = {"x": {CANDIDATES: table}}
        results.append(utility(tables, manifest, scorer="likelihood"))
    assert results[1].results == results[0].results
    # A message without text is no question, though the template ends it.
    assert GENERATE not in plan("utility", made(change=silent))
