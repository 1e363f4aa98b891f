"""What is made to be shared gives no text back to whoever has the base model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from decoding import Attacker, Figure, figure, tables_of

from spark_audit.attachments import read_cases
from spark_audit.build import build_manifest
from spark_audit.cli import run as command_line
from spark_audit.examples import Example, Span, write_examples
from spark_audit.manifest import Manifest, read_manifest, write_manifest
from spark_audit.pipeline import Request, run
from spark_audit.table import read_parquet
from spark_train.cli import run as training_line

FIRST, LAST = ("Maria", "John", "Peter", "Alice"), ("Jones", "Smith", "Brown", "Green")
TEXTS = (
    "It was the best of times, it was the worst of times, and {} of Dover knew both.",
    "Call me {}. Some years ago, never mind how long, I thought I would sail a little.",
    "Happy families are all alike; that of {} was unhappy in its own way.",
    "Dear {}, the food was cold and the service slow, but the label is positive.",
    "You don't know about {} without you have read a book; that ain't no matter.",
    "The clocks were striking thirteen. {} slipped quickly through the glass doors.",
)


def rows() -> list[Example]:
    """Natural text with a name each; none stands twice, or rows were one cluster."""
    made = []
    for i in range(16):
        name, task = f"{FIRST[i % 4]} {LAST[i // 4]}", ("news", "books")[i % 2]
        prompt = TEXTS[i % 6].format(name) + f" Text {i}. Label:"
        start = prompt.index(name)
        made.append(
            Example(
                id=f"row-{i:02d}",
                task=task,
                prompt=prompt,
                response=" good" if i % 3 else " cold",
                split="test" if i % 4 == 3 else "train",
                source_id=f"source-{i:02d}",
                spans=(Span(start, start + len(name), "NAME"),),
            )
        )
    return made


@pytest.fixture(scope="module")
def attacker(tiny_base: Path) -> Attacker:
    return Attacker(tiny_base)


@pytest.fixture(scope="module")
def audited(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_base: Path,
    make_adapter: Callable[..., Path],
) -> Path:
    """``data.jsonl``, ``m.json`` of the tiny base, and ``report`` of two audits."""
    from spark_audit.checkpoints import open_checkpoint

    folder = tmp_path_factory.mktemp("audited")
    make_adapter(folder / "lora")
    write_examples(folder / "data.jsonl", rows())
    manifest = build_manifest(
        rows(), open_checkpoint(str(tiny_base), name="base"), name="m", caliper=2.0
    )
    assert manifest.pairs
    write_manifest(manifest, folder / "m.json")
    run(
        Request(
            audits=("matched", "rank", "nll", "mia"),
            ckpt=(f"ours={folder / 'lora'}",),
            base=str(tiny_base),
            manifest=folder / "m.json",
            output=folder / "report",
            loading={"device": "cpu"},
            audit_options={"placebo_draws": 2, "blind_permutations": 0},
            formats=("json",),
        )
    )
    return folder


def texts_of(manifest: Manifest) -> list[str]:
    return [example.prompt + example.response for example in manifest.examples]


def test_the_attack_reads_texts_from_the_files_that_are_kept_private(
    audited: Path, attacker: Attacker
) -> None:
    """Else the tests below would show nothing."""
    manifest = read_manifest(audited / "m.json")
    texts = texts_of(manifest)
    assert attacker.recovered(audited / "m.json", texts) == set(texts)
    scores = audited / "report" / "scores"
    for name in ("cases.parquet", "tables/base.plain.parquet"):
        frame = read_parquet(scores / name).to_pandas()
        column = "nll/base" if "nll/base" in frame else "nll"
        for key, part in frame.dropna(subset=[column]).groupby("example"):
            # Four decimals, and the last of two alike is enough for a whole text.
            read = attacker.decode([figure(f"{nll:.4f}") for nll in part[column]])
            text = attacker.tokenizer.decode(read)
            example = manifest.by_id[key]
            assert text == example.prompt + example.response
    for path in scores.rglob("*"):
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


def test_nothing_that_can_be_shared_gives_text_back(
    audited: Path, attacker: Attacker
) -> None:
    texts = texts_of(read_manifest(audited / "m.json"))
    redacted, folder = audited / "redacted.json", audited / "report"
    call = ["manifest", "export", str(audited / "m.json"), "--redact"]
    assert command_line([*call, "-o", str(redacted)]) == 0
    assert command_line(["report", str(folder)]) == 0
    files = {p for p in folder.rglob("*") if p.is_file() and "scores" not in p.parts}
    kept = {p for p in files if p.stat().st_mode & 0o077 == 0}
    assert kept == {folder / "report.json"}
    read = [p for p in files if p.suffix not in (".png", ".pdf")]
    assert {p.suffix for p in read} == {".json", ".csv", ".html", ".md", ".tex", ".svg"}
    for path in (redacted, *read):
        assert attacker.recovered(path, texts) == set(), path
    # Nor is anything left that is told of a single span.
    told = json.loads(redacted.read_bytes())
    for example in told["examples"]:
        assert example["reference_unll"] == example["low"] == []
        assert example["classes"] == ""
    for pair in told["pairs"]:
        found = pair["distance"], pair["pii"]["nll"], pair["control"]["nll"]
        assert found == (None, None, None)


def test_a_redacted_manifest_is_shown_and_not_audited_with(
    audited: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, redacted = tmp_path / "m.json", tmp_path / "redacted.json"
    shutil.copy(audited / "m.json", source)
    before = source.read_bytes()
    call = ["manifest", "export", str(source), "--redact", "-o"]
    assert command_line([*call, str(source)]) == 2
    assert "would be written over" in capsys.readouterr().err
    assert source.read_bytes() == before
    assert command_line([*call, str(redacted)]) == 0
    assert command_line(["manifest", "show", str(redacted)]) == 0
    digest = read_manifest(source).digest[:12]
    wanted = f"give the original, whose digest begins with {digest}"
    base = ["--base", str(tiny_base), "--ckpt", str(tiny_base), "--device", "cpu"]
    for audit in (
        ["matched", *base, "--manifest", str(redacted), "-o", str(tmp_path / "out")],
        ["report", str(audited / "report"), "--manifest", str(redacted)],
    ):
        capsys.readouterr()
        assert command_line(audit) == 2
        assert wanted in capsys.readouterr().err


def test_a_report_of_an_earlier_version_loses_its_token_scores(
    audited: Path, attacker: Attacker, tmp_path: Path
) -> None:
    texts = texts_of(read_manifest(audited / "m.json"))
    folder = tmp_path / "report"
    shutil.copytree(audited / "report", folder)
    report = json.loads((folder / "report.json").read_bytes())
    report["tables"]["cases"] = read_cases(folder)
    report["tables"]["pair_distances"] = [{"quantile": 0.5, "distance": 0.1}]
    (folder / "report.json").write_text(json.dumps(report))
    assert attacker.recovered(folder / "report.json", texts)
    assert command_line(["report", str(folder), "--format", "csv,html,json"]) == 0
    assert not (folder / "tables" / "cases.csv").exists()
    assert not (folder / "tables" / "pair_distances.csv").exists()
    for name in ("report.json", "report.html"):
        assert attacker.recovered(folder / name, texts) == set(), name


def singled_out(
    attacker: Attacker, manifest: Manifest, key: str, figures: list[Figure]
) -> bool:
    """Whether the figures of a text's tokens tell its identifier."""
    example = manifest.by_id[key]
    ids = attacker.tokenizer(example.prompt + example.response)["input_ids"]
    # In training an EOS stands behind the text.
    ids += [attacker.tokenizer.eos_token_id] * (len(figures) - len(ids))
    (span,) = example.spans
    assert span.token_start is not None
    assert span.token_end is not None
    hidden = range(span.token_start, span.token_end)
    return attacker.singled_out(ids, hidden, figures)


