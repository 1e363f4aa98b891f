"""A complete audit in miniature: data, a base, five runs, a manifest, every audit.

:func:`run_demo` makes everything from a seed, in this order:

1. rows of six tasks (``demo_rows.py``), with identifiers that belong to nobody;
2. a tokenizer, and a base: a Llama of a third of a million weights. It has read text of
   the same kind with *other* identifiers, so it knows what a telephone number looks
   like, but none of the audited ones. Half of that text has its label, because a base
   that never met the tasks could not learn them from a few dozen rows;
3. five runs from the base through the tasks (:data:`RUNS`), as by ``spark-train run``,
   and the manifest;
4. the report, as by ``spark-audit all``.

``er``, ``sd-replay``, ``spark`` and ``spark-no-ul`` are SPARK's comparison. Its
baseline is ``sd-replay``, the same run without correction. These four learn only the
labels, so there is little to find in any of them. ``er-full`` learns the whole text
with its identifiers: it is the positive control for canaries, membership and the
matched audit.

The tasks resemble SPARK's six: the stance of a central bank (FOMC), reviews of
restaurants (Yelp), topics of news (AGNews), ratings of products (Amazon), causes of
stress (MentILL) and topics of questions (Yahoo). All sentences are the demo's own.

Settings are those of the paper except for :data:`SETTINGS`. Sizes are what two cores
manage in a few minutes. Both were chosen by time and accuracy on the seed 1000, never
by what the audits found, and are the same for every seed.

A further run is an entry of :data:`RUNS`, and a name in ``Size.runs``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit import files
from spark_audit.audits import all_audits
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example, read_examples, write_examples
from spark_audit.data.injection import inject
from spark_audit.demo_base import Progress, make_tokenizer, train_base
from spark_audit.demo_rows import TASKS, make_examples, unlabelled
from spark_audit.demo_time import expected_minutes, time_in_words
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.messages import say
from spark_audit.pipeline.engines.local import Work, helped, helpers_kept, run_jobs
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import Outcome, run
from spark_audit.provenance import seed_for, versions
from spark_audit.report.audit_report import read_report
from spark_audit.report.folder import write_report
from spark_audit.scoring.threads import use_threads

if TYPE_CHECKING:
    from spark_train.training_request import TrainRequest

DEMO_NAME = "demo"
"""Name of the manifest."""

DEMO_PAGES = ("report.html", "report.md")
"""Pages without which a finished report is rendered again."""

STATE = Path("runs") / "demo.json"
"""The record of the demo's seed and size, which is written first of all."""


@dataclass(frozen=True)
class Size:
    """The amounts of everything, which decide how long the demo takes.

    Attributes
    ----------
    runs, tasks
        Names from :data:`RUNS`, with the baseline; and the number of tasks that they
        learn, from the first.
    base_rows
        Rows per task that the base reads; ``labelled`` is the share with a label.
    train_rows, test_rows
        Rows per task that the runs learn, and that are held out.
    rate
        Share of the rows without a canary that get an identifier, in the base's text
        and in the audited rows alike.
    doses
        Numbers of train rows that hold a canary, assigned to the canaries in turn.
    candidates
        Strings among which a canary is ranked; the paper's 512 would take most of the
        time.
    draws
        Draws of noise for each of its sizes.
    canaries
        Canaries that are planted; as many more are held out.
    epochs, correction_steps
        Epochs of each task (the paper: 3), and steps of PTPC after it (the paper: 200,
        from fewer rows).
    """

    # This order keeps two processes busy to the end: `er-full` beside the first stage
    # that the others share, and one long run in each half.
    runs: tuple[str, ...] = ("er-full", "spark", "sd-replay", "spark-no-ul", "er")
    tasks: int = len(TASKS)
    base_rows: int = 500
    labelled: float = 0.5
    train_rows: int = 80
    test_rows: int = 40
    rate: float = 0.6
    canaries: int = 12
    doses: tuple[int, ...] = (1, 4, 16, 24)
    candidates: int = 128
    draws: int = 1
    epochs: int = 6
    correction_steps: int = 50

    @property
    def order(self) -> list[str]:
        """Return the tasks, in the order in which they are learned."""
        return list(TASKS)[: self.tasks]


