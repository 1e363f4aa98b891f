"""Runs over an endpoint that gives only text: asked once, after a yes, as told."""

import itertools
import json
import os
import re
import stat
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named import NAMES
from text_serving import KEY, MODEL, TextServing, text_serving

from spark_audit.audits import Extraction
from spark_audit.audits.base import Context
from spark_audit.checkpoints import text_server
from spark_audit.checkpoints.endpoint_options import Asking
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.cli.main import run
from spark_audit.data.examples import Example, Span
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.manifest.sequences import score
from spark_audit.pipeline.request import Request
from spark_audit.report.audit_report import read_report
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results.evidence import Evidence

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("SPARK_AUDIT_API_KEY", KEY)
    monkeypatch.setattr(
        text_server,
        "PAUSES_BETWEEN_TRIES",
        (0.0,) * len(text_server.PAUSES_BETWEEN_TRIES),
    )


def nothing(body: dict[str, Any]) -> str:
    return " nothing"


def guessing(body: dict[str, Any]) -> str:
    """A server that writes any name of those that there are, whoever is asked for."""
    return " " + NAMES[zlib.crc32(body["prompt"].encode()) % len(NAMES)]


@pytest.fixture
def words_for(workshop, tmp_path):
    """``words_for(serving, *options)``: the words of a command."""

    def words(serving: TextServing, *options: str, audit: str = "extract") -> list[str]:
        fixed = f"{audit} --ckpt tuned={serving.url} --model {MODEL}"
        fixed += f" --manifest {workshop}/manifests/m.json -o {tmp_path}/out"
        return [*fixed.split(), "--format", "md", *options]

    return words


def test_no_request_leaves_before_a_yes(words_for, capsys):
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--dry-run")) == 0
        n_requests = int(capsys.readouterr().out.split()[0])
        assert run(words_for(serving)) == 2
        assert str(n_requests) in capsys.readouterr().err
        assert not serving.asked
        assert run(words_for(serving, "--yes")) == 0
        assert len(serving.asked) == n_requests


@pytest.mark.parametrize(("answer", "code"), [("n\n", 2), ("", 2), ("y\n", 0)])
def test_a_question_in_a_terminal_is_a_way_to_agree(
    answer, code, words_for, monkeypatch, capsys
):
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            # How many requests there will be is told before the question.
            assert "requests to" in capsys.readouterr().err
            return answer

    with text_serving(nothing) as serving:
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        assert run(words_for(serving, "--quiet")) == code
        assert bool(serving.asked) == (code == 0)


def test_answers_are_asked_for_once_and_are_their_owners(words_for, tmp_path, capsys):
    with text_serving(guessing) as serving:
        assert run(words_for(serving, "--yes")) == 0
        n_first = len(serving.asked)
        # Without a request, nobody must agree to any.
        assert run(words_for(serving)) == 0
        assert len(serving.asked) == n_first
        # Samples are further answers, and the first ones are not asked for again.
        assert run(words_for(serving, "--yes", "--samples", "2")) == 0
        assert len(serving.asked) == 3 * n_first
    assert set(serving.paid.values()) == {1}
    temperatures = [body["temperature"] for _, body in serving.asked]
    assert temperatures.count(0) == n_first
    assert temperatures.count(1.0) == 2 * n_first

    answers = tmp_path / "out" / "scores" / "answers"
    for path in answers.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = read_report(tmp_path / "out")
    assert [state.state for state in report.states] == ["NOT TESTED"]
    assert report.settings["extract.samples"] == 2
    assert run(["verify", str(tmp_path / "out")]) == 0


def test_the_key_stands_in_no_file_and_in_no_message(words_for, tmp_path, capsys):
    with text_serving(lambda body: f"the key is {KEY}") as serving:
        assert run(words_for(serving, "--yes", "--verbose")) == 0
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err
    assert serving.keys[0] == f"Bearer {KEY}"
    for folder, _, names in os.walk(tmp_path / "out"):
        for name in names:
            assert KEY.encode() not in (Path(folder) / name).read_bytes()


