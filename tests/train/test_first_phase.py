"""The first phase of another run is taken where a run would train the same."""

from pathlib import Path
from typing import Any

import pytest
from run_training import asked, left, train, write_stream

from spark_train.training_methods import groups
from spark_train.training_request import TrainRequest
from spark_train.training_run import train_by_stage

COMMON = ("epochs=1", "batch_size=4", "lr=0.02", "lora.r=4")
CORRECTED = ("ptpc.steps=2", "ptpc.lr=0.001")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture
def fields_of(tiny_base, data, tmp_path):
    """``fields_of(name, method, *settings)``: a run in a folder of that name."""

    def fields(name: str, method: str, *settings: str, **more: Any) -> dict[str, Any]:
        corrected = CORRECTED if "ptpc" in groups(method) else ()
        return {
            "method": method,
            "base": str(tiny_base),
            "data": [data],
            "output": tmp_path / name,
            "settings": [*COMMON, *corrected, *settings],
            **more,
        }

    return fields


@pytest.fixture
def first_stage(fields_of) -> Path:
    """Folder of a run of sd-replay that has ended its first stage only."""
    request, beside = asked(
        TrainRequest, {"order": "yelp,fomc"} | fields_of("s", "sd-replay")
    )
    stages = train_by_stage(request, **beside)
    next(stages)
    stages.close()
    return request.output


@pytest.mark.parametrize("method", ["er", "spark", "seqft"])
def test_a_run_that_takes_its_first_phase_leaves_the_same_files(
    method, fields_of, first_stage
):
    activities: list[str] = []
    alone = train(**fields_of("alone", method))
    taken = train(
        **fields_of("taken", method, first_phase_of=first_stage),
        progress=lambda activity, done, total: activities.append(activity),
    )
    assert left(taken.folder) == left(alone.folder)
    assert taken.record.accuracy == alone.record.accuracy
    assert taken.record.seconds.keys() == alone.record.seconds.keys()
    assert "1-yelp learning, steps" not in activities
    assert "2-fomc learning, steps" in activities


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("er", "loss.scope=full"),
        pytest.param("er", "lr=0.01", marks=pytest.mark.slow),
        pytest.param("er", "seed=1", marks=pytest.mark.slow),
        ("gem", ""),
    ],
)
def test_a_run_that_begins_otherwise_trains_its_first_phase_itself(
    method, setting, fields_of, first_stage
):
    settings = [setting] if setting else []
    activities: list[str] = []
    alone = train(**fields_of("alone", method, *settings))
    offered = train(
        **fields_of("offered", method, *settings, first_phase_of=first_stage),
        progress=lambda activity, done, total: activities.append(activity),
    )
    assert left(offered.folder) == left(alone.folder)
    assert "1-yelp learning, steps" in activities


def test_answers_after_a_correction_are_not_taken_for_those_before(fields_of):
    # The first stage of spark ends with a correction, and er answers before one.
    corrected = train(**fields_of("corrected", "spark"))
    alone = train(**fields_of("alone", "er"))
    offered = train(**fields_of("offered", "er", first_phase_of=corrected.folder))
    assert left(offered.folder) == left(alone.folder)
    assert offered.record.accuracy == alone.record.accuracy


def test_a_folder_without_a_run_is_no_beginning(fields_of, tmp_path):
    alone = train(**fields_of("alone", "er"))
    offered = train(**fields_of("offered", "er", first_phase_of=tmp_path / "none"))
    assert left(offered.folder) == left(alone.folder)


def test_a_run_of_one_task_takes_all_that_it_would_train(fields_of):
    source = train(**fields_of("source", "sd-replay"), order="yelp")
    alone = train(**fields_of("alone", "er"), order="yelp")
    taken = train(
        **fields_of("taken", "er", first_phase_of=source.folder), order="yelp"
    )
    assert left(taken.folder) == left(alone.folder)
    assert taken.record.files.keys() == alone.record.files.keys()
