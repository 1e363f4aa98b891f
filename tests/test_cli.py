"""The command line: what users type, what they get, and how it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_audit.cli import _shard, run, spread
from spark_audit.errors import InputError


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--ckpt a b --seed 1", "--ckpt a --ckpt b --seed 1"),
        ("--ckpt a --ckpt b", "--ckpt a --ckpt b"),
        ("--ckpt=a b", "--ckpt=a b"),
        ("--batch_size 4", "--batch-size 4"),
        ("--batch_size=a_b", "--batch-size=a_b"),
        ("--data x y -o out z", "--data x --data y -o out z"),
        ("--seed 1 2", "--seed 1 2"),
        ("--ckpt a -- b c", "--ckpt a -- b c"),
        ("--ckpt a --quiet b", "--ckpt a --quiet b"),
    ],
)
def test_several_values_and_snake_case(given: str, read: str) -> None:
    assert spread(given.split()) == read.split()


def test_worker_part_comes_from_flag_or_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert _shard(None) == (0, 1)
    assert _shard("2/5") == (2, 5)
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert _shard(None) == (3, 4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _shard(None) == (1, 2)
    assert _shard("0/3") == (0, 3)
    for text in ("3/3", "1", "a/b", "-1/2"):
        with pytest.raises(InputError, match="is no part of a whole"):
            _shard(text)


def test_help_lists_audits_without_importing_numpy() -> None:
    code = (
        "import sys\n"
        "from spark_audit.cli import run\n"
        "code = run(['--help'])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'scipy', 'pydantic'}\n"
        "sys.exit(code or ', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "matched" in done.stdout
    assert "manifest" in done.stdout


def test_module_runs_like_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_audit", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "spark-audit 0." in done.stdout
    assert "torch 2." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 2, "No such command 'nothing'"),
        (["matched"], 2, "Missing option '--ckpt'"),
        (["matched", "--ckpt", "/no/such/place"], 3, "/no/such/place"),
        (["matched", "--ckpt", "x", "--preset", "wild"], 2, "give robust, paper"),
        (["matched", "--ckpt", "x", "--batch-size", "0"], 2, "give auto or N"),
        (["matched", "--ckpt", "x", "--seed", "zero"], 2, "--seed"),
        (["manifest", "show", "/no/such.json"], 4, "/no/such.json: cannot be read"),
        (["report", "/no/such"], 2, "holds no report.json"),
        (["matched", "--ckpt", "x", "--replicates", "1"], 2, "give no interval"),
        (["matched", "--ckpt", "x", "--seed", "-1"], 2, "--seed"),
        (["data", "import", "x", "--task", "t", "-o", "y", "--format", "z"], 2, "give"),
        ([], 2, "no command was given"),
        (["inspect", "/no/such/place"], 3, "/no/such/place"),
        (["inspect", ""], 3, "no path was given"),
        (["matched", "--ckpt", ""], 2, "is empty; give a path"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("spark-audit: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_defects_of_ours_leave_no_data_behind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from spark_audit import commands

    def broken(*, folder: Path) -> None:
        raise KeyError("Jane Roe, 078-05-1120")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "report", broken)
    assert run(["report", "x"]) == 70
    err = capsys.readouterr().err
    assert "a defect of ours (KeyError)" in err
    (log,) = tmp_path.glob("spark-audit-*.log")
    assert "Jane" not in err + log.read_text()
    assert "broken" in log.read_text()


def test_interrupt_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spark_audit import commands

    def interrupted(*, folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "report", interrupted)
    assert run(["report", "a b"]) == 130
    assert "resume with: spark-audit report 'a b'" in capsys.readouterr().err


def test_import_inject_annotate_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    for name, count in (("train", 60), ("test", 40)):
        rows = [
            {
                "id": f"{name}-{i}",
                "text": f"The {name} meeting number {i} went on. It ended at noon.",
                "label": ["good", "bad"][i % 2],
            }
            for i in range(count)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (source / f"{name}.jsonl").write_text(lines)
    data = tmp_path / "task.jsonl"
    template = "Text: {text}\\nLabel:"
    arguments = ["data", "import", str(source), "--task", "t", "-o", str(data)]
    arguments += ["--template", template, "--map", "response=label"]
    assert run(arguments) == 0, capsys.readouterr().err
    out = tmp_path / "injected"
    arguments = ["data", "inject", str(data), "-o", str(out), "--canaries", "4"]
    assert run(arguments) == 0, capsys.readouterr().err
    assert [path.name for path in out.glob("*.jsonl")] == ["t.jsonl"]
    captured = capsys.readouterr()
    assert "canaries planted" in captured.out
    arguments = ["data", "annotate", str(out / "t.jsonl")]
    arguments += ["-o", str(tmp_path / "a.jsonl"), "--json"]
    assert run(arguments) == 0, capsys.readouterr().err
    records = json.loads(capsys.readouterr().out)
    assert {"type", "precision", "recall"} <= set(records[0])


def test_no_command_writes_over_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": f"{i}", "task": "t", "prompt": f"Text {i}. More.", "response": " a"}
        | {"split": "train" if i % 2 else "test"}
        for i in range(8)
    ]
    data = tmp_path / "t.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = data.read_bytes()
    for arguments in (
        ["data", "inject", str(data), "-o", str(tmp_path)],
        ["data", "annotate", str(data), "-o", str(data)],
        ["data", "import", str(data), "--task", "t", "-o", str(data)],
        ["manifest", "build", "--base", "x", "--data", str(data), "-o", str(data)],
    ):
        assert run(arguments) == 2
        assert "would be written over, and it is an input" in capsys.readouterr().err
        assert data.read_bytes() == before
