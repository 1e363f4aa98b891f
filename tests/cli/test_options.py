"""Help, options from files and the environment, completion of the shell."""

import shlex
from pathlib import Path

import pytest
from cyclopts import App

from spark_audit.audits import AUDITS, all_audits
from spark_audit.cli import audit
from spark_audit.cli.main import (
    COMMAND_GROUPS,
    EXAMPLE_OPTIONS,
    EXAMPLES,
    command_app,
    run,
)
from spark_audit.options import ADVANCED, HOW, OUTPUT, WHAT, WHERE
from spark_audit.pipeline.request import Request
from spark_train.cli import TRAIN_COMMANDS as TRAIN_COMMANDS
from spark_train.cli import command_app as train_app
from spark_train.cli import run as train

AUDIT_EXAMPLES = [audit.example for audit in all_audits().values() if audit.example]
COMMANDS = (*EXAMPLES, *(line.split()[0] for line in AUDIT_EXAMPLES), "matched")


@pytest.fixture
def requests(monkeypatch, tmp_path) -> list[Request]:
    """The requests that commands make in a folder with paths; nothing is run."""
    collected: list[Request] = []
    monkeypatch.chdir(tmp_path)
    for name in ("x", "a", "b", "file", "m.json", "rows.jsonl", "other.json"):
        (tmp_path / name).touch()
    monkeypatch.setattr(
        audit, "_audit", lambda request, **way: collected.append(request)
    )
    return collected


def names_of(request: Request) -> list[str]:
    return [audit.name for audit in request.audits]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_panels_whole_choices_and_examples(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "Examples" in out
    assert f"spark-audit {command}" in out.split("Examples")[1]
    panels = [panel.name for panel in (WHAT, HOW, WHERE, OUTPUT, ADVANCED)]
    shown_panels = [panel for panel in panels if f"─ {panel} ─" in out]
    places = [out.index(f"─ {panel} ─") for panel in shown_panels]
    assert shown_panels
    assert places == sorted(places)
    # What stands for a value is not broken in two.
    called = {"auto|cpu|cuda", "[NAME=]PATH...", "DIR|DATA..."}
    if command == "all":
        assert {call for call in called if call in out} == called


def test_every_example_is_a_command_that_can_be_read():
    usual = f"matched {EXAMPLE_OPTIONS}"
    for line in (*EXAMPLES.values(), *AUDIT_EXAMPLES, usual):
        argv = shlex.split(line)
        command, bound, _ = command_app(argv).parse_args(argv)
        assert callable(command)
        assert bound.arguments


def test_skip_leaves_audits_out(requests, capsys):
    assert run(["all", "--ckpt", "x", "--skip", "noise", "mia", "--skip", "nll"]) == 0
    assert {"noise", "mia", "nll"} & {*names_of(requests[0])} == set()
    assert "matched" in names_of(requests[0])
    assert run(["all", "--ckpt", "x", "--skip", "noize"]) == 2
    assert '"noise"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        ("", False),
        ("--also noise", True),
        ("--draws 1", True),
        ("--also noise --skip noise", False),
        ("--skip mia", False),
    ],
)
def test_all_runs_noise_only_where_it_is_asked_for(requests, capsys, typed, runs):
    assert run(["all", "--ckpt", "x", *typed.split()]) == 0
    assert ("noise" in names_of(requests[0])) is runs
    silent = runs or "--skip noise" in typed
    left_out = "series doors erasure" if silent else "noise series doors erasure"
    assert f" {left_out} (--also " in capsys.readouterr().err
    assert run(["noise", "--ckpt", "x"]) == 0
    assert names_of(requests[1]) == ["noise"]
    assert run(["all", "--ckpt", "x", "--also", "mia"]) == 2