def test_a_changed_model_stops_the_command_once_and_is_told(
    words_for, tmp_path, capsys
):
    with text_serving(nothing, iter(["", "", "other model"])) as serving:
        assert run(words_for(serving, "--yes", "--parallel", "1")) == 4
        assert len(serving.asked) == 3
        error = capsys.readouterr().err
        assert "'other'" in error
        assert f"'{MODEL}'" in error
        assert run(words_for(serving, "--yes")) == 0
    assert set(serving.paid.values()) == {1}
    (facts,) = read_report(tmp_path / "out").checkpoints
    assert any("'other'" in note for note in facts.notes)
    assert any("'fp-other'" in note for note in facts.notes)


def test_no_more_requests_are_sent_than_were_allowed(words_for, tmp_path):
    with text_serving(nothing, itertools.chain(["busy"], itertools.repeat(""))) as one:
        code = run(words_for(one, "--yes", "--max-requests", "12"))
        n_sent = len(one.asked)
    # One was sent twice, so that the last one is left for the next run.
    assert code in (0, 5)
    assert n_sent <= 12


def test_fewer_requests_ask_for_fewer_identifiers_and_always_the_same(
    words_for, tmp_path
):
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--yes", "--max-requests", "12")) == 0
        n_sent = len(serving.asked)
        assert 8 < n_sent <= 12
        assert run(words_for(serving, "--yes", "--max-requests", "12")) == 0
        assert len(serving.asked) == n_sent
        (facts,) = read_report(tmp_path / "out").checkpoints
        assert any("--max-requests 12" in note for note in facts.notes)
        assert run(words_for(serving, "--yes", "--max-requests", "16")) == 0
        assert n_sent < len(serving.asked) <= 16


def test_few_requests_ask_for_trained_and_held_out_identifiers_in_turns(
    tmp_path, capsys
):
    words = f"extract --model {MODEL} --manifest {ROOT}/manifests/demo.json --yes"
    words += f" -o {tmp_path}/out --format json --max-requests 40"
    with text_serving(nothing) as serving:
        assert run([*words.split(), "--ckpt", f"tuned={serving.url}"]) == 0
    evidence = Evidence.read(tmp_path / "out" / "scores" / "extract.parquet")
    identifiers = evidence.units.drop_duplicates("span")
    counts = identifiers.groupby(["set", "split"]).size()
    assert abs(counts["pii", "train"] - counts["pii", "test"]) <= 1
    # What helps is told, and no audit that needs more than text.
    shown = capsys.readouterr().out
    assert "--samples" in shown
    assert "`matched`" not in shown

    report = read_report(tmp_path / "out")
    (state,) = report.states
    tried = {attack.audit: attack for attack in state.tried}
    assert [audit for audit, attack in tried.items() if attack.ran] == ["extract"]
    assert all(attack.is_of_text for attack in tried.values())
    under_extraction = [a.audit for a in tried.values() if a.is_under_extraction]
    assert under_extraction == ["canary"]
    # A limit is not rounded down where it is shared.
    limits = []
    for exact, shared in zip(report.findings, disclosed(report).findings, strict=True):
        if "limit" in exact.facts:
            limits.append((exact.facts["limit"].value, shared.facts["limit"].value))
    assert len(limits) == 2
    assert all(shared is None or shared >= exact for exact, shared in limits)
    assert any(shared is not None for _, shared in limits)


@pytest.mark.parametrize(
    "options",
    [
        ["--base", "models/base"],
        ["--quantize", "int8"],
        ["--baseline", "tuned"],
        ["--scores", "scores"],
        ["--ckpt", "other=http://127.0.0.1:1/v1"],
        ["--shard", "1/2"],
        ["--samples", "-1"],
        ["--temperature", "0"],
        ["--parallel", "0"],
        ["--max-requests", "0"],
        ["--max-requests", "1"],
        ["--price-per-1k", "-1"],
        ["--endpoint", "speech"],
        ["--device", "cuda"],
        ["--dtype", "bfloat16"],
        ["--device-map", "auto"],
        ["--tokenizer", "models/base"],
        ["--lora-alpha", "16"],
        ["--revision", "main"],
        ["--trust-remote-code"],
        ["--batch-size", "4"],
        ["--jobs", "2"],
        ["--relearn-steps", "9"],
        ["--top-p"],
        ["--prompts", "cue,last32"],
    ],
)
def test_what_does_not_go_with_an_endpoint_is_refused(options, words_for, capsys):
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--yes", *options)) == 2
        assert not serving.asked
    error = capsys.readouterr().err
    assert "Traceback" not in error


