"""The line after an interrupt says `resume` only of commands that keep their work."""

import pytest

from spark_audit.audits import audit_names
from spark_audit.audits.known import ALL_AUDITS
from spark_audit.cli.data_commands import DATA_COMMANDS
from spark_audit.cli.kept_work import keeps_nothing
from spark_audit.cli.main import REPORT_COMMANDS
from spark_audit.cli.main import run as run_audit
from spark_audit.cli.manifest_commands import MANIFEST_COMMANDS
from spark_train import kept_work, training_settings
from spark_train.cli import TRAIN_COMMANDS
from spark_train.cli import run as run_training

RESUMED = {"demo", "manifest build", ALL_AUDITS, *audit_names()} - {"generated"}


def commands_of_audit() -> list[str]:
    """All commands, those of groups with the group's name before them."""
    names = ["demo", "inspect", ALL_AUDITS, *audit_names(), *REPORT_COMMANDS]
    names += [f"data {name}" for name in DATA_COMMANDS]
    names += [f"manifest {name}" for name in MANIFEST_COMMANDS]
    return names


def test_every_command_that_keeps_nothing_is_known():
    resumed = {
        name for name in commands_of_audit() if not keeps_nothing([*name.split(), "x"])
    }
    assert resumed == RESUMED
    assert {name for name in TRAIN_COMMANDS if not kept_work.keeps_nothing([name])} == {
        "run"
    }


@pytest.mark.parametrize("words", [[], ["--help"], ["data"], ["manifest"]])
def test_words_without_a_command_keep_nothing(words):
    assert keeps_nothing(words)
    assert kept_work.keeps_nothing(words)


@pytest.mark.parametrize("option", ["--through", "--through=models/base"])
def test_a_model_that_is_trained_on_a_file_keeps_its_scores(option):
    assert keeps_nothing(["generated", "a.jsonl"])
    assert not keeps_nothing(["generated", "a.jsonl", option])


def interrupt(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_the_line_of_a_command_that_keeps_nothing_resumes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(training_settings, "describe", interrupt)
    assert run_training(["methods"]) == 130
    assert "resume" not in capsys.readouterr().err

    monkeypatch.setattr("spark_audit.cli.data_commands.read_examples", interrupt)
    assert run_audit(["data", "inject", __file__, "-o", "no-such-folder"]) == 130
    assert "resume" not in capsys.readouterr().err
