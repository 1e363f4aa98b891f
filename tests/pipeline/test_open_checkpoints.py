"""Audits of open checkpoints and of models in memory: figures of the saved ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marked import make_example
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import spark_audit as sa
from spark_audit.audits import Matched
from spark_audit.checkpoints import in_memory
from spark_audit.data.examples import Example
from spark_audit.errors import CheckpointError, InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.conclude import conclude

QUICK: dict[str, Any] = {
    "audits": [Matched(placebo_draws=0, rematched=False, replicates=200), "nll"],
    "formats": "md",
    "progress": False,
    "device": "cpu",
}


WORDS = "the service food good cold said customer paid dollars rate label news".split()


def examples() -> list[Example]:
    """Rows with a number each, every second one held out."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(60):
        before, after = (" ".join(rng.choice(WORDS, 6)) for _ in range(2))
        number = "-".join(str(rng.integers(100, 999)) for _ in range(3))
        prompt = f"Text: {before}. Call {number} today. {after}.\nLabel:"
        split = "test" if i % 2 else "train"
        response = " good" if i % 4 < 2 else " cold"
        rows.append(
            make_example(
                f"row-{i:02d}", prompt, response, pii={number: "PHONE"}, split=split
            )
        )
    return rows


@pytest.fixture(scope="module")
def manifest(tiny_base, tmp_path_factory) -> Path:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    path = tmp_path_factory.mktemp("manifest") / "m.json"
    built = build_manifest(examples(), base, name="m", caliper=2.0)
    write_manifest(built, path)
    return path


@pytest.fixture(scope="module")
def lora(make_adapter, tmp_path_factory) -> Path:
    return Path(make_adapter(tmp_path_factory.mktemp("runs") / "lora"))


@pytest.fixture
def audit(manifest, tmp_path) -> Callable[..., Any]:
    """``audit(folder, checkpoints, **options)`` into a folder of its own."""

    def run(folder: str, checkpoints: Any, **options: Any) -> Any:
        output = tmp_path / folder
        settings = {key: value for key, value in QUICK.items() if key != "device"}
        return sa.audit(
            checkpoints, manifest=manifest, output=output, **settings, **options
        )

    return run


@pytest.fixture(scope="module")
def report_of_path(manifest, lora, tiny_base, tmp_path_factory) -> Any:
    """The report on the adapter and its base, both given as paths."""
    settings = {key: value for key, value in QUICK.items() if key != "device"}
    output = tmp_path_factory.mktemp("reports") / "path"
    return sa.audit(
        {"lora": lora}, manifest=manifest, output=output, base=tiny_base, **settings
    )


def figures(report: Any) -> dict[tuple[str, ...], list[float]]:
    """(checkpoint, audit, metric, variant, group) -> value and interval."""
    return {
        (row.checkpoint, row.audit, row.metric, row.variant, row.group): [
            np.nan if end is None else end for end in (row.value, row.low, row.high)
        ]
        for row in report.results
    }


def assert_equal_figures(report: Any, other_report: Any) -> None:
    assert figures(report).keys() == figures(other_report).keys()
    assert np.isfinite([values[0] for values in figures(report).values()]).sum() > 5
    for key, values in figures(report).items():
        np.testing.assert_allclose(
            values, figures(other_report)[key], atol=1e-9, rtol=0
        )


def test_adapter_given_open_has_the_figures_of_its_path(
    audit, tiny_base, lora, report_of_path
) -> None:
    loaded = sa.open_checkpoint(lora, base=str(tiny_base), device="cpu")
    assert_equal_figures(audit("one", loaded), report_of_path)
    assert_equal_figures(audit("list", [loaded]), report_of_path)
    assert_equal_figures(audit("named", {"lora": loaded}), report_of_path)


def test_adapter_in_memory_has_the_figures_of_its_path(
    audit, tiny_base, lora, report_of_path
) -> None:
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_base), lora
    )
    report = audit("memory", {"lora": model})
    assert_equal_figures(report, report_of_path)

    facts = {checkpoint.name: checkpoint for checkpoint in report.checkpoints}
    assert facts["lora"].source == "weights in memory"
    assert len(facts["lora"].weights_sha256) == 64
    assert facts["lora"].weights_sha256 != facts["base"].weights_sha256
    assert facts["lora"].dtype == "float32"


def test_full_weights_in_memory_have_the_figures_of_their_folder(
    audit, tiny_base, tmp_path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)
    folder = tmp_path / "full"
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(folder)
    of_path = audit("path", {"full": folder}, base=tiny_base)
    assert_equal_figures(audit("memory", {"full": model}, base=tiny_base), of_path)
    # The base in memory is recognised by its scores.
    base = AutoModelForCausalLM.from_pretrained(tiny_base)
    assert_equal_figures(audit("both", {"full": model}, base=base), of_path)


