"""The whole way in miniature: data, a base, five runs, a manifest, every audit.

Everything is made on the spot from a seed: six tasks from templates, identifiers that
belong to nobody, a tokenizer, and a Llama of a third of a million weights that has read
text of the same kind with *other* identifiers, so that it knows what a telephone number
looks like but none of those audited. Half of that text has its label: a base that
never met the tasks could not learn them from a few dozen rows. Five runs take it
through the tasks as ``spark-train run`` does; ``spark-audit all`` is what audits them.

``er``, ``sd-replay``, ``spark`` and ``spark-no-ul`` are SPARK's comparison; baseline is
``sd-replay``, the same run without correction. They learn the labels only, so that
there is little to find in any of them: ``er-full`` learns the whole text, identifiers
included, and is the positive control, for canaries, membership and the matched audit.

The tasks are in the manner of SPARK's six: the stance of a central bank (FOMC), reviews
of restaurants (Yelp), topics of news (AGNews), ratings of products (Amazon), causes of
stress (MentILL) and topics of questions (Yahoo). All sentences are the demo's own.

Names of makers, parcel codes, file names, amounts and numbers are drawn afresh in every
row: text that is as hard to predict as an identifier and that belongs to nobody, so
that identifiers find controls.

Settings are the paper's but for :data:`SETTINGS`; sizes are what two
cores get through in a few minutes. Both were chosen on the seed 1000, from time and
accuracy, and are the same for every seed. What a seed then shows, it shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from spark_audit import files
from spark_audit.audits import all_audits
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example, read_examples, write_examples
from spark_audit.data.injection import inject
from spark_audit.demo_rows import TASKS, make_examples, unlabelled
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import load_manifest, write_manifest
from spark_audit.pipeline.engines.local import run_jobs
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import Outcome, run
from spark_audit.provenance import seed_for, sha256_json, versions
from spark_audit.report.audit_report import read_report
from spark_audit.report.folder import write_report
from spark_audit.scoring.score import use_threads

Progress: TypeAlias = Callable[[str, int, int], None]
"""Is called with the phase, what is done of it, and what there is of it."""

Untyped: TypeAlias = Any
"""An object of transformers, which gives its classes without types."""

DEMO_NAME = "demo"
DEMO_PAGES = ("report.html", "report.md")
STATE = Path("runs") / "demo.json"
"""In the folder: what it is a demo of. It is the first thing written."""

MADE = "made-from.json"
"""What a finished base was made from: one of the same is not made again."""

VOCABULARY = 1024
DEMO_CONTEXT_TOKENS = 256

MODEL_SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
"""A third of a million weights: what reads a few thousand rows in half a minute."""

BASE_LR = 3e-3
BASE_BATCH = 8


@dataclass(frozen=True)
class Size:
    """How much there is of everything, and with it how long it takes.

    Attributes
    ----------
    runs, tasks
        Which of :data:`RUNS`, the baseline among them, and the first tasks that they
        learn.
    base_rows
        Rows a task that the base reads; ``labelled`` is the share with their label.
    train_rows, test_rows
        Rows a task that the runs learn and that are held out.
    rate
        Share of the rows without a canary that get an identifier, in the base's text
        and in the audited rows alike.
    doses
        Numbers of train rows that hold a canary, given to the canaries in turn.
    candidates
        Strings that a canary is ranked among; the paper's 512 would take most of the
        time.
    draws
        Of noise, for each of its sizes.
    canaries
        Planted; as many more are held out.
    epochs, correction_steps
        Of each task (the paper: 3), and of PTPC after it (the paper: 200, of fewer
        rows).
    """

    # The longest first, so that two processes are busy to the end.
    runs: tuple[str, ...] = ("spark", "spark-no-ul", "er-full", "sd-replay", "er")
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
        """The tasks, in the order in which they are learned."""
        return list(TASKS)[: self.tasks]


FULL_SIZE = Size()

FACTOR = 8
SETTINGS: dict[str, object] = {
    # Layers 40 times as narrow take larger steps: of 4 and 8 times the paper's, the one
    # with the higher Last of sd-replay.
    "lr": 5e-4 * FACTOR,
    "batch_size": 16,  # the paper's 32 would leave five steps per epoch
    # As printed, a replayed response token weighs 0.07 of what it does in er, and 60
    # steps a task, where the paper has some 507, keep less.
    "replay.weighting": "mean",
    # Four times the rows per step, for a quarter of the steps.
    "ptpc.batch_size": 8,
    "ptpc.old_batch_size": 4,
    # 8 times the paper's, as lr is; 4 times for a quarter of the steps.
    "ptpc.lr": 1e-5 * FACTOR * 4,
}
"""Where the runs leave the paper's settings; ``epochs`` and ``ptpc.steps``, which are
sizes, are in :class:`Size`."""

RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "er": ("er", {}),
    "sd-replay": ("sd-replay", {}),
    "spark": ("spark", {}),
    "spark-no-ul": ("spark", {"ptpc.ul": "off"}),
    "er-full": ("er", {"loss.scope": "full"}),
}
"""Name of a run -> its method and what it sets otherwise than :data:`SETTINGS`."""
BASELINE = "sd-replay"


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

    A call that was interrupted goes on: a finished base, steps of runs, a finished
    manifest and scores are used again; a finished report is returned as it is.

    Parameters
    ----------
    out
        The report folder; ``data/``, ``runs/`` and ``manifest/`` stand in it.
    seed
        Of text, identifiers, training and statistics.
    size
        How much of everything.
    processes
        How many share the runs, and then the scoring.
    formats
        What the report is rendered in beside ``report.json``; none: all there are.
    progress
        Called with the phase, what is done of it, and what there is.

    Raises
    ------
    InputError
        If the folder holds something else than this demo.
    OutputError
        If it cannot be written.
    """
    _claim(out, seed, size)
    tell = progress or _tell_nobody
    finished = _finished(out, formats)
    if finished is not None:
        return finished

    # Models this small gain little from a second thread, and crawl where it waits: a
    # step took eight times as long with another busy program on the same two cores.
    with use_threads(1):
        tell("making data", 0, 1)
        background, audited = make_data(seed, size)
        for path, task in zip(_data_files(out, size), size.order, strict=True):
            write_examples(path, [row for row in audited if row.task == task])
        with quiet():
            tokenizer = make_tokenizer([example.text for example in background])
        tell("making data", 1, 1)

        # All runs start from it, and the manifest is matched on it.
        base = out / "runs" / "base"
        train_base(base, background, tokenizer, seed=seed, progress=tell)

        # The manifest is built by whichever process is free last.
        jobs = [partial(_train, name, out, seed, size) for name in size.runs]
        jobs.append(partial(_build, out, seed, size))
        n_done = count()

        def tell_done(_: object = None) -> None:
            tell("training runs and matching, jobs", next(n_done), len(jobs))

        tell_done()
        run_jobs(jobs, processes=processes, ended=tell_done)

        return run(_request(out, seed, size, processes, formats), progress=tell)


