"""The retention study: its tasks, when ER has learned them, and what is judged then."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from retention.accuracies import COLUMNS, read_accuracies
from retention.design import TwoLabelTask, read_rules
from retention.judging import decisions, learning_of, seed_values
from retention.pages import page
from retention.tasks import HELD_BACK, label_pairs, task_examples

from spark_audit.errors import InputError

RULES = read_rules()
KEPT = Path(__file__).parents[2] / "reports" / "claims" / "retention"
DESIGNS = Path(__file__).parents[2] / "benchmarks" / "retention"
DESIGN = RULES.designs[0]
TASKS = [task.name for task in RULES.tasks]


def write_source(folder: Path, texts_by_label: dict[str, list[str]]) -> None:
    """Write the same rows as train and test rows of a source, labels in turn."""
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        lines = []
        for label, texts in texts_by_label.items():
            for number, text in enumerate(texts):
                row = {"id": f"{split}-{label}-{number}", "text": text, "label": label}
                lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def accuracies(
    losses: dict[str, float], *, learned: float = 0.9, seeds: int = 3
) -> pd.DataFrame:
    """Return made-up accuracies of systems.

    Parameters
    ----------
    losses
        System -> what it loses of each earlier task at each later stage.
    learned
        Accuracy right after a task; a seed has 0.01 more than the one before.
    """
    lines = []
    for system, loss in losses.items():
        for seed in range(seeds):
            for stage, after in enumerate(TASKS):
                for age, task in enumerate(reversed(TASKS[: stage + 1])):
                    value = learned + 0.01 * seed - loss * age
                    lines.append(
                        (DESIGN.name, system, seed, stage + 1, after, task, value)
                    )
    return pd.DataFrame(lines, columns=list(COLUMNS))


def test_a_task_has_as_many_rows_of_both_labels_and_words_for_answers(tmp_path):
    task = TwoLabelTask(name="t", source="s", words={"A": "good", "B": "bad"})
    texts = {"A": ["a" * 99] * 5, "B": ["b"] * 3, "C": ["c"] * 9}
    write_source(tmp_path / "s", texts)
    rules = replace(RULES, characters=10, train_rows=4, test_rows=2)

    examples = task_examples(tmp_path, task, rules)

    answers = [(row.split, row.response.strip()) for row in examples]
    assert pd.Series(answers).value_counts().to_dict() == {
        ("train", "good"): 3,
        ("train", "bad"): 3,
        ("test", "good"): 2,
        ("test", "bad"): 2,
    }
    assert len({row.id for row in examples}) == len(examples)
    assert "a" * 10 in examples[0].prompt
    assert "a" * 11 not in examples[0].prompt


def test_a_source_without_a_label_or_a_file_is_refused(tmp_path):
    write_source(tmp_path / "s", {"A": ["a"]})
    for source in ("s", "elsewhere"):
        task = TwoLabelTask(name="t", source=source, words={"A": "good", "B": "bad"})
        with pytest.raises(InputError):
            task_examples(tmp_path, task, RULES)


def test_pairs_of_labels_that_words_tell_apart_are_tasks_without_sharing_a_label(
    tmp_path,
):
    n_texts = 2 * HELD_BACK
    half = ["the ball the team", "the bank the share"] * HELD_BACK
    texts = {
        "ball": ["the ball"] * n_texts,
        "bank": ["the bank"] * n_texts,
        "mixed": half,
        "other": half,
    }
    write_source(tmp_path / "s", texts)

    pairs = label_pairs(tmp_path, ["s"], RULES)

    by_labels = {pair.labels: pair for pair in pairs}
    assert by_labels["ball", "bank"].told_apart == 1.0
    assert by_labels["mixed", "other"].told_apart <= 0.5
    assert [pair.labels for pair in pairs if pair.is_task] == [("ball", "bank")]


@pytest.mark.parametrize(("n_missed", "is_learned"), [(0, True), (1, True), (2, False)])
def test_er_learns_where_so_many_tasks_reach_the_bar_in_every_seed(
    n_missed, is_learned
):
    """One seed below is enough to fail."""
    table = accuracies({"er": 0.0})
    is_right_after = (table["after"] == table["task"]) & (table["seed"] == 1)
    is_missed = is_right_after & table["task"].isin(TASKS[:n_missed])
    table.loc[is_missed, "accuracy"] = RULES.bar(0.5) - 0.01
    assert RULES.tasks_learned == len(TASKS) - 1
    assert learning_of(table, DESIGN, RULES).holds == is_learned


def test_nothing_is_judged_where_er_learned_nothing_or_nothing_was_forgotten():
    def verdicts(table: pd.DataFrame) -> dict[str, str]:
        judged = decisions(table, DESIGN, RULES)
        return {decision.claim.id: decision.verdict for decision in judged}

    losses = {"er": 0.0, "spark": 0.01, "sd-replay": 0.2, "seqft": 0.2}
    table = accuracies(losses)
    judged = verdicts(table)
    # Means over three earlier tasks that are 1, 2 and 3 stages old, of four tasks.
    assert judged["last-er"] == "holds"
    assert judged["last-sd-replay"] == "fails"
    assert judged["seqft-forgets"] == "holds"

    unlearned = verdicts(accuracies(losses, learned=0.6))
    assert set(unlearned.values()) == {"not detectable here"}

    remembered = verdicts(accuracies(losses | {"seqft": 0.0}))
    assert remembered["last-er"] == "not detectable here"
    assert remembered["seqft-forgets"] == "fails"


@pytest.mark.parametrize(
    "content",
    [
        "# A page\n\nof words, and\nof, more, words\n",
        "system,seed\ner,0\n",
        ",".join(COLUMNS) + "\nas-it-is,er,first,1,a,a,0.5\n",
        ",".join(COLUMNS) + "\nas-it-is,er,0,1,a,a,good\n",
        "",
        b"\xff\xfe\x00",
    ],
    ids=["prose", "other columns", "seed in words", "words", "nothing", "bytes"],
)
def test_a_file_that_is_no_table_of_accuracies_is_refused(content, tmp_path):
    path = tmp_path / "accuracy.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError):
        read_accuracies(path)


def test_last_and_bwt_are_those_of_the_accuracies():
    table = accuracies({"er": 0.1}, seeds=1)
    for metric, value in {"last": 0.9 - 0.1 * 6 / 4, "bwt": -0.1 * 6 / 3}.items():
        (found,) = seed_values(
            table, design=DESIGN.name, system="er", metric=metric
        ).values()
        assert found == pytest.approx(value)


@pytest.mark.parametrize(
    ("study", "design"), [("retention", "design.toml"), ("question", "question.toml")]
)
def test_the_kept_page_is_what_the_kept_accuracies_say(study, design):
    folder = KEPT.parent / study
    rules = read_rules(DESIGNS / design)
    kept = (folder / "retention.md").read_text(encoding="utf-8")
    assert page(read_accuracies(folder / "accuracy.csv"), rules) == kept
