"""A base of another family from scratch, for ``benchmarks/claims --second-base``.

``python benchmarks/second_base.py --data data/left-over --tokenizer models/base
-o models/second``: a small Qwen2 that reads the rows of ``--data`` once, identifiers
of its own among them. None of the rows may be in the study.
"""

from __future__ import annotations

from pathlib import Path

from command_line import benchmark_parser, check_folder, run_benchmark
from transformers import AutoTokenizer

from spark_audit.data.examples import data_files, read_examples
from spark_audit.data.injection import inject
from spark_audit.demo_base import train_base

SHAPE = {
    "hidden_size": 160,
    "intermediate_size": 480,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SEED, RATE = 7, 0.3


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--family", default="qwen2", choices=("qwen2", "llama"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    check_folder("--tokenizer", given.tokenizer)
    rows, _ = inject(
        list(read_examples(*data_files(given.data))), seed=SEED, rate=RATE, canaries=0
    )
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    train_base(
        given.output,
        [row for row in rows if row.split == "train"],
        tokenizer,
        seed=SEED,
        progress=lambda what, done, total: print(f"\r{what} {done}/{total}", end=""),
        family=given.family,
        shape=SHAPE,
    )
    print()


if __name__ == "__main__":
    run_benchmark(main)
