"""Whether SPARK keeps earlier tasks as ER does, on tasks that ER is known to learn.

``python benchmarks/retention --data FOLDER --base MODEL -o FOLDER`` makes tasks of two
labels from FOLDER/SOURCE/train.jsonl and test.jsonl (rows with id, text and label),
trains design after design of ``design.toml`` until ER learns the tasks by the rule
there, then the other systems. ``accuracy.csv`` and ``retention.md`` in the output are
the result; an interrupted command goes on when it is run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from spark_audit.errors import SparkError
from spark_audit.messages import progress

ACCURACY, PAGE = "accuracy.csv", "retention.md"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python benchmarks/retention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--data", type=Path, help="folder of the sources' folders")
    add("--base", help="base model")
    add("-o", "--output", type=Path, help="folder of the study")
    add("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    add(
        "--pairs",
        action="store_true",
        help="print how well words tell labels apart, and train nothing",
    )
    add("--page", type=Path, metavar="CSV", help="print the page of kept accuracies")
    add("--quiet", action="store_true")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a study, or print what was asked for, and return the exit code."""
    options = parser().parse_args(arguments)
    # The folder of this package and of the claims', whose rules are used.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        if options.page is not None:
            _print_page(options.page)
        elif options.pairs:
            _require(options, "data")
            _print_pairs(options.data)
        else:
            _require(options, "data", "base", "output")
            _study(options)
    except SparkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _require(options: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name}" for name in names if getattr(options, name) is None]
    if missing:
        parser().error(f"the following arguments are required: {', '.join(missing)}")


def _print_page(path: Path) -> None:
    from retention.accuracies import read_accuracies
    from retention.design import read_rules
    from retention.pages import page

    print(page(read_accuracies(path), read_rules()), end="")


def _print_pairs(data: Path) -> None:
    from retention.design import read_rules
    from retention.tasks import label_pairs
    from spark_audit.report.writers.markdown import table

    sources = sorted(path.parent.name for path in data.glob("*/train.jsonl"))
    rows = [
        (
            pair.source,
            ", ".join(pair.labels),
            f"{pair.told_apart:.3f}",
            "task" if pair.is_task else "",
        )
        for pair in label_pairs(data, sources, read_rules())
    ]
    print(table(("source", "labels", "told apart", ""), rows))


def _study(options: argparse.Namespace) -> None:
    from retention.accuracies import read_accuracies, write_accuracies
    from retention.design import read_rules
    from retention.pages import answer, page
    from retention.runs import run_study
    from spark_audit.checkpoints.untrusted import quiet
    from spark_audit.files import write_text

    rules = read_rules()
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