def test_flag_wins_over_file_and_file_over_environment(requests, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_AUDIT_BASE", "environment")
    monkeypatch.setenv("SPARK_AUDIT_DEVICE", "cuda")
    monkeypatch.setenv("SPARK_AUDIT_MANIFEST", "m.json")
    file = tmp_path / "audit.toml"
    file.write_text(
        'ckpt = ["a", "n=b"]\nbase = "file"\nseed = 3\nbatch-size = 8\n'
        'format = ["md", "json"]\nrematched = false\nskip = "noise"\n'
    )
    assert run(["all", "--config", str(file), "--seed", "5"]) == 0
    (request,) = requests
    assert (request.base, request.seed, request.batch_size) == ("file", 5, 8)
    assert (request.loading.device, request.manifest) == ("cuda", Path("m.json"))
    assert (request.checkpoints, request.formats) == (("a", "n=b"), ("md", "json"))
    assert request.audits[0].rematched is False
    assert "noise" not in names_of(request)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('limt = "x"', 'Unknown option: "[limt]"'),
        ('limt = "x"', "Did you mean --limit?"),
        ("seed = 3.5", ", seed: '3.5' is no whole number"),
        ('rematched = "perhaps"', 'unable to convert "perhaps"'),
        ("base = {a = 1}", 'Unknown option: "[base][a]"'),
        ("base = ", "is no TOML"),
        ("trust-remote-code = true", "is taken from the command line only"),
        ("trust_remote_code = false", "is taken from the command line only"),
        (None, "there is no such file or folder"),
        ('manifest = ["a", "b"]', "for [manifest] from"),
        ('all = {base = "a"}', 'Unknown option: "[all][base]"'),
        ('gate = "x"', 'Unknown option: "[gate]"'),
        ('config = "x"', 'Unknown option: "[config]"'),
        ("batch-size = 1\nbatch_size = 2", "gives batch-size twice"),
    ],
)
def test_what_a_file_of_options_cannot_say(text, message, tmp_path, capsys):
    file = tmp_path / "bad.toml"
    if text is not None:
        file.write_text(text)
    assert run(["all", "--ckpt", "x", "--config", str(file)]) in (2, 4)
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_no_variable_trusts_the_code_of_a_checkpoint(requests, tmp_path, monkeypatch):
    for prefix in ("SPARK_AUDIT", "SPARK_AUDIT_ALL", "HF", "TRANSFORMERS"):
        monkeypatch.setenv(f"{prefix}_TRUST_REMOTE_CODE", "1")
    assert run(["all", "--ckpt", "x"]) == 0
    assert requests[0].loading.trust_remote_code is False
    (tmp_path / "c.toml").write_text("trust_remote_code = true")
    monkeypatch.setenv("SPARK_AUDIT_CONFIG", str(tmp_path / "c.toml"))
    assert run(["all", "--ckpt", "x"]) == 2
    assert len(requests) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_options_and_audits(shell):
    script = command_app([*AUDITS, "all"]).generate_completion(shell=shell)
    assert all(word in script for word in ("--skip", "noise", "manifest"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_quiet_or_verbose(command, capsys):
    assert run([*command.split(), "--help", "--quiet", "--verbose"]) == 0
    assert {"--quiet", "--verbose"} <= {*capsys.readouterr().out.split()}


def test_the_manifest_of_a_file_is_the_one_that_is_audited(requests, tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text('manifest = "m.json"\n')
    assert run(["all", "--ckpt", "x", "--config", str(file)]) == 0
    assert requests[0].manifest == Path("m.json")
    assert (
        run(["all", "--ckpt", "x", "--config", str(file), "--manifest", "other.json"])
        == 0
    )
    assert requests[1].manifest == Path("other.json")
    file.write_text('data = ["rows.jsonl"]\n')
    assert run(["utility", "--ckpt", "x", "--config", str(file)]) == 0
    assert requests[2].data == (Path("rows.jsonl"),)


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        (
            "all",
            'ckpt = "a"\nmanifest = "no.json"\ndata = "no.jsonl"',
            ", data: takes the place of a manifest",
        ),
        ("nll", 'ckpt = "a"\nmanifest = "no.json"', ", manifest: no.json: there is no"),
        ("utility", 'ckpt = "a"\ndata = "no.jsonl"', ", data: no.jsonl: there is no s"),
        ("nll", 'ckpt = ["a", "no"]', ", ckpt: no: there is no such file or folder"),
        ("nll", 'ckpt = "a"\nbase = "x=[a,b]"', ", base: x=[a,b]: is a list"),
        ("nll", 'ckpt = "a"\nbase = ""', ", base: is empty"),
    ],
)
def test_an_error_about_a_key_of_a_file_names_both(
    command, content, message, requests, tmp_path, capsys
):
    file = tmp_path / "audit.toml"
    file.write_text(content + "\n")
    assert run([command, "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"{file}{message}" in error
    assert error.count("\n") == 1
    assert not requests


def test_an_error_about_what_was_typed_names_no_file(requests, tmp_path, capsys):
    file = tmp_path / "audit.toml"
    file.write_text('base = "a"\nckpt = "b"\n')
    assert run(["nll", "--ckpt", "none", "--config", str(file)]) == 2
    assert "error: none: " in capsys.readouterr().err
    assert run(["nll", "--base", "none", "--config", str(file)]) == 2
    assert "error: none: " in capsys.readouterr().err
    assert not requests


def test_an_error_about_a_variable_names_it_and_an_empty_one_is_not_set(
    requests, monkeypatch, capsys
):
    monkeypatch.setenv("SPARK_AUDIT_BASE", "none")
    assert run(["nll", "--ckpt", "x"]) == 2
    assert "SPARK_AUDIT_BASE: none: " in capsys.readouterr().err
    for name in ("SPARK_AUDIT_BASE", "SPARK_AUDIT_MANIFEST"):
        monkeypatch.setenv(name, "")
    assert run(["nll", "--ckpt", "x"]) == 0
    assert (requests[0].base, requests[0].manifest) == (None, None)


def options_of(app: App, command: str) -> list[str]:
    for word in command.split():
        app = app[word]
    arguments = app.assemble_argument_collection().filter_by(parse=True)
    return [
        argument.name[2:] for argument in arguments if argument.name.startswith("--")
    ]


ALL_COMMANDS = dict.fromkeys([*EXAMPLES, *AUDITS])


every_key = pytest.mark.parametrize(
    "is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "all"]
)


def few_of(keys: list[str]) -> list[str]:
    """Return the first and the last key: an option, and the name of a command."""
    return [keys[0], keys[-1]]


@every_key
@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_no_key_of_a_file_is_dropped_in_silence(command, is_whole, tmp_path, capsys):
    """A key is used or refused, also one that is the name of a command."""
    file = tmp_path / "settings.toml"
    words = command.split()
    keys = [
        *options_of(command_app(words), command),
        "config",
        "all",
        "gate",
        *COMMAND_GROUPS,
    ]
    assert keys

    # All audits have the options of a run: those are tried once, with one of them.
    if command in (*AUDITS, "all") and command != "rank":
        of_a_run = options_of(command_app(["rank"]), "rank")
        keys = [key for key in keys if key not in of_a_run]

    keys = [*dict.fromkeys(keys)]
    for key in keys if is_whole or command == "rank" else few_of(keys):
        # A table is the value of no option: who reads the key refuses it.
        file.write_text(f"{key} = {{nothing = 1}}\n")
        assert run([*words, "--config", str(file)]) == 2
        assert key in capsys.readouterr().err


@every_key
@pytest.mark.parametrize("command", TRAIN_COMMANDS)
def test_no_key_of_a_file_for_training_is_dropped_in_silence(
    command, is_whole, tmp_path, capsys
):
    file = tmp_path / "settings.toml"
    keys = [*options_of(train_app([command]), command), *TRAIN_COMMANDS]
    for key in keys if is_whole else few_of(keys):
        file.write_text(f"{key} = {{nothing = 1}}\n")
        assert train([command, "--config", str(file)]) == 2
        assert key in capsys.readouterr().err
