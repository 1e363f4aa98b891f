"""The rows of this audit as tasks of lm-evaluation-harness, to compare accuracies.

Of each task there is one that writes its answers, as the scorer ``normalised`` counts
them, and one that chooses the likeliest label, as the scorer ``likelihood`` does: a
YAML file each, and the rows as Parquet (of JSON, ``datasets`` makes dates of answers
that look like dates). Tested with version 0.4.13 of the harness.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.audits.utility.series import asked_rows, tasks_in_order
from spark_audit.data.examples import check_task
from spark_audit.errors import InputError, visible
from spark_audit.files import cannot_write, write_atomically, write_text
from spark_audit.manifest.file import original
from spark_audit.manifest.hidden import Secrets, hidden_ranges, masked
from spark_audit.manifest.items import MORE_TOKENS, task_labels
from spark_audit.manifest.schema import Manifest, ManifestExample

WRITTEN, CHOSEN = "spark_audit.utility.", "spark_audit.likelihood."
"""What tasks are called, before their names here."""
WHOLE = r"(?s)^\s*(.*?)\s*$"
"""What is compared of an answer: all but the white space around it."""


@dataclass(frozen=True)
class Exported:
    """What was written, and what a reader must know of it."""

    tasks: tuple[str, ...]
    rows: int
    notes: tuple[str, ...]


def write_tasks(
    manifest: Manifest, folder: Path, *, show_text: bool = False
) -> Exported:
    """Write the tasks of a manifest, readable by the owner only.

    Without ``show_text`` identifiers are hidden (``[NAME]``), as far as annotation and
    rules know them: an accuracy is one of other prompts then, and that is noted.

    Raises
    ------
    InputError
        If the manifest was redacted, none of its rows can be asked, or other things
        stand in the folder; earlier tasks there are taken away.
    """
    original(manifest)
    earlier = _earlier(folder)
    secrets = None if show_text else Secrets.of(manifest)
    labels, longest = task_labels(manifest), _longest(manifest)
    made, notes, rows, changed = list[str](), list[str](), 0, 0
    files: list[Callable[[], object]] = []
    for task in tasks_in_order(manifest, None):
        asked, reasons = asked_rows(manifest, [task], "normalised")
        if not asked:
            notes.append(f"task {visible(task)} {reasons[task]}: it is left out")
            continue
        check_task(task, where=f"manifest {manifest.name!r}: task")
        wrong = _no_labels(manifest, task, labels.get(task), secrets)
        choices = [] if wrong else labels[task]
        table = [_row(n, row, choices, secrets) for n, row in enumerate(asked)]
        rows += len(table)
        changed += sum(row["hidden"] for row in table)
        kinds: dict[str, Mapping[str, Any]] = {}
        if any("\n" in row["answer"] for row in table):
            notes.append(
                f"task {visible(task)}: a response has several lines, at whose end the "
                "harness cannot stop: no task writes its answers"
            )
        else:
            kinds[WRITTEN + task] = _written(longest[task])
        if wrong:
            notes.append(f"task {visible(task)}: {wrong}: no task chooses a label")
        else:
            kinds[CHOSEN + task] = _LIKELIEST
        path = folder / f"{WRITTEN}{task}.parquet"
        if kinds:
            files.append(partial(_write_rows, path, table))
        for kind, settings in kinds.items():
            files.append(partial(_write_task, kind, path, settings, manifest))
            made.append(kind)
    if not made:
        raise InputError("; ".join(notes), where=f"manifest {manifest.name!r}")
    try:
        for path in earlier:
            path.unlink()
    except OSError as error:
        raise cannot_write(folder, error) from error
    for write in files:
        write()
    if changed:
        notes.append(
            f"{changed} of {rows} rows have identifiers hidden, so that accuracies are "
            "not those of the audit's prompts; --show-text leaves them"
        )
    return Exported(tuple(made), rows, tuple(notes))


def _earlier(folder: Path) -> list[Path]:
    """What an earlier export left in a folder that is ours alone."""
    if not os.path.lexists(folder):
        return []
    try:
        found = sorted(path for path in folder.iterdir())
    except OSError as error:
        raise cannot_write(folder, error) from error
    own = [path for path in found if _is_task(path)]
    for path in found:
        if path not in own and not path.name.startswith(".spark-"):
            fix = "give a folder of its own"
            what = f"holds something else than tasks ({visible(path.name)})"
            raise InputError(what, where=str(folder), fix=fix)
    return own


def _is_task(path: Path) -> bool:
    named = path.name.startswith((WRITTEN, CHOSEN))
    return named and path.suffix in (".yaml", ".parquet") and path.is_file()


def _row(
    number: int,
    example: ManifestExample,
    labels: Sequence[str],
    secrets: Secrets | None,
) -> dict[str, Any]:
    """A row of the file; blanks at the prompt's end go to the labels.

    Ids are the data's own, and may hold anything: without ``show_text``, numbers.

    The harness tokenises a prompt alone, where they would be a token of their own.
    """
    prompt, response = example.prompt, example.response
    ranges = [] if secrets is None else hidden_ranges(example, secrets)
    response = masked(response, ranges, len(prompt))
    prompt = masked(prompt, ranges)
    bare = prompt.rstrip(" ")
    return {
        "id": example.id if secrets is None else str(number),
        "prompt": bare,
        "answer": response.strip(),
        "choices": [prompt[len(bare) :] + label for label in labels],
        "label": labels.index(example.response) if labels else -1,
        "hidden": bool(ranges),
    }


def _no_labels(
    manifest: Manifest,
    task: str,
    labels: Sequence[str] | None,
    secrets: Secrets | None,
) -> str:
    """Why a task's responses cannot be chosen among; empty where they can."""
    if labels is None or not all(label.strip() for label in labels):
        return "its responses are no set of labels"
    if len({label.strip() for label in labels}) < len(labels):
        return "labels differ in blanks alone"
    own = (one for one in manifest.examples if one.task == task)
    if secrets is not None and any(
        end > len(one.prompt)
        for one in own
        for _, end, _ in hidden_ranges(one, secrets)
    ):
        return "identifiers stand in its responses (--show-text)"
    return ""