def test_another_model_as_base_in_memory_is_refused(audit, tiny_base) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)
    with pytest.raises(CheckpointError, match="^base: .*'m'"):
        audit("wrong", {"full": model}, base=model)


def test_open_base_is_taken_as_it_is(tiny_base, lora) -> None:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    on_open = sa.open_checkpoint(lora, base=base)
    on_path = sa.open_checkpoint(lora, base=str(tiny_base), device="cpu")
    assert on_open.model_id == on_path.model_id
    assert on_open.base == on_path.base
    # The module of the base is shared, and nothing is loaded twice.
    embeddings = on_open.model.get_input_embeddings().weight
    assert embeddings.data_ptr() == base.model.get_input_embeddings().weight.data_ptr()


def test_open_base_can_still_be_scored_after_an_adapter_was_put_on_it(
    tiny_base, lora, manifest
) -> None:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    before = sa.score(base, manifest, progress=False)
    on_open = sa.open_checkpoint(lora, base=base)
    changed = sa.score(on_open, manifest, progress=False)
    after = sa.score(base, manifest, progress=False)
    (plain,) = before
    np.testing.assert_array_equal(
        before[plain].columns["nll"], after[plain].columns["nll"]
    )
    assert not np.array_equal(
        before[plain].columns["nll"], changed[plain].columns["nll"]
    )


def test_open_base_serves_adapters_that_are_given_as_paths(
    audit, tiny_base, lora, report_of_path
) -> None:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    report = audit("open", {"lora": lora}, base=base)
    assert_equal_figures(report, report_of_path)
    assert sa.open_checkpoint(lora, base=base).name == "lora"


