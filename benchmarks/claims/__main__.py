"""The paper's claims on your data: which hold, which fail; the same command resumes.

``python benchmarks/claims --data DATA... --base MODEL -o FOLDER`` trains the paper's
systems, audits them and judges its claims by ``claims.toml``; without data and base
both are made. The answer is ``claims.html`` in FOLDER.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spark_audit.checkpoints.untrusted import quiet as silence
from spark_audit.errors import SparkError
from spark_audit.messages import progress


def parser() -> argparse.ArgumentParser:
    """The options: each is a field of the request."""
    made = argparse.ArgumentParser(
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
    add("--seeds", type=int, default=3, help="runs of each system")
    add("--order-seeds", type=int, default=1, help="runs in the other task orders")
    add(
        "--systems",
        metavar="core|all|NAME,NAME",
        default="core",
        help="core: the runs that claims read; all: the paper's 20 rows too; or some",
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
    add("--set", dest="settings", **several, metavar="NAME=VALUE")
    add("--candidates", type=int, default=512, help="a canary is ranked among so many")
    add("--rows", type=int, help="train rows of a made task; default: 60")
    add(
        "--processes",
        type=int,
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
    """Run a study and return the exit code."""
    options = vars(parser().parse_args(arguments))
    quiet = options.pop("quiet")
    options |= {key: tuple(options[key]) for key in ("data", "settings")}
    # Processes that help import the study by this name, too.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from claims.request import ClaimsRequest, TrainingOptions

    try:
        targets = options.pop("lora_targets")
        training = TrainingOptions(
            device=options.pop("device"),
            dtype=options.pop("dtype"),
            gradient_checkpointing=options.pop("gradient_checkpointing"),
            lora_targets=tuple(filter(None, targets.split(","))),
            tf32=options.pop("tf32"),
        )
        request = ClaimsRequest(**options, training=training)
        with silence():
            from claims.study import plan, study
        with progress(quiet=quiet) as show:
            if request.plan:
                print("\n".join(plan(request, progress=show)))
                return 0
            outcome = study(request, progress=show)
    except SparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130
    print(outcome.answer)
    print(f"Page: {outcome.folder / 'claims.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