FULL_SIZE = Size()
"""Size of the command ``demo``; tests use smaller ones."""

LR_FACTOR = 8
"""Learning rates over those of the paper."""

SETTINGS: dict[str, object] = {
    # Layers that are 40 times narrower allow a larger step size. Of 4 and 8 times the
    # paper's, this one gave sd-replay the higher accuracy after the last task.
    "lr": 5e-4 * LR_FACTOR,
    "batch_size": 16,  # the paper's 32 would leave five steps per epoch
    # As printed, a replayed response token weighs 0.07 of its weight in er. With 60
    # steps per task, where the paper has some 507, that would retain less.
    "replay.weighting": "mean",
    # Four times the rows per step, for a quarter of the steps.
    "ptpc.batch_size": 8,
    "ptpc.old_batch_size": 4,
    # 8 times the paper's rate, like lr; and 4 times for a quarter of the steps.
    "ptpc.lr": 1e-5 * LR_FACTOR * 4,
}
"""Settings in which the runs differ from the paper; ``epochs`` and ``ptpc.steps`` are
sizes and belong to :class:`Size`."""

RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "er": ("er", {}),
    "sd-replay": ("sd-replay", {}),
    "spark": ("spark", {}),
    "spark-no-ul": ("spark", {"ptpc.ul": "off"}),
    "er-full": ("er", {"loss.scope": "full"}),
}
"""Name of a run -> its method, and its settings that differ from :data:`SETTINGS`."""

BASELINE = "sd-replay"
"""The run that the report compares the others with."""

AUDITS_LEFT_OUT = ("erasure", "doors", "passages", "generated")
"""Audits that the demo leaves out: it erases no row, doors break down `mia`, its rows
are short, and its models write no files."""

BASELINE_LOCK = Path("runs") / ".baseline.lock"
"""A lock of the process that trains the baseline, or its first stage."""


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    size: Size = FULL_SIZE,
    processes: int = 2,
    formats: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Outcome:
    """Make data, models and a manifest in ``out`` and audit the models.

    A call continues an interrupted one: it reuses a finished base, the steps of runs, a
    finished manifest and scores. A finished report is returned unchanged.

    Parameters
    ----------
    out
        The report folder, which also holds ``data/``, ``runs/`` and ``manifest/``.
    seed
        Seed of text, identifiers, training and statistics.
    size
        Amounts of everything.
    processes
        Number of processes that share the runs, and then the scoring.
    formats
        Formats of the report besides ``report.json``; by default, all of them.
    progress
        Called with the phase, the amount done and the total. Without it, nobody is told
        either how long the demo will take.

    Raises
    ------
    InputError
        If the folder holds something other than this demo.
    OutputError
        If the folder cannot be written.
    """
    _claim(out, seed, size)
    tell = progress or _tell_nobody
    finished = _finished(out, formats)
    if finished is not None:
        return finished

    # Such small models gain little from a second thread, and suffer where it must wait:
    # a step took eight times as long beside another busy program on two cores.
    with use_threads(1), helpers_kept():
        if progress is not None:
            _say_time(processes)

        # The other processes import libraries while this one trains the base.
        with helped(processes - 1, 1) as helpers:
            for helper in helpers:
                helper.begin(_import_libraries)
            _make_data_and_base(out, seed, size, tell)
            for helper in helpers:
                helper.wait()

        jobs = _jobs(out, seed, size)
        numbers_of_ended_jobs = count()  # 0, 1, 2 ...

        def tell_next(_: object = None) -> None:
            """Show one more job as done; the first call shows none."""
            n_ended = next(numbers_of_ended_jobs)
            tell("training runs and matching, jobs", n_ended, len(jobs))

        tell_next()
        run_jobs(jobs, processes=processes, ended=tell_next)

        return run(_request(out, seed, size, processes, formats), progress=tell)


def _say_time(processes: int) -> None:
    """Tell the user how long the demo will take here."""
    with quiet():
        time_range = time_in_words(*expected_minutes(processes))
    say(
        f"A whole demo takes about {time_range} on this machine, as busy as it is now; "
        "an interrupted one resumes."
    )


def _import_libraries() -> None:
    """Import what trainings and audits need, which takes seconds."""
    with quiet():
        import spark_train.training_run  # noqa: F401


