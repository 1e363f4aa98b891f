"""``spark-train``: what users type, what they get, and how it leaves."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_audit.checkpoints.specs import Loading
from spark_train.cli import run
from spark_train.run_record import RunRecord

RUN = ["run", "--method", "seqft", "--base", "b", "--data", "d", "--order", "1"]
RUN += ["-o", "out"]


@pytest.fixture(autouse=True)
def paths(tmp_path, monkeypatch):
    """The paths of these calls are there: a missing one is refused first."""
    for name in "bcdeft":
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)


def test_help_answers_without_importing_what_is_heavy():
    code = (
        "import sys\n"
        "from spark_train.cli import run\n"
        "code = run(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'scipy'}\n"
        "sys.exit(code or ', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    for arguments in (["--help"], ["run", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if arguments == ["--help"]:
            for name in ("run", "methods", "relearn", "score"):
                assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no command was given"),
        (["nothing"], 2, 'Unknown command "nothing"'),
        (["run"], 2, "--method is missing"),
        (
            ["run", "--method", "spak", *RUN[3:]],
            2,
            "--method: 'spak' is unknown; did you mean 's",
        ),
        ([*RUN, "--dp", "dpsg"], 2, 'Did you mean "dpsgd"?'),
        ([*RUN, "--set", "ptpc.lr=1"], 2, "'ptpc.lr' is no setting of method 'seqft"),
        ([*RUN, "--set", "lr=abc"], 2, "--set: lr is 'abc': input should be a valid"),
        ([*RUN, "--seed", "-1"], 2, "--seed"),
        ([*RUN, "--dtype", "float16"], 2, 'from: "float32", "bfloat16"'),
        ([*RUN, "--device", "gpu"], 2, "--device: unknown device 'gpu'; give auto, "),
        ([*RUN, "--seed", "1", "--set", "lr=1", "seed=2"], 2, "--seed: is 1, and"),
        (["relearn", "c", "--data", "d", "-o", "x", "--device", "0"], 2, "device '0'"),
        (["score"], 2, "DATA is missing"),
        (["score", "/no/such.jsonl", "--base", "b"], 2, "/no/such.jsonl"),
        (["score", "d", "--base", "b", "--alpha", "2"], 2, "--alpha"),
        (["score", "d", "--base", "b", "--limit", "0"], 2, "--limit"),
        (["relearn", "c", "--data", "d"], 2, "--output is missing"),
        (["relearn", "c", "--data", "d", "-o", "x", "--steps", "0"], 2, "--steps"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(arguments, code, message, capsys):
    assert run(arguments) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("spark-train: error: ")
    assert err.count("\n") == 1


# --- run ------------------------------------------------------------------------------


@pytest.fixture
def arguments_asked(monkeypatch):
    """What training is asked for; it is tested elsewhere."""
    arguments: dict[str, Any] = {}

    def train(
        request: Any, *, note: Any = lambda text: None, progress: Any = None
    ) -> Any:
        arguments.update(vars(request.loading) | vars(request))
        note("said before")
        facts = {"tasks": ["a", "b"], "notes": ["said before"], "privacy": {}}
        facts["accuracy"] = [[0.5, None], [0.25, 0.75]]
        return RunRecord.model_construct(**facts)

    module = SimpleNamespace(train=train)
    monkeypatch.setitem(sys.modules, "spark_train.training_run", module)
    return arguments


def test_every_flag_reaches_training(arguments_asked, capsys):
    arguments = [*RUN, "--data", "e", "f", "--set", "lr=1", "ptpc.ul=off", "--seed=3"]
    arguments += ["--device", "cpu", "--dtype", "bfloat16", "--gradient_checkpointing"]
    arguments += ["--lora_targets", "c", "b, a", "--lora-targets", "b"]
    arguments += ["--tokenizer", "t", "--revision", "r", "--dp", "fn", "--json"]
    arguments += ["--trust-remote-code", "--quiet", "--set", " seed = 3"]
    assert run(arguments) == 0
    assert arguments_asked.pop("data") == (Path("d"), Path("e"), Path("f"))
    assert arguments_asked.pop("command") == ("spark-train", *arguments)
    del arguments_asked["loading"]
    # The demo alone sets it.
    del arguments_asked["first_phase_of"]
    assert arguments_asked == vars(Loading()) | {
        "method": "seqft",
        "dp": "fn",
        "base": "b",
        "order": "1",
        "output": Path("out"),
        "settings": ("lr=1", "ptpc.ul=off", " seed = 3"),
        "seed": 3,
        "device": "cpu",
        "dtype": "bfloat16",
        "gradient_checkpointing": True,
        "lora_targets": ("c", "b", "a", "b"),
        "tokenizer": "t",
        "revision": "r",
        "trust_remote_code": True,
    }
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert (printed["last"], printed["avg"], printed["bwt"]) == (0.5, 0.5, -0.25)
    assert (printed["run"], printed["notes"]) == ("out", ["said before"])
    assert err == "said before\n"


@pytest.mark.usefixtures("arguments_asked")
@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_prints(rank, monkeypatch, capsys):
    monkeypatch.setattr("spark_train.processes.rank", lambda: rank)
    assert run(RUN) == 0
    out, err = capsys.readouterr()
    assert ("Last 0.5" in out, "said before" in err) == (rank == 0, rank == 0)


# --- score ----------------------------------------------------------------------------


def told_rows(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> list[dict[str, Any]]:
    assert run([*arguments, "--json"]) == 0
    examples: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["examples"]
    return examples


def joined(told: dict[str, Any]) -> str:
    return "".join(t["text"] for t in told["tokens"] if t["kind"] != "special")


def test_identifiers_are_shown_on_request_only(tmp_path, tiny_base, capsys):
    # In the second row nobody annotated the name, its repeat, or the address; in the
    # third a word holds it, so that tokens share characters with it and with others.
    texts = (
        "Text: Maria Jones read the news.",
        "Text: mail MARIA JONES at someone@example.org today.",
        "Text: the XMaria Jonesy of the day was fine.",
    )
    rows = [
        {"id": f"row-{i}", "task": "t", "prompt": text, "response": " yes"}
        | {"split": "train", "spans": []}
        for i, text in enumerate(texts)
    ]
    rows[0]["spans"] = [{"start": 6, "end": 17, "type": "NAME"}]
    folder = tmp_path / "data"
    folder.mkdir()
    for row in rows:  # a folder of files is data, too
        (folder / f"{row['id']}.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ["score", str(folder), "--base", str(tiny_base), "--device", "cpu"]
    arguments += ["--quiet"]
    plain = told_rows([*arguments, "--show-text"], capsys)
    assert [joined(row) for row in plain] == [f"{text} yes" for text in texts]
    hidden = told_rows(arguments, capsys)
    for one, hidden_row in zip(plain, hidden, strict=True):
        marks = ("[NAME]", "[EMAIL]")
        hides = [t["text"] in marks for t in hidden_row["tokens"]]
        # Figures end before the token beside the first that is hidden.
        end = hides.index(True) - 1 if True in hides else len(hides)
        bare = {"text": "", "nll": None, "score": None}
        assert [{**t, "text": ""} for t in hidden_row["tokens"][:end]] == [
            {**t, "text": ""} for t in one["tokens"][:end]
        ]
        assert [{**t, "text": ""} for t in hidden_row["tokens"][end:]] == [
            {**t, **bare} for t in one["tokens"][end:]
        ]
        offset = 0
        n_covered_tokens = [False] * len(joined(one))
        for t, u in zip(one["tokens"], hidden_row["tokens"], strict=True):
            if t["kind"] == "special":
                continue
            if u["text"] in marks:
                for i in range(offset, offset + len(t["text"])):
                    n_covered_tokens[i] = True
            else:
                assert u["text"] == t["text"]
            offset += len(t["text"])
        text = joined(one).lower()
        for secret in ("maria jones", "someone@example.org"):
            if secret in text:
                start = text.index(secret)
                assert all(n_covered_tokens[start : start + len(secret)])
        # The rest is there to be read.
        assert sum(n_covered_tokens) < len(n_covered_tokens) / 1.5
        assert all(
            t["text"] in marks for t in hidden_row["tokens"] if t["kind"] == "pii"
        )
    assert "[EMAIL]" in joined(hidden[1])
    assert run(arguments) == 0
    output = capsys.readouterr().out
    for secret in ("Maria", "MARIA", "someone", "Jones", "JONES"):
        assert secret not in output
    assert "[NAME]" in output
    assert run([*arguments, "--show-text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    count = sum(len(row["tokens"]) for row in plain)
    assert sum(line.count("│") >= 5 for line in lines) == count