def test_adapter_in_files_on_a_base_in_memory_is_refused(
    audit, tiny_base, lora
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with pytest.raises(CheckpointError, match="PeftModel"):
        audit("wrong", {"lora": lora}, base=model)


def test_option_that_the_open_base_has_decided_is_refused(tiny_base, lora) -> None:
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    with pytest.raises(InputError, match="^--dtype: .*'float32'"):
        sa.open_checkpoint(lora, base=base, dtype="bfloat16")


def test_model_that_changed_is_scored_anew_in_the_same_folder(audit, tiny_base) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    before = figures(audit("report", {"m": model}))
    assert figures(audit("report", {"m": model})) == before
    with torch.no_grad():
        model.lm_head.weight.mul_(0.7)
    assert figures(audit("report", {"m": model})) != before


def test_open_model_that_changed_is_scored_anew_in_the_same_folder(
    audit, manifest, tiny_base
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    opened = sa.open_checkpoint(model, name="m", tokenizer=tiny_base)
    before = audit("report", opened)
    scores_before = sa.score(opened, manifest)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.7)
    after = audit("report", opened)

    assert figures(after) != figures(before)
    assert figures(after) == figures(audit("fresh", {"m": model}))
    [facts_before], [facts_after] = before.checkpoints, after.checkpoints
    assert facts_after.weights_sha256 != facts_before.weights_sha256
    assert sa.score(opened, manifest).model_id != scores_before.model_id


def test_an_audit_leaves_pythons_random_numbers_as_they_were(
    audit, tiny_base, monkeypatch
) -> None:
    def conclude_and_draw(*args: Any) -> Any:
        random.random()
        return conclude(*args)

    # A library that is imported during an audit may draw, as rich does.
    monkeypatch.setattr("spark_audit.pipeline.run.conclude", conclude_and_draw)
    state = random.getstate()
    audit("report", {"m": AutoModelForCausalLM.from_pretrained(tiny_base)})
    assert random.getstate() == state


def test_model_in_memory_needs_its_manifest(tiny_base, tmp_path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with pytest.raises(InputError, match="^--manifest: "):
        sa.audit(model, output=tmp_path / "report", progress=False)


def test_a_manifest_in_memory_gives_the_figures_of_its_file(
    audit, manifest, tiny_base, tmp_path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    settings = {key: value for key, value in QUICK.items() if key != "device"}
    opened = sa.read_manifest(manifest)
    in_memory = sa.audit(model, opened, output=tmp_path / "open", **settings)
    of_file = audit("file", model)
    assert_equal_figures(in_memory, of_file)
    assert in_memory.manifest.name == of_file.manifest.name
    with pytest.raises(TypeError, match="^manifest: dict "):
        sa.audit(model, {}, **settings)


def test_two_open_checkpoints_of_one_name_are_refused(audit, tiny_base) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with pytest.raises(InputError, match="^checkpoints: .*'"):
        audit("twice", [model, model])


@pytest.mark.parametrize("checkpoints", [[], {}, {"m": []}])
def test_a_call_without_a_checkpoint_is_refused(audit, tmp_path, checkpoints) -> None:
    with pytest.raises(InputError, match="^(--ckpt: |checkpoints)"):
        audit("report", checkpoints)
    assert not (tmp_path / "report").exists()


def test_an_open_checkpoint_with_the_name_of_a_path_is_refused(
    audit, tiny_base
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    with pytest.raises(InputError, match="^--ckpt: .*'tiny-base'"):
        audit("report", [model, tiny_base])


@pytest.mark.parametrize(
    ("checkpoints", "problem"),
    [
        (3, "checkpoints: 3 is neither"),
        (None, "checkpoints: None is neither"),
        ([3], "checkpoints: 3 is neither"),
        ({"m": 3}, r"checkpoints\['m'\]: 3 is neither"),
        ({"m": ["runs/1", None]}, r"checkpoints\['m'\]: None is neither"),
        ({1: "runs/mine"}, "the name 1 is not a text"),
    ],
)
def test_what_is_no_checkpoint_is_named(audit, checkpoints, problem) -> None:
    with pytest.raises(TypeError, match=problem):
        audit("report", checkpoints)


def test_relearning_is_refused_for_what_is_open(audit, tiny_base, manifest) -> None:
    loaded = sa.open_checkpoint(tiny_base, device="cpu")
    with pytest.raises(InputError, match="^--relearn: "):
        audit("again", {"m": loaded}, relearn=manifest)


def test_a_manifest_is_built_from_a_path_an_open_checkpoint_or_a_model(
    tiny_base,
) -> None:
    rows = examples()[:20]
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    opened = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    of_file = build_manifest(rows, opened, name="m", caliper=2.0)
    assert of_file.pairs
    for reference in (tiny_base, str(tiny_base), model):
        built = build_manifest(rows, reference, name="m", caliper=2.0)
        assert built.pairs == of_file.pairs
        assert built.reference.tokenizer_sha256 == of_file.reference.tokenizer_sha256

    # A model that was loaded from no folder needs its tokenizer.
    model.config._name_or_path = ""
    with pytest.raises(CheckpointError, match="tokenizer="):
        build_manifest(rows, model, name="m")
    built = build_manifest(rows, model, name="m", caliper=2.0, tokenizer=tokenizer)
    assert built.pairs == of_file.pairs
    with pytest.raises(sa.SparkError, match="^reference: 3 "):
        build_manifest(rows, 3, name="m")  # type: ignore[arg-type]


def test_the_weights_of_a_model_are_hashed_once_for_scoring(
    tiny_base, manifest, lora, monkeypatch
) -> None:
    hashed: list[Any] = []
    digest = in_memory.weights_digest

    def counted(model: Any) -> str:
        hashed.append(model)
        return digest(model)

    plain = AutoModelForCausalLM.from_pretrained(tiny_base)
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_base), lora
    )
    opened = sa.open_checkpoint(
        plain, tokenizer=AutoTokenizer.from_pretrained(tiny_base)
    )
    monkeypatch.setattr(in_memory, "weights_digest", counted)
    for given in (plain, adapted, opened):
        del hashed[:]
        sa.score(given, manifest)
        assert len(hashed) == 1


def test_scores_that_are_handed_over_say_how_much_batches_change_them(
    audit, tiny_base, manifest
) -> None:
    def remarks(report: Any) -> list[str]:
        notes = [note for facts in report.checkpoints for note in facts.notes]
        return [note for note in notes if "alone and in one batch differ" in note]

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    scores = sa.score(model, manifest)
    handed = remarks(audit("handed", {"m": model}, scores={"m": scores}))
    assert len(handed) == len(remarks(audit("scored", {"m": model}))) == 1


def test_tokens_that_were_added_in_memory_are_left_out_of_scores(
    audit, tiny_base, manifest
) -> None:
    def grown(*tokens: str) -> sa.Checkpoint:
        tokenizer = AutoTokenizer.from_pretrained(tiny_base)
        tokenizer.add_tokens([*tokens])
        model = AutoModelForCausalLM.from_pretrained(tiny_base)
        model.resize_token_embeddings(len(tokenizer))
        return sa.open_checkpoint(model, tokenizer=tokenizer, name="m")

    base_scores = sa.score(tiny_base, manifest)
    grown_scores = sa.score(grown("<new>", "<other>"), manifest)
    for scoring_pass, table in base_scores.items():
        grown_nll = grown_scores[scoring_pass].columns["nll"]
        np.testing.assert_allclose(grown_nll, table.columns["nll"], atol=1e-5)
    assert any("2 added tokens hold" in note for note in grown_scores.notes)

    report = audit("grown", {"m": grown("<new>")}, base=str(tiny_base))
    (facts,) = [facts for facts in report.checkpoints if facts.name == "m"]
    assert any("1 tokens more than the base's" in note for note in facts.notes)

    # A token of the base with another rule is another tokenizer.
    with pytest.raises(InputError, match="^checkpoint .*: tokenizer"):
        sa.score(grown("<pad>", "<new>"), manifest)
