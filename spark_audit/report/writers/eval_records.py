"""eee/: a record of Every Eval Ever for each checkpoint, which leaderboards read.

The schema is 0.3.0 of https://github.com/evaleval/every_eval_ever. Its datastore asks
for one file per model and run, at ``data/COLLECTION/DEVELOPER/MODEL/UUID.json``: what
``eee/data/`` holds can be copied there. Records hold what shared files hold: main
figures with their limits, and neither rows nor identifiers.

A further main figure needs nothing here: its metric declares unit, range and direction.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from spark_audit.audits import metric_of
from spark_audit.audits.metrics import Metric
from spark_audit.errors import visible
from spark_audit.names import is_untrained
from spark_audit.provenance import canonical_json
from spark_audit.report.checkpoint_states import State, state_name
from spark_audit.report.glance import MainFigure, main_rows
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import CheckpointFacts, Contrast, Report, Row
from spark_audit.sentences import optional, render

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object inside a record."""

SCHEMA_VERSION = "0.3.0"

LIBRARY = "spark-audit"
"""Name of this program, and of the collection of its records."""

RECORDS_FOLDER = "eee"
"""Folder of the records, in a report's folder."""

RECORDS_FOLDERS = ("eee", "eee/*", "eee/*/*", "eee/*/*/*", "eee/*/*/*/*")
"""The same with the folders inside, for any collection, developer and model."""

LOCAL_DEVELOPER = "local"
"""Developer of a model that was opened from this machine: the report names none."""

HUB_SOURCE = re.compile(r"hf:(?P<repository>[^/@]+/[^/@]+)(?:@.*)?")
"""Source of a checkpoint on the hub, with its revision."""

STATES_BY_LEVEL: tuple[State, ...] = ("LEAKS", "DETECTABLE", "NO LEAK FOUND")
"""States as levels of a score, the worst first: a level's number is its place."""

UNKNOWN_LEVEL = -1
"""Score of a checkpoint that is in none of the levels: NOT TESTED."""

NUMBERS_OF_ROW = (
    "n",
    "clusters",
    "no_effect",
    "no_effect_low",
    "no_effect_high",
    "mde",
    "at_most",
)
"""Columns that stand beside a figure, as details of its score."""

_NOT_PORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f\s]')
"""Characters that a name of a folder may not have on every machine."""

_NAMES_OF_DEVICES = [
    f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)
]

_REFUSED_NAMES = frozenset(
    ["", "data", "unknown", "con", "prn", "aux", "nul", *_NAMES_OF_DEVICES]
)
"""Names that the datastore refuses: its own, those of Windows, and none."""


