"""What `manifest build` takes: peak memory and processor time by rows.

    python benchmarks/building.py [--rows 1000 10000] [-o FOLDER]

Made-up rows of 48 words with two identifiers each and a model of one narrow layer, in
a process of its own for each number of rows. Printed are the most resident memory once
the model is there and in the end; on stderr the peak by stage. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from command_line import benchmark_parser, positive_number, run_benchmark

BENCHMARKS = Path(__file__).parent
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def main() -> None:
    given = parsed()
    if given.build:
        built(given.output, given.rows[0])
        return
    made_model(given.output / "base")
    print("|rows|tokens a row|MB at the start|MB at most|processor seconds|")
    print("|---|---|---|---|---|", flush=True)
    for rows in given.rows:
        made_rows(given.output / f"{rows}.jsonl", rows)
        own = [f"--rows={rows}", "--build", f"--output={given.output}"]
        done = subprocess.run(
            [sys.executable, __file__, *own],
            stdout=subprocess.PIPE,
            text=True,
            # As `spark-audit` has it.
            env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        print(done.stdout or f"|{rows}|failed|", end="", flush=True)


def parsed() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--rows", type=positive_number, nargs="+", default=[1000, 10_000]
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("building"))
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def examples(rows: int) -> Iterator[Any]:
    """The rows of ``streaming.py``, as data."""
    from spark_audit.data.examples import Example, Span

    sys.path.insert(0, str(BENCHMARKS))
    from streaming import example_of

    for row in range(rows):
        record, _ = example_of(row)
        spans = tuple(
            Span(span["start"], span["end"], span["type"]) for span in record["spans"]
        )
        fields = ("id", "task", "prompt", "response", "split", "source_id")
        yield Example(**{name: record[name] for name in fields}, spans=spans)


def made_rows(path: Path, rows: int) -> None:
    from spark_audit.data.examples import write_examples

    if not path.exists():
        write_examples(path, examples(rows))


def made_model(folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from spark_audit.demo_base import DEMO_CONTEXT_TOKENS, make_tokenizer

    if folder.exists():
        return
    tokenizer = make_tokenizer([row.text for row in islice(examples(1000), 1000)])
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokenizer),
        max_position_embeddings=DEMO_CONTEXT_TOKENS,
        initializer_range=0.2,
        **SHAPE,
    )
    torch.manual_seed(0)
    untyped: Any = AutoModelForCausalLM
    untyped.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def built(folder: Path, rows: int) -> None:
    """Build as the command does, and print a line of the table."""
    from spark_audit import messages
    from spark_audit.cli.main import run as command_line
    from spark_audit.manifest import build
    from spark_audit.manifest.file import read_manifest

    checked, start, last = build.checked_examples, [0.0], [""]

    def watched(examples: Any) -> Any:
        start[0] = peak()
        told("with the model")
        return checked(examples)

    def show(what: str, done: int, total: int) -> None:
        if what != last[0]:
            told(f"before {what}")
        last[0] = what

    def told(what: str) -> None:
        print(f"{peak():.0f} MB {what}", file=sys.stderr, flush=True)

    # Nothing may hold the rows that the command hands over.
    build.checked_examples = watched
    # The command takes the function from this module when it is called.
    replaced: Any = messages
    replaced.progress = lambda quiet: nullcontext(show)
    output = folder / f"manifest-{rows}.arrow"
    arguments = ["manifest", "build", "--base", str(folder / "base"), "--quiet"]
    arguments += ["--data", str(folder / f"{rows}.jsonl"), "-o", str(output)]
    sys.stdout, real = sys.stderr, sys.stdout
    code = command_line(arguments)
    told("built and written")
    sys.stdout, most = real, peak()
    spent = time.process_time()
    if code:
        raise SystemExit(code)
    tokens = read_manifest(output).counts["tokens"] / rows
    print(f"|{rows:,}|{tokens:.0f}|{start[0]:.0f}|{most:.0f}|{spent:.0f}|")


def peak() -> float:
    """Most resident memory so far, MB."""
    # Not by getrusage: that remembers whom this process was forked from.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1e3


if __name__ == "__main__":
    run_benchmark(main)