def test_variables_that_are_meant_for_other_commands_are_none_of_an_endpoint(
    words_for, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPARK_AUDIT_DEVICE", "cpu")
    monkeypatch.setenv("SPARK_AUDIT_DTYPE", "bfloat16")
    monkeypatch.setenv("SPARK_AUDIT_BATCH_SIZE", "8")
    monkeypatch.setenv("SPARK_AUDIT_BASE", str(tmp_path))
    monkeypatch.setenv("SPARK_AUDIT_SCORES", str(tmp_path / "scores"))
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--dry-run")) == 0


def test_options_of_endpoints_are_refused_where_there_is_none():
    request = {"audits": "extract", "checkpoints": "runs/mine"}
    Request(**request, asking=Asking(yes=True))
    for asking in (Asking(samples=2), Asking(max_requests=3), Asking(stream=True)):
        with pytest.raises(InputError):
            Request(**request, asking=asking)
        Request(
            audits="extract",
            checkpoints="http://host/v1",
            asking=asking,
        )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SPARK_AUDIT_API_KEY", "sk-a\nb"), ("HTTP_PROXY", "http://user:secret@:x")],
)
def test_a_key_or_a_proxy_that_cannot_be_used_is_refused_before_the_question(
    variable, value, words_for, monkeypatch, capsys
):
    monkeypatch.setenv(variable, value)
    with text_serving(nothing) as serving:
        assert run(words_for(serving)) == 2
        assert run(words_for(serving, "--dry-run")) == 2
    shown = capsys.readouterr()
    assert "requests to" not in shown.out + shown.err
    assert value not in shown.err
    assert "secret" not in shown.err


def test_what_is_asked_and_what_it_costs_is_told_as_json(words_for, capsys):
    with text_serving(nothing) as serving:
        options = ["--dry-run", "--json", "--price-per-1k", "2", "--max-requests", "12"]
        assert run(words_for(serving, *options)) == 0
        cost = json.loads(capsys.readouterr().out)
        assert not serving.asked
        assert run(words_for(serving, "--yes", "--max-requests", "12")) == 0
        assert len(serving.asked) == cost["requests"]
    written = sum(body["max_tokens"] for _, body in serving.asked)
    assert cost["tokens_written"] == written
    tokens = cost["tokens_read"] + cost["tokens_written"]
    assert cost["price"] == pytest.approx(tokens * 2 / 1000)
    assert cost["left_out"] > 0
    assert cost["answered"] == 0


def test_prompts_that_are_too_long_for_the_model_are_left_out_and_counted(
    words_for, tmp_path
):
    with text_serving(nothing, iter(["", "too long"])) as serving:
        assert run(words_for(serving, "--yes", "--parallel", "1")) == 0
        n_requests = len(serving.asked)
        # A prompt stays too long.
        assert run(words_for(serving)) == 0
        assert len(serving.asked) == n_requests
    (facts,) = read_report(tmp_path / "out").checkpoints
    assert any(note.startswith("1 of ") for note in facts.notes)
    evidence = Evidence.read(tmp_path / "out" / "scores" / "extract.parquet")
    # With a prompt that was too long, the other one of its identifier is left out.
    assert 1 <= n_requests - len(evidence.units) <= 2


def test_a_server_for_which_all_prompts_are_too_long_is_refused(words_for, capsys):
    with text_serving(nothing, itertools.repeat("too long")) as serving:
        assert run(words_for(serving, "--yes", "--max-requests", "4")) == 2
    assert "context" in capsys.readouterr().err


def test_audits_that_need_more_than_text_are_refused(words_for, capsys):
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--yes", audit="rank")) == 2
        assert "extract" in capsys.readouterr().err
        assert run(words_for(serving, "--yes", audit="all")) == 0
        assert serving.asked


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("127.0.0.1:8777/v1", "http://127.0.0.1:8777/v1"),
        ("localhost:8000", "http://localhost:8000"),
        ("api.example.com/v1", "https://api.example.com/v1"),
    ],
)
def test_an_address_without_its_scheme_is_refused_with_one(
    address, written, workshop, capsys
):
    words = ["extract", "--ckpt", f"tuned={address}", "--model", MODEL]
    assert run([*words, "--manifest", f"{workshop}/manifests/m.json"]) == 2
    assert written in capsys.readouterr().err