def write_records(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield a record of each audited checkpoint; the base has none of its own.

    Figures that are void, withheld or not estimable are left out, and counted.
    """
    report = prepared.report
    main_figures = list(main_rows(prepared.marked))
    state_by_name = {}
    for checkpoint_state in prepared.checkpoint_states:
        state_by_name[checkpoint_state.name] = checkpoint_state.state

    # Where nothing was attacked, as by `utility` alone, no checkpoint has a state.
    names = [*state_by_name]
    for main_figure in main_figures:
        names += [row.checkpoint for row in main_figure.rows]
    for name in dict.fromkeys(names):  # each once, in this order
        if is_untrained(name):
            continue

        record = _record(report, name, state_by_name.get(name), main_figures)
        if not record["evaluation_results"]:
            continue
        path = _path_in_datastore(record, report.manifest.name)
        text = json.dumps(record, indent=1, allow_nan=False)
        yield File(f"{RECORDS_FOLDER}/{path}", f"{text}\n")


def _record(
    report: Report, name: str, state: State | None, main_figures: Sequence[MainFigure]
) -> JsonObject:
    """Return the record of one checkpoint, with its state unless it has none."""
    model = _model(report, name)
    seconds = str(int(datetime.fromisoformat(report.created).timestamp()))
    data = _data(report)

    results = []
    if state is not None:
        results.append(_state_result(state, data))
    n_left_out = 0
    for main_figure in main_figures:
        row = _row_of(main_figure, name)
        if row is None:
            continue
        if row.status == "ok":
            results.append(_result(row, main_figure.title, data))
        else:
            n_left_out += 1

    evaluation_id = f"{LIBRARY}/{model['id']}/{seconds}"
    # Several revisions of a model on the hub differ in nothing but the given name.
    if not model["id"].endswith(f"/{_portable(name)}"):
        evaluation_id += f"/{_portable(name)}"

    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id,
        "evaluation_timestamp": report.created,
        # The same report gives the same bytes, so this is not the time of writing.
        "retrieved_timestamp": seconds,
        "source_metadata": {
            "source_name": "SPARK Audit",
            "source_type": "evaluation_run",
            # A report does not say who made it.
            "source_organization_name": "not stated",
            "evaluator_relationship": "other",
            "additional_details": {
                "report_status": report.status,
                "figures_left_out": str(n_left_out),
            },
        },
        "model_info": model,
        "eval_library": {
            "name": LIBRARY,
            "version": report.versions.get(LIBRARY, "unknown"),
            "additional_details": _texts(report.versions, without=[LIBRARY]),
        },
        "evaluation_results": results,
    }


def _model(report: Report, name: str) -> JsonObject:
    """Return what a record says of the model.

    Who developed it is known only of a model on the hub. A method with several seeds is
    no single checkpoint, and has its name alone.
    """
    facts = _facts_of(report, name)
    model_id = f"{LOCAL_DEVELOPER}/{_portable(name)}"
    details: dict[str, object] = {}
    is_here = False
    if facts is not None:
        on_hub = HUB_SOURCE.fullmatch(facts.source)
        if on_hub is not None:
            developer, _, repository = on_hub["repository"].partition("/")
            model_id = f"{_portable(developer)}/{_portable(repository)}"
        is_here = not facts.is_endpoint and facts.format != "server"
        details = {
            "format": facts.format,
            "dtype": facts.dtype,
            "base": facts.base,
            "parameters": facts.parameters,
            "quantised_from": facts.quantised_from,
            "relearned_from": facts.relearned_from,
            "weights_sha256": facts.weights_sha256,
        }

    return {
        "name": visible(name),
        "id": model_id,
        "developer": model_id.partition("/")[0],
        "additional_details": {
            "deployment_type": "self_deployed" if is_here else "unknown",
            # A report does not say whether others can have the weights.
            "model_availability": "unknown",
            **_texts(details),
        },
    }


def _facts_of(report: Report, name: str) -> CheckpointFacts | None:
    """Return the facts of a checkpoint; None: the name is that of several seeds."""
    for facts in report.checkpoints:
        if facts.name == name:
            return facts
    return None


def _data(report: Report) -> JsonObject:
    """Return what a record says of the rows: their counts, and a keyed digest."""
    manifest = report.manifest
    return {
        "dataset_name": visible(manifest.name),
        "source_type": "other",
        "additional_details": _texts(
            {
                "manifest_digest": manifest.digest,
                "matched_sources": manifest.n_sources,
                "matched_clusters": manifest.n_clusters,
                "matched_spans": manifest.n_spans,
                "matched_tokens": manifest.n_tokens,
            }
        ),
    }


def _state_result(state: State, data: JsonObject) -> JsonObject:
    """Return a checkpoint's state as a score of levels, of which a higher is better."""
    score = STATES_BY_LEVEL.index(state) if state in STATES_BY_LEVEL else UNKNOWN_LEVEL
    return {
        "evaluation_result_id": f"{LIBRARY}.state",
        "evaluation_name": f"{LIBRARY}.state",
        "source_data": data,
        "metric_config": {
            "evaluation_description": render("eval_record.state"),
            "metric_id": f"{LIBRARY}.state",
            "metric_name": render("eval_record.state_name"),
            "metric_kind": "state",
            "metric_unit": "level",
            "lower_is_better": False,
            "score_type": "levels",
            "level_names": [state_name(level) for level in STATES_BY_LEVEL],
            "has_unknown_level": True,
        },
        "score_details": {"score": score, "details": {"state": state_name(state)}},
    }


def _row_of(main_figure: MainFigure, name: str) -> Row | None:
    """Return a checkpoint's row of a main figure; None: it has none.

    A comparison of checkpoints counts only where a figure is nothing else.
    """
    rows = [row for row in main_figure.rows if row.checkpoint == name]
    figures = [row for row in rows if not isinstance(row, Contrast)]
    for row in figures or rows:
        return row
    return None


def _result(row: Row, title: str, data: JsonObject) -> JsonObject:
    """Return a figure with its range, direction and limits."""
    metric = metric_of(row.audit, row.metric)
    parts = (LIBRARY, row.audit, row.metric, row.variant)
    figure_id = ".".join(part for part in parts if part)
    low, high = _range_of(metric, row)

    details: dict[str, object] = {"status": row.status}
    if isinstance(row, Contrast):
        # Only contrasts are tests themselves: claims on other figures are findings.
        details["family"] = row.family
        details["baseline"] = row.baseline
    for column in NUMBERS_OF_ROW:
        details[column] = getattr(row, column)

    score_details: JsonObject = {"score": row.value, "details": _texts(details)}
    uncertainty = _uncertainty(row)
    if uncertainty:
        score_details["uncertainty"] = uncertainty

    metric_config: JsonObject = {
        "evaluation_description": optional(f"audit.{row.audit}.question") or title,
        "metric_id": metric.known_as or figure_id,
        "metric_name": title,
        "metric_kind": metric.known_as or row.metric,
        "metric_unit": row.unit or _unit_without_name(metric),
        "lower_is_better": metric.learned > 0 and not metric.is_useful,
        "score_type": "continuous",
        "min_score": _bound(low),
        "max_score": _bound(high),
    }
    if row.variant:
        metric_config["metric_parameters"] = {"variant": row.variant}
    if not metric.learned:
        metric_config["additional_details"] = {"polarity": "unknown"}
    return {
        "evaluation_result_id": figure_id,
        "evaluation_name": f"{LIBRARY}.{row.audit}",
        "source_data": data,
        "metric_config": metric_config,
        "score_details": score_details,
    }


def _unit_without_name(metric: Metric) -> str:
    """Return the unit of a figure that has none in rows: a share, or a plain number."""
    return "proportion" if metric.range == (0.0, 1.0) else "number"


def _range_of(metric: Metric, row: Row) -> tuple[float, float]:
    """Return the smallest and largest value that a figure can have."""
    low, high = metric.range
    if isinstance(row, Contrast):
        # A contrast is the difference of two figures.
        return low - high, high - low
    return low, high


def _bound(value: float) -> float | str:
    """Return a bound in strict JSON, which has no infinite numbers."""
    if math.isfinite(value):
        return value
    return "Infinity" if value > 0 else "-Infinity"


def _uncertainty(row: Row) -> JsonObject:
    """Return the interval of a figure and the number of its independent units."""
    uncertainty: JsonObject = {}
    if row.ends is not None:
        low, high = row.ends
        uncertainty["confidence_interval"] = {
            "lower": low,
            "upper": high,
            "confidence_level": row.interval_level,
            "method": row.interval_method,
        }
    if row.clusters:
        uncertainty["num_samples"] = row.clusters
    return uncertainty


def _texts(values: Mapping[str, object], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the values that are known as texts: details may be nothing else."""
    texts = {}
    for name, value in values.items():
        if value is not None and name not in without:
            texts[name] = visible(str(value))
    return texts


def _portable(name: str) -> str:
    """Return a name that is one folder on every machine, and no reserved one."""
    portable = _NOT_PORTABLE.sub("_", visible(name)).rstrip(".")
    first_part = portable.partition(".")[0].lower()
    return f"_{portable}" if first_part in _REFUSED_NAMES else portable


def _path_in_datastore(record: JsonObject, dataset_name: str) -> str:
    """Return the path of a record, which ends with a UUID.

    The datastore asks for version 4, whose digits are random. These follow from the
    model and the data, so that a later report on them replaces the record.
    """
    model = record["model_info"]
    subject = canonical_json([model, dataset_name])
    digest = hashlib.sha256(subject).digest()
    file_id = uuid.UUID(bytes=digest[:16], version=4)
    return f"data/{LIBRARY}/{model['id']}/{file_id}.json"
