"""Tasks of two labels from folders of labelled rows, and which pairs of labels differ.

A source is a folder with ``train.jsonl`` and ``test.jsonl``, whose rows have ``id``,
``text`` and ``label``.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retention.design import StudyRules, TwoLabelTask
from spark_audit.data.examples import Example, Split, write_examples
from spark_audit.data.injection import inject
from spark_audit.errors import InputError

INJECTION_SEED = 0

HELD_BACK = 40
"""Train rows of a label, the last ones, on which a pair of labels is judged."""

LEAST_TOLD_APART = 0.8
"""Share of these that naive Bayes must answer rightly, for the pair to be a task."""

_WORD = re.compile(r"[a-z']+")


def source_texts(
    folder: Path, split: Split, *, characters: int
) -> dict[str, list[tuple[str, str]]]:
    """Return the (id, text) of a source's rows by label, in the order of the file.

    Raises
    ------
    InputError
        If the file is missing, or a row has no id, text or label.
    """
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise InputError(
            "is missing",
            where=str(path),
            fix="give with --data the folder of the sources' folders",
        )

    texts_by_label = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                row_id, text, label = row["id"], row["text"], row["label"]
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    "is no row with id, text and label", where=f"{path}, line {number}"
                ) from None
            texts_by_label[str(label)].append((str(row_id), text[:characters].strip()))
    return dict(texts_by_label)


def task_examples(data: Path, task: TwoLabelTask, rules: StudyRules) -> list[Example]:
    """Return a task's rows: the first of each label, both labels as many.

    Raises
    ------
    InputError
        If the source lacks a label.
    """
    examples = []
    most_rows: dict[Split, int] = {"train": rules.train_rows, "test": rules.test_rows}
    for split, most in most_rows.items():
        texts_by_label = source_texts(
            data / task.source, split, characters=rules.characters
        )
        for label in task.words:
            if label not in texts_by_label:
                raise InputError(
                    f"has no row with the label {label!r}",
                    where=str(data / task.source / f"{split}.jsonl"),
                )

        n_rows = min(most, *(len(texts_by_label[label]) for label in task.words))
        for label, word in task.words.items():
            for row_id, text in texts_by_label[label][:n_rows]:
                examples.append(
                    Example(
                        id=f"{task.name}-{row_id}",
                        task=task.name,
                        prompt=task.prompt.replace("{text}", text),
                        response=f" {word}",
                        split=split,
                        source_id=f"{task.name}-{row_id}",
                    )
                )
    return examples


def write_tasks(data: Path, folder: Path, rules: StudyRules) -> list[Path]:
    """Write each task's rows with identifiers in them, and return the files."""
    examples = []
    for task in rules.tasks:
        examples.extend(task_examples(data, task, rules))
    examples, _ = inject(
        examples, seed=INJECTION_SEED, rate=rules.identifier_rate, canaries=0
    )

    files = []
    for task in rules.tasks:
        path = folder / f"{task.name}.jsonl"
        write_examples(path, [row for row in examples if row.task == task.name])
        files.append(path)
    return files


@dataclass(frozen=True)
class LabelPair:
    """Two labels of a source, and how well words tell them apart.

    Attributes
    ----------
    told_apart
        Share of held-back train rows that naive Bayes answers rightly, mean of both
        labels.
    is_task
        Whether it is among the chosen pairs.
    """

    source: str
    labels: tuple[str, str]
    told_apart: float
    is_task: bool = False


def label_pairs(
    data: Path, sources: Sequence[str], rules: StudyRules
) -> list[LabelPair]:
    """Return all pairs of labels by source, best first, with those that are tasks.

    No model is asked and no test row is read. In each source the pair that naive Bayes
    tells apart best is a task, then the best of the labels that are left, as long as
    they reach :data:`LEAST_TOLD_APART`.
    """
    pairs = []
    for source in sources:
        texts_by_label = source_texts(
            data / source, "train", characters=rules.characters
        )
        of_source = []
        for labels in itertools.combinations(sorted(texts_by_label), 2):
            texts = [[text for _, text in texts_by_label[label]] for label in labels]
            of_source.append(LabelPair(source, labels, told_apart(texts[0], texts[1])))
        of_source.sort(key=lambda pair: (-pair.told_apart, pair.labels))

        used: set[str] = set()
        for pair in of_source:
            is_free = used.isdisjoint(pair.labels)
            is_task = is_free and pair.told_apart >= LEAST_TOLD_APART
            if is_task:
                used.update(pair.labels)
            pairs.append(
                LabelPair(source, pair.labels, pair.told_apart, is_task=is_task)
            )
    return pairs


def told_apart(first: Sequence[str], second: Sequence[str]) -> float:
    """Return how often naive Bayes names the right label, mean of two labels.

    The last :data:`HELD_BACK` texts of each label are answered after reading the rest;
    a tie is an error. It counts in how many texts a word stands, plus one, and leaves
    aside how common the labels are.

    Examples
    --------
    >>> first = ["the team won", "a team lost"] * 40
    >>> told_apart(first, ["the bank paid", "a bank lent"] * 40)
    1.0
    """
    read = (first[:-HELD_BACK], second[:-HELD_BACK])
    counts = []
    for texts in read:
        counts.append(Counter(word for text in texts for word in _words(text)))

    evidence = {}  # word -> log of how much likelier it is with the first label
    for word in counts[0].keys() | counts[1].keys():
        rates = [(counts[i][word] + 1) / (len(read[i]) + 2) for i in (0, 1)]
        evidence[word] = math.log(rates[0] / rates[1])

    def score(text: str) -> float:
        return sum(evidence.get(word, 0.0) for word in _words(text))

    right_of_first = np.mean([score(text) > 0 for text in first[-HELD_BACK:]])
    right_of_second = np.mean([score(text) < 0 for text in second[-HELD_BACK:]])
    # Without rounding, equal pairs would differ in their last bit.
    return round(float(right_of_first + right_of_second) / 2, 6)


def _words(text: str) -> list[str]:
    """Return the distinct words of a text, sorted, so that sums repeat to the bit."""
    return sorted(set(_WORD.findall(text.lower())))