def _make_data_and_base(out: Path, seed: int, size: Size, tell: Progress) -> None:
    """Write the rows of all tasks, and train the base with its tokenizer.

    All runs start from the base, and the manifest uses it for matching.
    """
    tell("making data", 0, 1)
    background, audited = make_data(seed, size)
    for path, task in zip(_data_files(out, size), size.order, strict=True):
        write_examples(path, [row for row in audited if row.task == task])
    with quiet():
        tokenizer = make_tokenizer([example.text for example in background])
    tell("making data", 1, 1)

    base = out / "runs" / "base"
    train_base(base, background, tokenizer, seed=seed, progress=tell)


def _jobs(out: Path, seed: int, size: Size) -> list[Work]:
    """Return the trainings and the matching, in the order in which they begin."""
    # Most runs share their first stage, which is trained once.
    jobs: list[Work] = [partial(_train_first_stage, out, seed, size)]
    jobs += [partial(_train, name, out, seed, size) for name in size.runs]
    # The manifest comes last, for the process that is free first.
    jobs.append(partial(_build, out, seed, size))
    return jobs


def _tell_nobody(phase: str, done: int, total: int) -> None:
    """Show no progress."""


def _finished(out: Path, formats: Sequence[str]) -> Outcome | None:
    """Return the finished demo of a folder; None if it must be made (again).

    A report by other versions is made again. Deleted pages are rendered again.
    """
    if not (out / "report.json").exists():
        return None
    report = read_report(out)
    if report.versions != versions():
        return None

    has_pages = all((out / page).exists() for page in DEMO_PAGES)
    if not formats and not has_pages:
        manifest = read_manifest(_manifest_file(out))
        write_report(report, out, manifest=manifest)
    # The report is read again, because it lists the pages that were just rendered.
    return Outcome(out, read_report(out))


def make_data(seed: int, size: Size) -> tuple[list[Example], list[Example]]:
    """Return the rows that the base reads, and the rows for training and audits.

    Both have identifiers of the same formats, drawn independently. The base also reads
    the tasks: a model this small would otherwise forget everything while it learns
    them.
    """
    background_seed = seed_for(seed, "background")
    background = make_examples(size.base_rows, split="train", seed=background_seed)
    background, _ = inject(background, seed=background_seed, rate=size.rate, canaries=0)
    rng = np.random.default_rng(seed_for(background_seed, "labels"))
    draws = rng.random(len(background))  # (rows,), in [0, 1)
    partly_labelled = [
        row if draw < size.labelled else unlabelled(row)
        for row, draw in zip(background, draws, strict=True)
    ]

    audited_seed = seed_for(seed, "audited")
    audited = make_examples(size.train_rows, split="train", seed=audited_seed)
    audited += make_examples(size.test_rows, split="test", seed=audited_seed)
    audited, _ = inject(
        audited,
        seed=audited_seed,
        rate=size.rate,
        canaries=size.canaries,
        doses=size.doses,
    )

    # Tasks that are not learned are removed last, so that the text of the others stays.
    return (
        [row for row in partly_labelled if row.task in size.order],
        [row for row in audited if row.task in size.order],
    )


def _manifest_file(out: Path) -> Path:
    """Return the path of the demo's manifest."""
    return out / "manifest" / f"{DEMO_NAME}.json"


def _data_files(out: Path, size: Size) -> list[Path]:
    """Return the paths of the tasks' rows, in the order of training."""
    return [out / "data" / f"{task}.jsonl" for task in size.order]


def _claim(out: Path, seed: int, size: Size) -> None:
    """Claim the folder before training, which takes most of the time.

    Raises
    ------
    InputError
        If the folder holds anything but this demo.
    """
    files.check_links(out, "data", "manifest", "runs", "runs/*")
    files.check_writable(out)
    requested_state = json.dumps({"seed": seed, "size": asdict(size)}, indent=1) + "\n"
    # Hidden files do not count.
    names_in_folder = sorted(path.name for path in out.glob("[!.]*"))
    if not names_in_folder:
        # The file is private like run.json, because it contains the seed.
        files.write_text(out / STATE, requested_state, mode=0o600)
        return

    # A folder with another seed or size cannot be continued.
    state_in_folder = b""
    with suppress(OSError):
        state_in_folder = files.read_regular(out / STATE)
    if state_in_folder == requested_state.encode():
        return
    problem = f"holds no demo ({names_in_folder[0]})"
    if state_in_folder:
        problem = "holds another report"
    raise InputError(
        problem, where=str(out), fix="give another -o, or remove the folder"
    )


