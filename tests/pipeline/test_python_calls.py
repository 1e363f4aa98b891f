"""What Python code hands to ``sa.score`` and ``sa.audit``, and what it is told."""

import inspect
from dataclasses import fields

import pytest
from named import examples

import spark_audit as sa
from spark_audit.audits.known import AUDITS
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError, OutputError
from spark_audit.pipeline.request import Request
from spark_audit.scoring import score as scoring
from spark_audit.spoken_options import for_command_line

NOT_ARGUMENTS = {"loading", "command", "include_base", "opened", "open_manifest"}
"""Fields that are made of other arguments, or that only a command sets."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory, tiny_base, make_adapter):
    """Paths of an adapter, of its base, and of a manifest."""
    folder = tmp_path_factory.mktemp("scene")
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    manifest = sa.build_manifest(examples(), base, name="m", caliper=2.0)
    sa.write_manifest(manifest, folder / "m.json")
    return make_adapter(folder / "lora"), tiny_base, folder / "m.json"


@pytest.fixture
def scored_texts(monkeypatch):
    """Names of the checkpoints that a model scores from now on."""
    names = []
    run = scoring.pass_runner

    def noted(loaded, scoring_pass):
        names.append(loaded.name)
        return run(loaded, scoring_pass)

    monkeypatch.setattr(scoring, "pass_runner", noted)
    return names


def audited(scene, output, **options):
    lora, base, manifest = scene
    return sa.audit(
        {"mine": lora},
        base=base,
        manifest=manifest,
        audits="nll",
        output=output,
        formats="csv",
        device="cpu",
        jobs=1,
        **options,
    )


def test_a_folder_keeps_scores_and_a_second_call_makes_none(
    scene, tmp_path, scored_texts
):
    _, base, manifest = scene
    first = sa.score(base, manifest, store=str(tmp_path / "st"))
    n_calls = len(scored_texts)
    again = sa.score(base, manifest, store=tmp_path / "st")
    (table,) = first.values()
    (same,) = again.values()
    assert (table.columns["nll"] == same.columns["nll"]).all()
    assert n_calls > 0

    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError):
        sa.score(base, manifest, store=tmp_path / "file")


def test_scores_that_are_handed_over_are_not_made_again(scene, tmp_path, scored_texts):
    lora, base, manifest = scene
    full_report = audited(scene, tmp_path / "whole")

    scores = sa.score(
        {"base": base, "mine": sa.open_checkpoint(lora, name="mine", device="cpu")},
        manifest,
    )
    del scored_texts[:]
    report = audited(scene, tmp_path / "handed", scores=scores)
    assert scored_texts == []
    assert report.results == full_report.results
    assert report.findings == full_report.findings

    # One checkpoint's scores are recognised by its weights; the other one is scored.
    audited(scene, tmp_path / "one", scores=scores["mine"])
    assert set(scored_texts) == {"base"}


def test_scores_of_something_else_are_refused_in_one_line(scene, tmp_path, tiny_base):
    lora, base, manifest = scene
    scores = sa.score({"base": base}, manifest)

    def error_of(scores) -> str:
        with pytest.raises(InputError) as error:
            audited(scene, tmp_path / "report", scores=scores)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "scores['mine']" in error_of({"mine": scores["base"]})
    assert "scores['other']" in error_of({"other": scores["base"]})

    opened = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    other_manifest = sa.build_manifest(examples(20), opened, name="other", caliper=2.0)
    assert other_manifest.digest[:12] in error_of(sa.score(base, other_manifest))

    items = sa.items_for(
        other_manifest, opened, {sa.Pass(): list(other_manifest.by_id)}
    )[sa.Pass()]
    assert error_of(sa.score(base, items)).startswith("scores")

    for wrong in (3, {}, {"mine": 3}):
        with pytest.raises(TypeError, match="scores: .*sa.score"):
            audited(scene, tmp_path / "report", scores=wrong)


def test_every_option_of_a_request_is_an_argument_with_its_default():
    parameters = inspect.signature(sa.audit).parameters
    for settings_class in (Request, Loading):
        for field in fields(settings_class):
            if field.name in NOT_ARGUMENTS:
                continue
            parameter = parameters[field.name]
            if field.name not in ("checkpoints", "audits"):
                assert parameter.default == field.default, field.name
    for name, parameter in parameters.items():
        is_positional = name in ("checkpoints", "manifest")
        assert is_positional or parameter.kind is inspect.Parameter.KEYWORD_ONLY, name


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("audit", "bas", "base"),
        ("audit", "ckpt", None),
        ("run", "progres", "progress"),
        ("score", "stor", "store"),
        ("compare", "base_line", "baseline"),
        ("build_manifest", "calliper", "caliper"),
        ("annotate", "detectors", "detector"),
        ("import_rows", "splits", "split"),
        ("import_chat", "max_len", "max_length"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_argument(name, wrong, right):
    with pytest.raises(TypeError) as error:
        getattr(sa, name)(**{wrong: 1})
    message = str(error.value)
    assert message.startswith(f"{name}() ")
    assert f"'{wrong}'" in message
    if right is not None:
        assert message.endswith(f"'{right}'?")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("engine", "rai"),
        ("preset", "robst"),
        ("limit", 0),
        ("limit", -1),
        ("limit", "many"),
        ("batch_size", "big"),
        ("batch_size", 0),
        ("relearn_steps", 0),
    ],
)
def test_a_value_that_the_command_line_refuses_is_refused_in_python(option, value):
    with pytest.raises(InputError) as error:
        sa.audit("runs/mine", "m.json", **{option: value})
    with for_command_line(is_running=False):
        assert str(error.value).startswith(option)


@pytest.mark.parametrize("audits", [3, None, [3]])
def test_what_is_no_audit_is_named(audits):
    with pytest.raises(TypeError, match=r"audits(\[0\])?: (3|None) "):
        sa.audit("runs/mine", "m.json", audits=audits)


def test_no_public_function_takes_any_option():
    for name in ("audit", "run", "score", "compare", "build_manifest", "annotate"):
        for parameter in inspect.signature(getattr(sa, name)).parameters.values():
            assert parameter.kind is not inspect.Parameter.VAR_KEYWORD, name


@pytest.mark.parametrize("command", AUDITS)
def test_an_audit_is_given_by_command_class_name_class_or_object(command):
    audit_class = getattr(sa.audits, AUDITS[command])
    snake_names = {
        "CanaryRank": "canary_rank",
        "SeriesAttack": "series_attack",
        "NLL": "nll",
    }
    snake_name = snake_names.get(audit_class.__name__, audit_class.__name__.lower())
    for audit in (
        command,
        snake_name,
        audit_class.__name__,
        audit_class,
        audit_class(),
    ):
        for audits in (audit, [audit]):
            request = Request(checkpoints="x", audits=audits)  # type: ignore[arg-type]
            assert request.audits == (audit_class(),)


def test_an_unknown_audit_is_answered_with_the_nearest():
    for wrong, right in {"membershp": "membership", "canray": "canary"}.items():
        with pytest.raises(InputError, match=f"'{right}'"):
            Request(checkpoints="x", audits=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="audits: 3 "):
        Request(checkpoints="x", audits=[3])  # type: ignore[arg-type]
