import re
from pathlib import Path

import pytest

from spark_audit.checkpoints.specs import Spec, parse_specs, split_stage
from spark_audit.errors import InputError


def names(*texts: str) -> list[str]:
    return [spec.name for spec in parse_specs(list(texts))]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def folder(path: str) -> str:
    Path(path).mkdir(parents=True)
    return path


def test_default_name_is_the_shortest_unique_suffix():
    first = folder("a/run/x")
    two = folder("b/run/x")
    three = folder("b/run/y")
    assert names(first) == ["x"]
    assert names(first, two) == ["a/run/x", "b/run/x"]
    assert names(first, three) == ["x", "y"]
    assert names(f"./{first}/") == ["x"]
    assert names("org/model", "other/model", "org/small") == [
        "org/model",
        "other/model",
        "small",
    ]


def test_given_names_are_kept_and_defaults_keep_clear_of_them():
    x = folder("runs/x")
    assert parse_specs([f"ours={x}"]) == [Spec("ours", (x,), None)]
    assert names(f"x={folder('runs/z')}", x) == ["x", "runs/x"]
    assert names(folder("models/base")) == ["models/base"]
    assert names("base=models/base", x) == ["base", "x"]


def test_an_equals_sign_in_an_existing_path_is_no_name():
    path = folder("lr=0.1")
    assert parse_specs([path]) == [Spec("lr=0.1", (path,), None)]
    # A blank cannot be part of a name either.
    assert parse_specs(["a b=c"])[0].paths == ("a b=c",)


def test_a_list_of_paths_is_read_as_replicates():
    first = folder("s1")
    two = folder("s2")
    spec = parse_specs([f"spark=[{first}, {two}]"])[0]
    assert spec == Spec("spark", (first, two), None)
    assert spec.sources == (first, two)
    spec = parse_specs([f"spark=[{first}@2,{two}@2]"])[0]
    assert (spec.stage, spec.sources) == ("2", ("s1@2", "s2@2"))


def test_a_stage_is_read_only_behind_a_path_that_exists():
    run = folder("run")
    assert split_stage("run@3") == (run, "3")
    assert split_stage("run@12:task") == (run, "12:task")
    assert split_stage("nothing@3") == ("nothing@3", None)
    stage_like = folder("run@5")
    assert split_stage(stage_like) == (stage_like, None)
    assert names("run@1", "run@2") == ["run@1", "run@2"]
    assert parse_specs(["x=run@2"]) == [Spec("x", (run,), "2")]


@pytest.mark.parametrize("tail", ["0", "-1", "1.5", "x", "1:priv", ""])
def test_what_is_no_stage_is_refused(tail):
    folder("run")
    with pytest.raises(InputError, match=rf"^run@{re.escape(tail)}: .*PATH@K:task$"):
        split_stage(f"run@{tail}")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([""], "--ckpt"),
        (["x=[a,]"], "--ckpt"),
        (["[a,b]"], "[a,b]"),
        (["x=a", "x=b"], "'x'"),
        (["org/a", "org/a"], "--ckpt org/a: "),
    ],
)
def test_wrong_values_are_refused(texts, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_specs(texts)


def test_replicates_at_different_stages_are_refused():
    folder("s1")
    with pytest.raises(InputError, match="^--ckpt x="):
        parse_specs(["x=[s1@1,s1@2]"])
