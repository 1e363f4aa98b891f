"""Settings: names, bounds, spellings, and messages that name the setting."""

from typing import Any

import pytest

from spark_audit.errors import InputError
from spark_train.training_settings import (
    SETTING_GROUPS,
    Fn,
    Ptpc,
    Replay,
    TrainingSettings,
    assignments,
    describe,
    describe_fixed,
    names,
    parse,
)

DEFAULTS = (
    "epochs=3 lr=5e-4 batch_size=32 clip=1 loss.scope=response lora.r=16 lora.alpha=32 "
    "replay.enabled=on replay.ratio=0.5 replay.lambda=1 replay.top_k=64 "
    "replay.temperature=2 replay.t_squared=off sensitivity.alpha=0.5 "
    "sensitivity.tau=0.6 ptpc.steps=200 ptpc.lr=1e-5 ptpc.schedule=constant "
    "ptpc.batch_size=2 ptpc.old_batch_size=1 ptpc.draw=mixed ptpc.lambda_pii=8 "
    "ptpc.alpha_ul=2 ptpc.lambda_anchor=1.5 ptpc.lambda_old=1 ptpc.ul=on ptpc.dkl=on "
    "ptpc.anchor=on ptpc.old_anchor=on ewc.lambda=100 gem.margin=0.5 "
    "olora.lambda_1=0.5 pecl.noise_scale=0.01 pecl.memreg_scale=0.01 "
    "pecl.lambda_max=10 pecl.lambda_unlearn=1 pecl.theta=0.6"
)


def test_the_papers_values_are_the_defaults():
    assert parse(DEFAULTS.split()) == TrainingSettings()


def test_assignments_set_the_fields_that_they_name():
    found = parse(
        ["ptpc.alpha_ul=3", " replay.lambda = 0.25 ", "lr=1e-3", "loss.scope=full"]
    )
    assert found.ptpc.alpha_ul == 3
    assert found.replay.lambda_ == 0.25
    assert found.lr == 1e-3
    assert found.loss.scope == "full"
    changed = {"ptpc.alpha_ul", "replay.lambda", "lr", "loss.scope"}
    flat, usual = found.flat(), TrainingSettings().flat()
    assert {name for name in flat if flat[name] != usual[name]} == changed
    assert parse(["seed=1", "seed=2"]).seed == 2
    assert parse([]) == TrainingSettings()


@pytest.mark.parametrize(
    "text", ["nothing=1", "ptpc=1", "ptpc.=1", "lambda=1", "replay.lambda_=1", "=1"]
)
def test_unknown_names_are_refused(text):
    with pytest.raises(InputError, match=r"replay\.lambda, "):
        parse([text])


def test_a_method_takes_its_own_settings_only():
    some: Any = ("loss", "replay.ratio")
    assert parse(["replay.ratio=0.2"], groups=some).replay.ratio == 0.2
    for other in ("replay.top_k=3", "ptpc.ul=off"):
        with pytest.raises(InputError, match="'er'") as caught:
            parse([other], groups=some, method="er")
        assert "replay.ratio" in str(caught.value)
        assert "ptpc" not in str(caught.value).partition("choose")[2]
    assert names(()) == [name for name in names() if "." not in name]
    assert names(SETTING_GROUPS) == names()


def test_every_setting_is_described():
    rows = describe()
    assert [row["name"] for row in rows] == list(TrainingSettings().flat())
    for row in rows:
        assert row["meaning"]
        assert row["source"] in ("paper", "ours")
        # The default as it is shown can be given.
        assert parse([f"{row['name']}={row['default']}"]) == TrainingSettings()
    shown = {row["name"]: (row["default"], row["source"]) for row in rows}
    assert shown["replay.t_squared"] == ("off", "ours")
    assert shown["replay.lambda"] == ("1", "paper")
    assert shown["ptpc.lr"] == ("1e-05", "paper")


def test_what_no_setting_changes_is_named_once_and_is_no_setting():
    rows = describe_fixed()
    fixed = [row["name"] for row in rows]
    assert {"weight decay", "warm-up", "dropout of LoRA", "optimizer"} <= {*fixed}
    assert len(fixed) == len({*fixed})
    assert not {*fixed} & {row["name"] for row in describe()}
    assert all(row["value"] and row["source"] for row in rows)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (TrainingSettings(), ()),
        (TrainingSettings(lr=1e-3, epochs=3), ("epochs=3", "lr=0.001")),
        (TrainingSettings(ptpc=Ptpc(ul=False)), ("ptpc.ul=off",)),
        (TrainingSettings(replay=Replay(lambda_=0.1)), ("replay.lambda=0.1",)),
        ({"ptpc.ul": False, "lora.r": 4}, ("ptpc.ul=off", "lora.r=4")),
        ({}, ()),
    ],
)
def test_settings_of_python_are_those_of_the_command_line(given, texts):
    assert assignments(given) == texts
    if isinstance(given, TrainingSettings):
        assert parse(texts) == given


def test_every_value_survives_the_way_through_text():
    given = TrainingSettings(lr=1 / 3, fn=Fn(sigma=1e-30), ptpc=Ptpc(lambda_old=0))
    assert parse(assignments(given)) == given


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: TrainingSettings(epoch=2), "'epochs'"),
        (lambda: TrainingSettings(ptcp=Ptpc()), "'ptpc'"),
        (lambda: Ptpc(step=3), "'steps'"),
        (lambda: TrainingSettings(ptpc={"step": 3}), "'steps'"),
    ],
)
def test_a_misspelt_setting_is_answered_with_the_nearest(make, nearest):
    with pytest.raises(TypeError, match=nearest):
        make()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: TrainingSettings(lr=-1), "lr is -1: "),
        (lambda: Replay(lambda_=-1), "replay.lambda is -1: "),
        (lambda: TrainingSettings(ptpc={"steps": 0}), "ptpc.steps is 0: "),
    ],
)
def test_a_bad_value_of_a_setting_is_refused_in_one_line(make, named):
    with pytest.raises(InputError, match=named) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_settings_of_another_type_are_refused():
    settings: Any = ["lr=1"]
    with pytest.raises(TypeError, match="^settings: list "):
        assignments(settings)
