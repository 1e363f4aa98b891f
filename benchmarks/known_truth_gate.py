"""``gate --against`` on pairs of tiny models of known truth.

``python benchmarks/known_truth_gate.py --seeds 0:20`` audits, for each seed, a model
that learned answers alone; the same from another seed, where nothing changed; and one
that learned all text, which remembers more. It counts what the rule ``matched.memory
rose by 0.1`` says of the second and the third against the first.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch
from command_line import benchmark_parser, run_benchmark, seed_list
from known_truth_models import Lab, run_command
from known_truth_rows import SIZES

RULE = "matched.memory rose by 0.1"
NOW = {"labels_seed": "nothing changed", "full": "remembers more"}


def verdicts(folder: Path, seed: int) -> dict[str, str]:
    """What the rule says of each of the later models: ``tripped``, or why it passes."""
    from spark_audit.cli.main import run

    lab = Lab(folder / "lab", seed, SIZES["small"])
    base, manifest = str(lab.path("base")), str(folder / "m.json")
    data = str(lab.data("audited", lab.rows(("member", "other"))))
    quiet = ["--device", "cpu", "--quiet"]
    build = ["manifest", "build", "--base", base, "--data", data, "-o", manifest]
    run_command(run, [*build, *quiet])
    for name in ("labels", *NOW):
        command = ["matched", "--ckpt", f"x={lab.path(name)}", "--base", base]
        command += ["--manifest", manifest, "-o", str(folder / name), "--jobs", "1"]
        run_command(run, [*command, "--format", "json", *quiet])
    found = {}
    for name in NOW:
        command = ["gate", str(folder / name), "--against", str(folder / "labels")]
        said = run_command(run, [*command, "--fail-if", RULE, "--json"], (0, 1))
        (one,) = (v for v in json.loads(said) if v["checkpoint"] == "x")
        found[name] = one["state"]
    return found


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {name: Counter() for name in NOW}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for name, state in verdicts(Path(folder), seed).items():
                counts[name][state] += 1
        print(seed, {NOW[name]: dict(count) for name, count in counts.items()})


if __name__ == "__main__":
    run_benchmark(main)