def _train(name: str, out: Path, seed: int, size: Size) -> None:
    """Train one run as ``spark-train run`` does; a finished run is only checked."""
    with quiet():
        from spark_train.training_run import train

    request = _train_request(name, out, seed, size)
    if name == BASELINE:
        # Another process may be at its first stage.
        with files.alone(out / BASELINE_LOCK):
            train(request)
    else:
        train(request)


def _train_first_stage(out: Path, seed: int, size: Size) -> None:
    """Train the first stage of the baseline, for all runs that begin with the same."""
    with quiet():
        from spark_train.training_run import train_by_stage

    with files.alone(out / BASELINE_LOCK):
        stages = train_by_stage(_train_request(BASELINE, out, seed, size))
        next(stages)
        # The run goes on from its folder when its turn comes.
        stages.close()


def _train_request(name: str, out: Path, seed: int, size: Size) -> TrainRequest:
    """Return the request of one run."""
    with quiet():
        from spark_train.training_methods import groups
        from spark_train.training_request import StudentLoading, TrainRequest
        from spark_train.training_settings import names

    method, own_settings = RUNS[name]
    settings = {
        **SETTINGS,
        "epochs": size.epochs,
        "ptpc.steps": size.correction_steps,
        **own_settings,
    }
    # Each method gets only its own settings, because it refuses others.
    names_of_method = names(groups(method))
    typed_settings = [
        f"{key}={value}" for key, value in settings.items() if key in names_of_method
    ]
    return TrainRequest(
        method=method,
        base=str(out / "runs" / "base"),
        order=",".join(size.order),
        data=tuple(_data_files(out, size)),
        output=out / "runs" / name,
        settings=tuple(typed_settings),
        seed=seed,
        loading=StudentLoading(device="cpu"),
        command=_command(out, seed),
        first_phase_of=None if name == BASELINE else out / "runs" / BASELINE,
    )


def _command(out: Path, seed: int) -> tuple[str, ...]:
    """Return the command that makes this demo."""
    return "spark-audit", "demo", "-o", str(out), "--seed", str(seed)


def _build(out: Path, seed: int, size: Size) -> None:
    """Build the manifest of the data, unless it exists for this base and versions."""
    path = _manifest_file(out)
    if path.exists() and read_manifest(path).versions == versions():
        return

    with quiet():
        base = open_checkpoint(str(out / "runs" / "base"), name="base", device="cpu")
    manifest = build_manifest(
        read_examples(*_data_files(out, size)),
        base,
        name=DEMO_NAME,
        seed=seed,
        n_candidates=size.candidates,
        data=_data_files(out, size),
    )
    write_manifest(manifest, path)


def _request(
    out: Path, seed: int, size: Size, processes: int, formats: tuple[str, ...]
) -> Request:
    """Return the request of ``spark-audit all`` for all runs."""
    order = ",".join(size.order)
    options_by_audit: dict[str, dict[str, Any]] = {
        "stages": {"order": order},
        "utility": {"order": order},
        "series": {"order": order},
        "noise": {"draws": size.draws},
    }
    # Audits that run only on request are included: the demo shows every audit that it
    # has something for.
    audits = []
    for name, audit in all_audits().items():
        if name in AUDITS_LEFT_OUT:
            continue
        options = options_by_audit.get(name, {})
        audits.append(audit(**options))

    # The report lists runs in the order of RUNS, not in the order of training.
    run_names = [name for name in RUNS if name in size.runs]
    return Request(
        audits=tuple(audits),
        checkpoints=tuple(f"{name}={out / 'runs' / name}" for name in run_names),
        base=str(out / "runs" / "base"),
        baseline=BASELINE,
        manifest=_manifest_file(out),
        output=out,
        seed=seed,
        jobs=processes,
        formats=formats,
        loading=Loading(device="cpu"),
        command=_command(out, seed),
    )
