"""How a command line is read, how it leaves, and what it shows."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from cyclopts import App, Parameter

from spark_audit import messages
from spark_audit.errors import (
    CheckpointError,
    IncompleteError,
    InputError,
    OutputError,
    one_of,
)
from spark_audit.terminal.console import keep_apart, run_command, show_facts
from spark_audit.terminal.flags import add, program
from spark_audit.terminal.interrupts import SIGNALS


def program_of(action: Callable[..., None]) -> Callable[[Sequence[str]], App]:
    """A program ``try`` whose command ``do`` has ``action`` as its body."""

    def app(words: Sequence[str]) -> App:
        program_of_words = program("try", words, help="Try.")
        add(program_of_words, "do", action)
        return program_of_words

    return app


def call(action: Callable[[], None], arguments: Sequence[str] = ("do",)) -> int:
    def do(*, text: str = "") -> None:
        action()

    return run_command(arguments, program="try", app=program_of(do))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--ckpt a b --seed 1", (("a", "b"), 1)),
        ("--ckpt a --ckpt b", (("a", "b"), 0)),
        ("--ckpt=a b", (("a", "b"), 0)),
        ("--ckpt a --seed_of_all 4", (("a",), 4)),
        ("--ckpt=a --seed-of-all=4", (("a",), 4)),
        ("--seed 1 2", None),
        ("--seed 1.5", None),
        ("--ckpt", None),
        ("--ckpt a -- b c", None),
    ],
)
def test_options_take_several_values_and_snake_case(typed, read):
    collected: list[Any] = []

    def do(
        *,
        ckpt: tuple[str, ...] = (),
        seed: Annotated[int, Parameter(alias="--seed-of-all")] = 0,
    ) -> None:
        collected.append((ckpt, seed))

    words = ["do", *typed.split()]
    code = run_command(words, program="try", app=program_of(do))
    assert (code, collected) == ((0, [read]) if read else (2, []))


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def wrapped(error: Exception, cause: Exception) -> Exception:
    """``raise error from cause``."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("is odd", where="x", fix="mend it"), 2, "x: is odd; mend it"),
        (CheckpointError("broken"), 3, "error: broken"),
        (OutputError("full"), 4, "error: full"),
        (FileNotFoundError(2, "No such file", "/a"), 2, "/a: No such file"),
        (IncompleteError("half done"), 5, ": try do --text 'a b'"),
        (KeyboardInterrupt(), 130, ": try do --text 'a b'"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_every_way_to_leave_has_its_code(error, code, message, capsys):
    assert call(raising(error), ["do", "--text", "a b"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert err.strip().startswith("try: ")


def test_defects_of_ours_leave_no_data_behind(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert call(raising(KeyError("Jane Roe, 078-05-1120"))) == 70
    err = capsys.readouterr().err
    assert err.startswith("try: ")
    assert "(KeyError)" in err
    (log,) = tmp_path.glob("try-*.log")
    assert "Jane" not in err + log.read_text()
    assert "in action" in log.read_text()


def test_a_panic_is_no_traceback_and_not_the_gates_code(monkeypatch, capsys, tmp_path):
    from tokenizers import pre_tokenizers

    def panics() -> None:
        pre_tokenizers.FixedLength(0).pre_tokenize_str("Jane Roe")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert call(panics) == 70
    err = capsys.readouterr().err
    assert err.startswith("try: ")
    assert "(PanicException)" in err
    assert "Jane" not in err


@pytest.mark.parametrize("sent", SIGNALS)
def test_every_signal_that_ends_is_an_interrupt(sent, capsys):
    before = [signal.getsignal(number) for number in SIGNALS]
    assert call(lambda: os.kill(os.getpid(), sent)) == 130
    assert capsys.readouterr().err.endswith(": try do\n")
    # A program that calls this one has its own signals again.
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_interrupt_of_which_a_library_made_an_error_is_one(capsys):
    def action() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("cannot import name") from None

    assert call(action) == 130
    assert capsys.readouterr().err.endswith(": try do\n")
    assert call(raising(InputError("is odd"))) == 2  # and is forgotten afterwards


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory", "/a"),
        ImportError("libx.so: failed to map segment from shared object"),
        wrapped(InputError("is not installed", where="y"), MemoryError()),
        wrapped(OutputError("cannot be written"), OSError(errno.ENOMEM, "")),
    ],
    ids=repr,
)
def test_the_end_of_memory_is_no_defect(error, capsys):
    assert call(raising(error)) == 5
    line, last_line = capsys.readouterr().err.splitlines()
    assert line.startswith("try: ")
    assert last_line.endswith(": try do")


def test_a_reader_that_has_enough_is_no_error():
    code = (
        "import sys\n"
        "from spark_audit.terminal.flags import add, program\n"
        "from spark_audit.terminal.console import run_command\n"
        "def app(words):\n"
        "    made = program('try', words, help='Try.')\n"
        "    add(made, 'do', lambda: print('line\\n' * 100_000))\n"
        "    return made\n"
        "sys.exit(run_command(['do'], program='try', app=app))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("output", [">&-", "| true", "> /dev/full", ">&- 2>&-"])
def test_what_a_command_came_to_stands_where_nobody_can_be_told(output):
    code = (
        "import sys\n"
        "from spark_audit.terminal.flags import add, program\n"
        "from spark_audit.terminal.console import run_command\n"
        "def do():\n"
        "    print('found')\n"
        "    sys.exit(1)\n"
        "def app(words):\n"
        "    made = program('try', words, help='Try.')\n"
        "    add(made, 'do', do)\n"
        "    return made\n"
        "sys.exit(run_command(['do'], program='try', app=app))\n"
    )
    line = f"{shlex.join([sys.executable, '-c', code])} {output}"
    shell = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    # Written at the end, as to any file.
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(shell, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1, done.stderr
    assert done.stderr in ("", "try: error: I/O: No space left on device\n")


def test_inputs_are_not_written_over(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle.name)
    keep_apart([tmp_path / "new"], [circle])
    keep_apart([tmp_path / "a"], [tmp_path / "b"])
    with pytest.raises(InputError, match=f"^{tmp_path}/x/../a: "):
        keep_apart([tmp_path / "x" / ".." / "a"], [tmp_path / "a"])
    (tmp_path / "b").write_text("mine")
    (tmp_path / "same").hardlink_to(tmp_path / "b")
    with pytest.raises(InputError, match=f"^{tmp_path}/same: "):
        keep_apart([tmp_path / "same"], [tmp_path / "b"])


def test_an_unknown_value_lists_the_known_ones():
    assert one_of("a", "--x", (None, "a", "b")) == "a"
    with pytest.raises(InputError, match="^--x: 'c'.* a, b$"):
        one_of("c", "--x", (None, "a", "b"))


def test_facts_are_aligned_or_json(capsys):
    share = 50.77970960880422
    show_facts({"a": share, "long": "x"})
    assert capsys.readouterr().out == "a     50.78\nlong  x\n"
    show_facts({"a": share}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": share}


def test_what_libraries_warn_of_stays_off_the_terminal():
    code = """
import logging, warnings
from spark_audit.terminal.interrupts import start

def load():
    warnings.warn("will change", FutureWarning)
    logging.getLogger("torchao").warning("Failed to load a kernel")
    return lambda arguments: 0

start("spark-audit", load)
"""
    for options, is_said in (((), False), (("-W", "default"), True)):
        command = [sys.executable, *options, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ("will change" in done.stderr) == is_said
        assert ("Failed to load" in done.stderr) == is_said


# --- progress in a log ----------------------------------------------------------------


def test_plain_lines_give_rate_and_time_left(monkeypatch, capsys):
    clock = iter([100.0, 104.0, 112.0, 120.0])
    own_time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(messages, "time", own_time)
    with messages.progress() as show:
        show("scoring", 0, 400)
        show("scoring", 100, 400)  # 4 s after the last line: nothing is said
        show("scoring", 300, 400)
        show("scoring", 400, 400)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 0/400",
        "scoring: 300/400 25/s, 4 s left",
        "scoring: 400/400 20/s",
    ]


def test_a_stage_that_begins_again_starts_its_clock_again(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 500.0, 510.0])
    own_time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(messages, "time", own_time)
    with messages.progress() as show:
        for done in (10, 100, 10, 100):
            show("scoring", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 10/100",
        "scoring: 100/100 10/s",
        "scoring: 10/100",
        "scoring: 100/100 10/s",
    ]


def test_quiet_progress_shows_nothing_at_all(capsys):
    with messages.progress(quiet=True) as show:
        show("scoring", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_slow_work_tells_seconds_for_each_piece(monkeypatch, capsys):
    clock = iter([0.0, 30.0])
    own_time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(messages, "time", own_time)
    with messages.progress() as show:
        show("training", 0, 4)
        show("training", 4, 4)
    assert capsys.readouterr().err.splitlines()[-1] == "training: 4/4 7.5 s each"


def test_a_notebook_shows_one_bar_and_leaves_no_line(below_the_cell, capsys):
    with messages.progress() as show:
        for stage in ("scoring a", "scoring b"):
            for done in (1, 50, 100):
                show(stage, done, 100)
        messages.say("a note")
    assert capsys.readouterr() == ("a note\n", "")

    # The bar is drawn over itself and taken away.
    assert below_the_cell.places == [{"text/plain": "", "text/html": ""}]
    drawn = "\n".join(below_the_cell.drawings)
    assert "scoring a" in drawn
    assert "scoring b" in drawn
    assert "100/100" in drawn


def test_work_that_is_quiet_or_has_no_stage_shows_nothing_in_a_notebook(below_the_cell):
    with messages.progress(quiet=True) as show:
        show("scoring", 1, 2)
    with messages.progress():
        pass
    assert below_the_cell.places == []
