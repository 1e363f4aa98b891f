"""Whether SPARK keeps earlier tasks as ER does, on tasks that ER is known to learn.

``python benchmarks/retention --data FOLDER --base MODEL -o FOLDER`` makes tasks of two
labels from FOLDER/SOURCE/train.jsonl and test.jsonl (rows with id, text and label),
trains ER in one way after the other until it learns the tasks by the rule of the
design, then the other systems. ``accuracy.csv`` and ``retention.md`` in the output are
the result; an interrupted command goes on when it is run again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

# The folder of this package and of the claims', whose rules are used.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import (
    OneLineParser,
    check_files,
    check_folder,
    exit_code_of,
)

from spark_audit.errors import InputError
from spark_audit.messages import progress

if TYPE_CHECKING:
    from retention.design import StudyRules

ACCURACY, PAGE = "accuracy.csv", "retention.md"


def parser() -> OneLineParser:
    """Return the parser of the command line."""
    made = OneLineParser(
        prog="python benchmarks/retention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--data", type=Path, help="folder of the sources' folders")
    add("--base", help="base model")
    add("-o", "--output", type=Path, help="folder of the study")
    add(
        "--design",
        type=Path,
        metavar="TOML",
        help="tasks, settings and rules; default: those of the kept study",
    )
    add("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    add(
        "--pairs",
        action="store_true",
        help="print how well words tell labels apart, and train nothing",
    )
    add(
        "--page",
        type=Path,
        metavar="CSV",
        help="print the page of kept accuracies",
    )
    add("--quiet", action="store_true")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a study, or print what was asked for, and return the exit code."""
    options = parser().parse_args(arguments)
    if options.page is not None:
        needed = []
    elif options.pairs:
        needed = ["data"]
    else:
        needed = ["data", "base", "output"]
    missing = [f"--{name}" for name in needed if getattr(options, name) is None]
    if missing:
        parser().error(f"give {', '.join(missing)}")

    is_study = options.page is None and not options.pairs
    return exit_code_of(partial(run, options), resumes=is_study)


def run(options: argparse.Namespace) -> None:
    """Run a study, or print what was asked for."""
    check_folder("--data", options.data)
    check_files("--design", options.design)
    check_files("--page", options.page)
    if options.page is not None:
        _print_page(options.page, _design(options))
    elif options.pairs:
        _print_pairs(options.data, _design(options))
    else:
        _study(options, _design(options))


def _design(options: argparse.Namespace) -> StudyRules:
    from retention.design import KEPT_DESIGN, read_rules

    return read_rules(options.design or KEPT_DESIGN)


def _print_page(path: Path, rules: StudyRules) -> None:
    from retention.accuracies import read_accuracies
    from retention.pages import page

    print(page(read_accuracies(path), rules), end="")


def _print_pairs(data: Path, rules: StudyRules) -> None:
    from retention.tasks import label_pairs
    from spark_audit.report.writers.markdown import table

    sources = sorted(path.parent.name for path in data.glob("*/train.jsonl"))
    if not sources:
        raise InputError(
            f"{data} has no SOURCE/train.jsonl",
            where="--data",
            fix="give the folder of the sources' folders",
        )
    rows = [
        (
            pair.source,
            ", ".join(pair.labels),
            f"{pair.told_apart:.3f}",
            "task" if pair.is_task else "",
        )
        for pair in label_pairs(data, sources, rules)
    ]
    print(table(("source", "labels", "told apart", ""), rows))


def _study(options: argparse.Namespace, rules: StudyRules) -> None:
    from retention.accuracies import read_accuracies, write_accuracies
    from retention.pages import answer, page
    from retention.runs import run_study
    from spark_audit.checkpoints.detect import read_headers
    from spark_audit.checkpoints.devices import pick_device
    from spark_audit.checkpoints.untrusted import quiet
    from spark_audit.files import write_text
    from spark_train.training_request import StudentLoading

    # Before anything is written.
    pick_device(options.device)
    read_headers(options.base, StudentLoading(device=options.device))
    path = options.output / ACCURACY

    def keep(table: pd.DataFrame) -> None:
        write_accuracies([table], path)
        write_text(options.output / PAGE, page(read_accuracies(path), rules))

    with quiet(), progress(quiet=options.quiet) as show:
        run_study(
            options.data,
            options.base,
            options.output,
            rules,
            device=options.device,
            progress=show,
            keep=keep,
        )
    print(answer(read_accuracies(path), rules))
    print(f"Page: {options.output / PAGE}")


if __name__ == "__main__":
    sys.exit(main())