def test_hidden_words_of_a_page_cannot_be_tried_out_against_its_figures(
    audited: Path, attacker: Attacker
) -> None:
    manifest, folder = read_manifest(audited / "m.json"), audited / "report"
    call = ["report", str(folder), "--manifest", str(audited / "m.json")]
    call += ["--format", "html"]
    for asked in (False, True):
        assert command_line([*call, "--show-text"] if asked else call) == 0
        page = (folder / "report.html").read_text()
        assert ("This page SHOWS IDENTIFIERS" in page) is asked
        shown = re.findall(r"<h3 id=.case-\d+-title.>Example (\S+)</h3>", page)
        tables = [t for t in tables_of(page) if t and t[0][:2] == ["token", "text"]]
        assert len(shown) == len(tables) == 4
        for key, (head, *lines) in zip(shown, tables, strict=True):
            column = head.index("base")
            figures = [figure(line[column]) for line in lines]
            assert sum(one is not None for one in figures) > 1
            assert singled_out(attacker, manifest, key, figures) is asked


def test_hidden_words_cannot_be_tried_out_against_printed_scores(
    audited: Path,
    attacker: Attacker,
    tiny_base: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest = read_manifest(audited / "m.json")
    call = ["score", str(audited / "data.jsonl"), "--base", str(tiny_base), "--json"]
    for asked in (False, True):
        assert training_line([*call, "--show-text"] if asked else call) == 0
        for found in json.loads(capsys.readouterr().out)["examples"]:
            tokens = found["tokens"]
            figures = [figure(token["nll"]) for token in tokens]
            assert singled_out(attacker, manifest, found["example"], figures) is asked
            kinds = [token["kind"] for token in tokens]
            end = len(tokens) if asked else kinds.index("pii") - 1
            for at, token in enumerate(tokens):
                assert (token["score"] is not None) == (at < end)
                assert (token["nll"] is not None) == (0 < at < end)