def _tell_nobody(phase: str, done: int, total: int) -> None:
    """Stand for a function that shows progress."""


def _finished(out: Path, formats: Sequence[str]) -> Outcome | None:
    """Return the finished demo of a folder; None: it is to be made, or made again.

    A report of other versions is made again. Pages that were deleted are rendered.
    """
    if not (out / "report.json").exists():
        return None
    report = read_report(out)
    if report.versions != versions():
        return None

    has_pages = all((out / page).exists() for page in DEMO_PAGES)
    if not formats and not has_pages:
        manifest = load_manifest(_manifest_file(out))
        write_report(report, out, manifest=manifest)
    # It names what stands beside it, and that may be more by now.
    return Outcome(out, read_report(out))


def make_data(seed: int, size: Size) -> tuple[list[Example], list[Example]]:
    """Return text for the base, and the rows that are trained on and audited.

    Both hold identifiers of the same formats, drawn apart from each other. The base
    sees the tasks, too: a model this small would forget all else over learning them.
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

    # Tasks that are not learned are left out last: so the others' text is the same.
    return (
        [row for row in partly_labelled if row.task in size.order],
        [row for row in audited if row.task in size.order],
    )


def _manifest_file(out: Path) -> Path:
    """Return where the demo's manifest stands."""
    return out / "manifest" / f"{DEMO_NAME}.json"


def _data_files(out: Path, size: Size) -> list[Path]:
    """Return where the rows of each task stand, in the order of training."""
    return [out / "data" / f"{task}.jsonl" for task in size.order]


def _claim(out: Path, seed: int, size: Size) -> None:
    """Claim the folder: training takes most of the time and must not be in vain.

    Raises
    ------
    InputError
        If the folder holds anything, and not this demo.
    """
    files.check_links(out, "data", "manifest", "runs", "runs/*")
    files.check_writable(out)
    own_state = json.dumps({"seed": seed, "size": asdict(size)}, indent=1) + "\n"
    names_in_folder = sorted(path.name for path in out.glob("[!.]*"))
    if not names_in_folder:
        # As run.json it tells the seed.
        files.write_text(out / STATE, own_state, mode=0o600)
        return

    # A folder that was claimed for another seed or size is not gone on with.
    state_in_folder = b""
    with suppress(OSError):
        state_in_folder = files.read_regular(out / STATE)
    if state_in_folder == own_state.encode():
        return
    what = f"holds no demo ({names_in_folder[0]})"
    if state_in_folder:
        what = "holds another report"
    raise InputError(what, where=str(out), fix="give another -o, or remove the folder")


