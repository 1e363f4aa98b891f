"""The command line: what users type, what they get, and how it leaves."""

import json
import re
import subprocess
import sys

import pytest

from spark_audit.checkpoints.chat_template import read_only_tokenizer
from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples
from spark_audit.errors import InputError
from spark_audit.manifest.canary_sets import rankable_parts
from spark_audit.manifest.settings import BuildSettings
from spark_audit.pipeline.request import shard_of


def test_worker_part_comes_from_flag_or_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert shard_of(None) == (0, 1)
    assert shard_of("2/5") == (2, 5)
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert shard_of(None) == (3, 4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert shard_of(None) == (1, 2)
    assert shard_of("0/3") == (0, 3)
    for text in ("3/3", "1", "a/b", "-1/2"):
        with pytest.raises(InputError, match="^--shard: "):
            shard_of(text)


@pytest.mark.parametrize(
    ("shard", "code", "told"),
    [
        ("0/2", 2, "nothing.json"),
        ("2/2", 2, "not a valid shard"),
        ("x", 2, "not a valid shard"),
    ],
)
def test_a_worker_part_is_read_from_the_command_line(shard, code, told, capsys):
    arguments = ["--ckpt", "x", "--base", "y", "--manifest", "nothing.json"]
    assert run(["matched", *arguments, "--shard", shard]) == code
    assert told in capsys.readouterr().err


def test_help_lists_audits_without_importing_numpy():
    code = (
        "import sys\n"
        "from spark_audit.cli.main import run\n"
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


def test_annotate_counts_by_type_and_says_what_rules_miss(tmp_path, capsys):
    row = {"id": "a", "task": "t", "response": " a", "split": "train"}
    data = tmp_path / "t.jsonl"
    row["prompt"] = "Mr. Lee met Ann Hill. Mail to lee@example.org."
    data.write_text(json.dumps(row) + "\n")
    arguments = ["data", "annotate", str(data), "-o", str(tmp_path / "a.jsonl")]
    assert run([*arguments, "--json"]) == 0
    output = capsys.readouterr()
    counts = {record["type"]: record["annotated"] for record in json.loads(output.out)}
    assert counts == {"NAME": 2, "EMAIL": 1}
    assert output.err.count("of people's names") == 1
    assert run(arguments) == 0
    output = capsys.readouterr()
    assert ["EMAIL", "1"] in [
        re.findall(r"\w+", line) for line in output.out.split("\n")
    ]
    assert "Hill" not in output.out + output.err


def test_annotate_with_an_own_pattern_and_what_no_rule_knows(tmp_path, capsys):
    row = {"id": "a", "task": "t", "response": " a", "split": "train"}
    data = tmp_path / "t.jsonl"
    out = tmp_path / "a.jsonl"
    row["prompt"] = "About ORD-1234567 and X-7654321."
    data.write_text(json.dumps(row) + "\n")
    arguments = ["data", "annotate", str(data), "-o", str(out), "--json"]
    assert run(arguments) == 0
    assert "2 codes of capitals and digits in 1 rows" in capsys.readouterr().err
    assert run([*arguments, "--pattern", r"ORDER=ORD-\d{7}"]) == 0
    output = capsys.readouterr()
    counts = {record["type"]: record["annotated"] for record in json.loads(output.out)}
    assert counts == {"ORDER": 1}
    assert "1 codes of capitals and digits in 1 rows" in output.err
    assert "7654321" not in output.err
    assert run(["data", "inject", str(out), "-o", str(tmp_path / "in")]) == 0
    assert run([*arguments, "--pattern", "ORDER"]) == 2
    error_output = capsys.readouterr().err
    assert "--pattern: 'ORDER'" in error_output
    assert "TYPE=" in error_output


def test_inject_counts_what_a_tokenizer_cannot_rank(
    tiny_base, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("spark_audit.data.canary_candidates.MAX_DRAWS", 1500)
    rows = [
        {"id": f"{i}", "task": "t", "prompt": f"Text {i}. More.", "response": " a"}
        | {"split": "train" if i % 2 else "test"}
        for i in range(16)
    ]
    data = tmp_path / "t.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["data", "inject", str(data), "--canaries", "2", "--quiet", "--json"]
    plain = [*arguments, "-o", str(tmp_path / "plain")]
    assert run(plain) == 0
    told_without = capsys.readouterr()
    told = [*arguments, "-o", str(tmp_path / "told"), "--tokenizer", str(tiny_base)]
    assert run(told) == 0
    told_with = capsys.readouterr()

    # It looks at what was injected, and changes nothing of it.
    injected = (tmp_path / "told" / "t.jsonl").read_bytes()
    assert injected == (tmp_path / "plain" / "t.jsonl").read_bytes()
    assert told_with.out == told_without.out

    counts_by_part = rankable_parts(
        read_examples(tmp_path / "told" / "t.jsonl"),
        read_only_tokenizer(str(tiny_base)),
        BuildSettings().recorded(),
    )
    wanted = [
        (str(counts.n_unrankable), str(counts.n))
        for counts in counts_by_part.values()
        if counts.n_unrankable
    ]
    assert wanted
    lines_more = set(told_with.err.splitlines()) - set(told_without.err.splitlines())
    assert sorted(re.findall(r"(\d+) of (\d+)", "\n".join(lines_more))) == sorted(
        wanted
    )
    for row in read_examples(tmp_path / "told" / "t.jsonl"):
        for span in row.spans:
            assert row.text[span.start : span.end] not in told_with.err

    missing = tmp_path / "missing"
    assert run([*plain, "--tokenizer", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


def test_no_command_writes_over_its_input(tmp_path, capsys):
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
        ["manifest", "build", "--base", str(tmp_path), "--data", str(data)]
        + ["-o", str(data)],
    ):
        assert run(arguments) == 2
        assert f"error: {data}: " in capsys.readouterr().err
        assert data.read_bytes() == before
