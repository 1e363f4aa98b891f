"""Signals that end a command are one interrupt, from its start, and only there."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from spark_audit.terminal.interrupts import (
    ECHO_SECONDS,
    SIGNALS,
    how_to_continue,
    one_interrupt,
)

START = """
import os, signal
from spark_audit.terminal.interrupts import start
def load():
    os.kill(os.getpid(), signal.{sent})  # while the command is imported
    return lambda arguments: 0
start("spark-audit", load)
"""


def started(sent: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START.format(sent=sent), "nll", "--ckpt", "a b"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupt_while_the_command_is_imported(sent):
    done = started(sent)
    assert done.returncode == 130
    line = "spark-audit: interrupted; resume with: spark-audit nll --ckpt 'a b'"
    assert done.stderr.split("\n") == ["", line, ""]


def test_an_interrupt_while_a_dataclass_is_made_has_the_same_code(tmp_path):
    line = "os.kill(os.getpid(), signal.{sent})"
    module = START.replace(line, f'exec("import os, signal; {line}; [0] * 9")')
    (tmp_path / "command.py").write_text(module.format(sent="SIGINT"))
    done = subprocess.run(
        [sys.executable, "-m", "command"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_what_is_ignored_stays_so():
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    assert started("SIGHUP", preexec_fn=nohup).returncode == 0
    assert started("SIGTERM", preexec_fn=nohup).returncode == 130


def test_a_terminal_that_is_gone_does_not_change_the_code():
    read, write = os.pipe()
    os.close(read)
    code = START.format(sent="SIGHUP")
    done = subprocess.run([sys.executable, "-c", code], stderr=write, check=False)
    os.close(write)
    assert done.returncode == 130


def test_importing_changes_no_signal():
    code = (
        "import signal as s\n"
        "names = [s.SIGINT, s.SIGTERM, s.SIGHUP]\n"
        "before = [s.getsignal(one) for one in names]\n"
        "import spark_audit.__main__, spark_train.__main__, spark_audit.cli.main\n"
        "assert [s.getsignal(one) for one in names] == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_signals_that_follow_at_once_do_not_break_what_is_being_ended():
    ended = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt), one_interrupt():
        work()
    assert ended
    with one_interrupt():  # that was another command's
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        # Whoever insists is heard.
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_long_after_an_interrupt_that_got_lost_another_one_counts(monkeypatch):
    ticks = iter((0.0, ECHO_SECONDS + 1))
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr("spark_audit.terminal.interrupts.time", clock)
    with one_interrupt():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupt_where_python_ignores_errors_is_not_lost(capsys):
    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    def work() -> None:
        Closing()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.01)

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        work()
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_in_a_thread_and_under_handlers_of_ones_own_nothing_changes():
    before = [signal.getsignal(number) for number in SIGNALS]
    handlers_seen: list[list[object]] = []

    def run() -> None:
        with one_interrupt():
            handlers_seen.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers_seen == [before]
    own_handler = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
        with one_interrupt():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, own_handler)


def test_under_a_launcher_the_line_has_it(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert how_to_continue("spark-train", ["run", "no such words"]) == (
        "resume with: torchrun --nproc-per-node 2 -m spark_train run 'no such words'"
    )