def _train(name: str, out: Path, seed: int, size: Size) -> None:
    """Do ``spark-train run`` of one run; a finished one is only looked at."""
    with quiet():
        from spark_train.methods import groups
        from spark_train.training_request import StudentLoading, TrainRequest
        from spark_train.training_run import train
        from spark_train.training_settings import names

    method, own_settings = RUNS[name]
    settings = {
        **SETTINGS,
        "epochs": size.epochs,
        "ptpc.steps": size.correction_steps,
        **own_settings,
    }
    # Of the settings a method takes its own: others would be refused.
    names_of_method = names(groups(method))
    typed_settings = [
        f"{key}={value}" for key, value in settings.items() if key in names_of_method
    ]
    train(
        TrainRequest(
            method=method,
            base=str(out / "runs" / "base"),
            order=",".join(size.order),
            data=tuple(_data_files(out, size)),
            output=out / "runs" / name,
            settings=tuple(typed_settings),
            seed=seed,
            loading=StudentLoading(device="cpu"),
            command=_command(out, seed),
        )
    )


def _command(out: Path, seed: int) -> tuple[str, ...]:
    """Return the command that makes this demo."""
    return "spark-audit", "demo", "-o", str(out), "--seed", str(seed)


def _build(out: Path, seed: int, size: Size) -> None:
    """Build the manifest of the data; one of these versions is of the same base."""
    path = _manifest_file(out)
    if path.exists() and load_manifest(path).versions == versions():
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
    """Return ``spark-audit all`` of all runs."""
    order = ",".join(size.order)
    options_by_audit: dict[str, dict[str, Any]] = {
        "stages": {"order": order},
        "utility": {"order": order},
        "series": {"order": order},
        "noise": {"draws": size.draws},
    }
    # Also those that run on request only: the demo shows all there are.
    audits = []
    for name, audit in all_audits().items():
        options = options_by_audit.get(name, {})
        audits.append(audit(**options))

    # In the order of RUNS, whatever the order in which they are trained.
    run_names = [name for name in RUNS if name in size.runs]
    return Request(
        audits=tuple(audits),
        ckpt=tuple(f"{name}={out / 'runs' / name}" for name in run_names),
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


def make_tokenizer(texts: Sequence[str]) -> Untyped:
    """Return a byte-level BPE of 1,024 tokens; every digit is one, as in Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    # ``tokenizers`` does the work; transformers' class wraps it.
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()

    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)

    # A BOS token begins every text; no EOS token ends it.
    inner.post_processor = Sequence(
        [
            ByteLevel(trim_offsets=False),
            TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )

    untyped_class: Untyped = PreTrainedTokenizerFast
    return untyped_class(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=DEMO_CONTEXT_TOKENS,
    )


def train_base(
    folder: Path,
    examples: Sequence[Example],
    tokenizer: Untyped,
    *,
    seed: int,
    progress: Progress,
    family: str = "llama",
    shape: Mapping[str, int] = MODEL_SHAPE,
) -> None:
    """Train a small model on whole texts, once through, and save it with its tokenizer.

    A folder that holds the base of the same texts, seed and versions is left as it is;
    anything else there is the rest of an interrupted call, and is replaced. ``family``
    is a model type of transformers that is configured as Llama is.
    """
    import torch

    with quiet():
        from transformers import AutoConfig, AutoModelForCausalLM

        from spark_train.fine_tuning import fit
        from spark_train.student import Student
        from spark_train.training_rows import encode_rows

    made_from = {
        "texts": sha256_json([example.text for example in examples]),
        "seed": seed,
        "training": {**shape, "family": family, "lr": BASE_LR, "batch": BASE_BATCH},
        "versions": versions(),
    }
    record = json.dumps(made_from, indent=1, sort_keys=True) + "\n"
    record_path = folder / MADE
    if record_path.exists() and record_path.read_text("utf-8") == record:
        return

    # Input and output embeddings are one: half of the weights would be embeddings else.
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        **shape,
        max_position_embeddings=DEMO_CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    base_seed = seed_for(seed, "base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(base_seed)
        untyped_class: Untyped = AutoModelForCausalLM
        model = untyped_class.from_config(config)

    rng = np.random.default_rng(seed_for(base_seed, "order", 0))
    fit(
        Student(model),
        encode_rows(examples, tokenizer, max_length=DEMO_CONTEXT_TOKENS),
        rng.permutation(len(examples)),
        name="fit",
        lr=BASE_LR,
        batch_size=BASE_BATCH,
        seed=base_seed,
        progress=lambda done, total: progress("training the base, steps", done, total),
    )

    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    # Written last: without it the base is not finished.
    record_path.write_text(record, encoding="utf-8")