def _longest(manifest: Manifest) -> dict[str, int]:
    """Tokens that an answer of each task may have, as the generate pass counts them."""
    found: dict[str, int] = {}
    for example in manifest.examples:
        size = len(example.reference_unll) - example.response_token
        found[example.task] = max(found.get(example.task, 1), size)
    return {task: size + MORE_TOKENS for task, size in found.items()}


_LIKELIEST: Mapping[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def _written(longest: int) -> Mapping[str, Any]:
    """Answers are written greedily, to the end of the line."""
    whole = {"function": "regex", "regex_pattern": WHOLE, "fallback": ""}
    match = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    return {
        "output_type": "generate_until",
        "doc_to_target": "answer",
        "generation_kwargs": {
            "until": ["\n"],
            "do_sample": False,
            "max_gen_toks": longest,
        },
        "filter_list": [
            {"name": "none", "filter": [whole, {"function": "take_first"}]}
        ],
        "metric_list": [match | {"ignore_case": True, "ignore_punctuation": True}],
    }


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    kinds = {
        "label": pa.int64(),
        "hidden": pa.bool_(),
        "choices": pa.list_(pa.string()),
    }
    schema = pa.schema([(key, kinds.get(key, pa.string())) for key in rows[0]])
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    write_atomically(path, lambda file: pq.write_table(table, file), mode=0o600)


def _write_task(
    name: str, rows: Path, settings: Mapping[str, Any], manifest: Manifest
) -> None:
    """A task's YAML, which JSON is, with the place of its rows in full."""
    task = {
        "task": name,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str(rows.resolve())}},
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "prompt",
        "target_delimiter": "",
        **settings,
        "metadata": {"version": 1, "manifest": manifest.digest},
    }
    text = json.dumps(task, indent=1) + "\n"
    write_text(rows.with_name(f"{name}.yaml"), text, mode=0o600)
