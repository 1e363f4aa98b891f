"""The paper's claims on your data: which hold, which fail; the same command resumes.

``python benchmarks/claims --data DATA... --base MODEL -o FOLDER`` trains the paper's
systems, audits them and judges its claims by ``claims.toml``; without data and base
both are made. The answer is ``claims.html`` in FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

# The folder of this package, by whose name processes that help import it, too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import (
    OneLineParser,
    exit_code_of,
    positive_number,
)

from spark_audit.checkpoints.untrusted import quiet as silence
from spark_audit.messages import progress


def parser() -> OneLineParser:
    """Return the parser of the command line; each option is a field of the request."""
    made = OneLineParser(
        prog="python benchmarks/claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    several = {"nargs": "+", "action": "extend", "default": []}
    add("-o", "--output", type=Path, required=True, help="folder of the study")
    add("--data", type=Path, **several, help="JSONL of `spark-audit data inject`")
    add("--base", help="base model; default: made")
    add("--second-base", help="a base of another family")
    add("--seeds", type=positive_number, default=3, help="runs of each system")
    add(
        "--order-seeds",
        type=positive_number,
        default=1,
        help="runs in the other task orders",
    )
    add(
        "--systems",
        metavar="core|all|NAME,NAME",
        default="core",
        help="core: the runs that all claims but six read; all: those of the six and "
        "of the paper's other systems, too; or names",
    )
    add(
        "--first-order",
        action="store_true",
        help="the first task order and one base alone",
    )
    add(
        "--by",
        choices=("paper", "rule"),
        help="settings: the paper's, or found by a written rule",
    )
    add(
        "--set",
        dest="settings",
        **several,
        metavar="NAME=VALUE",
        help="a setting of all systems that know the name",
    )
    add(
        "--candidates",
        type=positive_number,
        default=512,
        help="a canary is ranked among so many",
    )
    add("--rows", type=positive_number, help="train rows of a made task; default: 60")
    add(
        "--processes",
        type=positive_number,
        default=1,
        help="runs at once; times are judged with one only",
    )
    add("--engine", choices=("local", "ray"), default="local")
    add("--address", metavar="HOST:PORT", help="of the Ray cluster")
    add("--quick", action="store_true", help="one seed, one order, little data")
    add("--no-training", action="store_true", help="judge the runs that are there")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--gradient-checkpointing", action="store_true", help="save memory, take time")
    add("--lora-targets", metavar="NAME,NAME", default="", help="names of layers")
    add("--tf32", action="store_true", help="faster, rounder products in training")
    add("--plan", action="store_true", help="measure and print hours; train nothing")
    add("--hour-price", type=float, help="of this machine, for --plan")
    add("--quiet", action="store_true")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a study, or print its plan, and return the exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(partial(run, options), resumes=not options.plan)


def run(options: argparse.Namespace) -> None:
    """Run a study, or print its plan."""
    from claims.request import ClaimsRequest, TrainingOptions

    lora_targets = [name for name in options.lora_targets.split(",") if name]
    request = ClaimsRequest(
        output=options.output,
        data=tuple(options.data),
        base=options.base,
        second_base=options.second_base,
        seeds=options.seeds,
        order_seeds=options.order_seeds,
        systems=options.systems,
        first_order=options.first_order,
        by=options.by,
        settings=tuple(options.settings),
        candidates=options.candidates,
        rows=options.rows,
        processes=options.processes,
        engine=options.engine,
        address=options.address,
        quick=options.quick,
        no_training=options.no_training,
        plan=options.plan,
        hour_price=options.hour_price,
        training=TrainingOptions(
            device=options.device,
            dtype=options.dtype,
            gradient_checkpointing=options.gradient_checkpointing,
            lora_targets=tuple(lora_targets),
            tf32=options.tf32,
        ),
    )
    with silence():
        from claims.study import plan, study

    with progress(quiet=options.quiet) as show:
        if request.plan:
            print("\n".join(plan(request, progress=show)))
            return
        outcome = study(request, progress=show)
    print(outcome.answer)
    print(f"Page: {outcome.folder / 'claims.html'}")


if __name__ == "__main__":
    sys.exit(main())