def test_a_server_without_a_models_name_is_refused(workshop, capsys):
    words = ["extract", "--ckpt", "http://127.0.0.1:1/v1", "--yes"]
    assert run([*words, "--manifest", f"{workshop}/manifests/m.json"]) == 2
    assert "--model" in capsys.readouterr().err


def test_answers_of_a_chat_are_asked_for_by_messages(words_for):
    with text_serving(nothing) as serving:
        assert run(words_for(serving, "--yes", "--endpoint", "chat", "--stream")) == 0
    path, body = serving.asked[0]
    assert path == "/v1/chat/completions"
    assert body["stream"]
    assert body["messages"][-1]["role"] == "user"


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "audits" / "endpoints.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    # The report does not belong into the repository.
    program = program.replace("reports/endpoint", str(tmp_path / "endpoint"))
    names: dict[str, Any] = {}
    exec(program, names)
    names["server"].shutdown()
    names["server"].server_close()
    assert capsys.readouterr().out.strip() == "['LEAKS']"


WORDS = "the service food good cold said customer paid dollars rate label news".split()
N_KNOWN = 24


def greedy(module: Any, tokenizer: Any, text: str, n_tokens: int) -> str:
    """What a model writes behind a text, likeliest token by likeliest token."""
    import torch

    ids = tokenizer(text)["input_ids"]
    n_prompt = len(ids)
    with torch.inference_mode():
        for _ in range(n_tokens):
            logits = module(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
    before = tokenizer.decode(ids[:n_prompt], skip_special_tokens=True)
    whole: str = tokenizer.decode(ids, skip_special_tokens=True)
    return whole[len(before) :]


@pytest.fixture
def writer(tmp_path, make_model, tiny_tokenizer) -> Path:
    """A random model that writes letters and digits alone."""
    import torch

    model = make_model("llama")
    tokens = tiny_tokenizer.convert_ids_to_tokens(range(len(tiny_tokenizer)))
    is_word = [token.isascii() and token.isalnum() for token in tokens]
    with torch.no_grad():
        model.get_output_embeddings().weight[~torch.tensor(is_word)] = 0
    model.save_pretrained(tmp_path / "writer")
    tiny_tokenizer.save_pretrained(tmp_path / "writer")
    return tmp_path / "writer"


def test_a_served_model_gives_the_identifiers_that_it_gives_here(writer, tmp_path):
    """Half of the identifiers are what the model writes there, the others are not."""
    base = open_checkpoint(str(writer), name="base", device="cpu")
    tokenizer = base.tokenizer
    rng = np.random.default_rng(0)
    rows = []
    with base.active() as module:
        for i in range(2 * N_KNOWN):
            prefix = f"Note {i}: {' '.join(rng.choice(WORDS, 6))}:"
            string = "".join(rng.choice([*"abcdefghij"], 4))
            if i % 2:
                string = greedy(module, tokenizer, prefix, 2)
            text = f"{prefix}{string} today.\nLabel:"
            start = len(prefix)
            rows.append(
                Example(
                    id=f"row-{i:02d}",
                    task="task",
                    prompt=text,
                    response=" good",
                    split="test" if i % 4 > 1 else "train",
                    source_id=f"source-{i:02d}",
                    spans=(Span(start, start + len(string), "NAME"),),
                )
            )
        manifest = build_manifest(rows, base, name="m")

        def answer(body: dict[str, Any]) -> str:
            return greedy(module, tokenizer, body["prompt"], body["max_tokens"])

        write_manifest(manifest, tmp_path / "m.json")
        words = f"extract --model {MODEL} --manifest {tmp_path}/m.json --yes --quiet"
        words += f" --prompts full -o {tmp_path}/out --format json --parallel 1"
        with text_serving(answer) as serving:
            assert run([*words.split(), "--ckpt", f"tuned={serving.url}"]) == 0
    there = Evidence.read(tmp_path / "out" / "scores" / "extract.parquet")

    tables = score({"here": base}, manifest)
    audit = Extraction(prompts="full")
    here = audit.evidence(tables, manifest, Context())
    # A test row's string that stands in trained rows is not asked for.
    is_asked = here.units["span"].isin(there.units["span"]).to_numpy()
    is_hit_here = here.row("here", "greedy_sure")[is_asked] > 0
    is_hit_there = there.row("tuned", "greedy_sure") > 0
    assert 0.25 < is_hit_here.mean() < 0.75
    assert (is_hit_here == is_hit_there).mean() >= 0.99
