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
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from spark_audit.data.examples import Example, Split, read_examples, write_examples
from spark_audit.data.injection import inject
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

DEMO_NAME = "demo"
DEMO_PAGES = ("report.html", "report.md")
STATE = Path("runs") / "demo.json"
"""In the folder: what it is a demo of. It is the first thing written."""


_MADE_OF = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DEMO_WORDS = {name: words.split() for name, words in _MADE_OF["words"].items()}
CODE_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    task: (own["prompt"], own["labels"]) for task, own in _MADE_OF["tasks"].items()
}
"""Task -> its prompt, and its labels with their sentences, in training order."""

_SLOT = re.compile(r"\{(\w+)\}")


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
SETTINGS: dict[str, Any] = {
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
    tell = progress or (lambda phase, done, total: None)
    if (out / "report.json").exists():
        report = read_report(out)
        if report.versions == versions():
            if not formats and not all((out / page).exists() for page in DEMO_PAGES):
                write_report(report, out, manifest=load_manifest(_path(out)))
            # It names what stands beside it, and that may be more by now.
            return Outcome(out, read_report(out))
    # Models this small gain little from a second thread, and crawl where it waits: a
    # step took eight times as long with another busy program on the same two cores.
    with use_threads(1):
        tell("making data", 0, 1)
        background, audited = make_data(seed, size)
        for file, task in zip(_files(out, size), size.order, strict=True):
            write_examples(file, [row for row in audited if row.task == task])
        with quiet():
            tokenizer = make_tokenizer([example.text for example in background])
        tell("making data", 1, 1)
        base = out / "runs" / "base"
        train_base(base, background, tokenizer, seed=seed, progress=tell)
        jobs = [
            *(partial(_train, name, out, seed, size) for name in size.runs),
            partial(_build, out, seed, size),
        ]
        what, done = "training runs and matching, jobs", count()

        def ended(_: object = None) -> None:
            tell(what, next(done), len(jobs))

        ended()
        run_jobs(jobs, processes=processes, ended=ended)
        return run(_request(out, seed, size, processes, formats), progress=tell)


def make_data(seed: int, size: Size) -> tuple[list[Example], list[Example]]:
    """Text for the base, and the rows that are trained on and audited.

    Both hold identifiers of the same formats, drawn apart from each other. The base
    sees the tasks, too: a model this small would forget all else over learning them.
    """
    known, new = seed_for(seed, "background"), seed_for(seed, "audited")
    background = make_examples(size.base_rows, split="train", seed=known)
    background, _ = inject(background, seed=known, rate=size.rate, canaries=0)
    kept = np.random.default_rng(seed_for(known, "labels")).random(len(background))
    background = [
        row if at < size.labelled else unlabelled(row)
        for row, at in zip(background, kept, strict=True)
    ]
    audited = make_examples(size.train_rows, split="train", seed=new)
    audited += make_examples(size.test_rows, split="test", seed=new)
    audited, _ = inject(
        audited, seed=new, rate=size.rate, canaries=size.canaries, doses=size.doses
    )
    background, audited = (
        [row for row in rows if row.task in size.order]
        for rows in (background, audited)
    )
    return background, audited


def _path(out: Path) -> Path:
    return out / "manifest" / f"{DEMO_NAME}.json"


def _files(out: Path, size: Size) -> list[Path]:
    return [out / "data" / f"{task}.jsonl" for task in size.order]


def _claim(out: Path, seed: int, size: Size) -> None:
    """Claim the folder: training takes most of the time and must not be in vain."""
    files.check_links(out, "data", "manifest", "runs", "runs/*")
    files.check_writable(out)
    mine = json.dumps({"seed": seed, "size": asdict(size)}, indent=1) + "\n"
    others, found = sorted(p.name for p in out.glob("[!.]*")), b""
    if not others:
        # As run.json it tells the seed.
        files.write_text(out / STATE, mine, mode=0o600)
        return
    with suppress(OSError):
        found = files.read_regular(out / STATE)
    if found != mine.encode():
        raise InputError(
            "holds another report" if found else f"holds no demo ({others[0]})",
            where=str(out),
            fix="give another -o, or remove the folder",
        )


def _train(name: str, out: Path, seed: int, size: Size) -> None:
    """``spark-train run`` of one run; a finished one is only looked at."""
    with quiet():
        from spark_train.methods import groups
        from spark_train.training_request import StudentLoading, TrainRequest
        from spark_train.training_run import train
        from spark_train.training_settings import names
    method, differs = RUNS[name]
    steps = {"epochs": size.epochs, "ptpc.steps": size.correction_steps}
    settings = SETTINGS | steps | differs
    reads = names(groups(method))
    train(
        TrainRequest(
            method=method,
            base=str(out / "runs" / "base"),
            order=",".join(size.order),
            data=tuple(_files(out, size)),
            output=out / "runs" / name,
            settings=tuple(f"{k}={v}" for k, v in settings.items() if k in reads),
            seed=seed,
            loading=StudentLoading(device="cpu"),
            command=_command(out, seed),
        )
    )


def _command(out: Path, seed: int) -> tuple[str, ...]:
    return "spark-audit", "demo", "-o", str(out), "--seed", str(seed)


def _build(out: Path, seed: int, size: Size) -> None:
    """The manifest of the data; one of these versions is that of the same base."""
    path = _path(out)
    if path.exists() and load_manifest(path).versions == versions():
        return
    with quiet():
        base = open_checkpoint(str(out / "runs" / "base"), name="base", device="cpu")
    manifest = build_manifest(
        read_examples(*_files(out, size)),
        base,
        name=DEMO_NAME,
        seed=seed,
        n_candidates=size.candidates,
        data=_files(out, size),
    )
    write_manifest(manifest, path)


def _request(
    out: Path, seed: int, size: Size, processes: int, formats: tuple[str, ...]
) -> Request:
    """``spark-audit all`` of all runs."""
    order: dict[str, Any] = {"order": ",".join(size.order)}
    options = dict.fromkeys(("stages", "utility", "series"), order)
    options["noise"] = {"draws": size.draws}
    return Request(
        audits=tuple(
            audit(**options.get(name, {})) for name, audit in all_audits().items()
        ),
        ckpt=tuple(
            f"{name}={out / 'runs' / name}" for name in RUNS if name in size.runs
        ),
        base=str(out / "runs" / "base"),
        baseline=BASELINE,
        manifest=_path(out),
        output=out,
        seed=seed,
        jobs=processes,
        formats=formats,
        loading=Loading(device="cpu"),
        command=_command(out, seed),
    )


Progress: TypeAlias = Callable[[str, int, int], None]

VOCABULARY = 1024
DEMO_CONTEXT_TOKENS = 256
MODEL_SHAPE = {"hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 2}
MODEL_SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 4}
"""A third of a million weights: what reads a few thousand rows in half a minute."""
BASE_LR, BASE_BATCH = 3e-3, 8
MADE = "made-from.json"
"""What a finished base was made from: one of the same is not made again."""


def make_tokenizer(texts: Sequence[str]) -> Any:
    """A byte-level BPE of 1,024 tokens; every digit is a token, as in Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

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
    inner.post_processor = Sequence(
        [
            ByteLevel(trim_offsets=False),
            TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )
    fast: Any = PreTrainedTokenizerFast  # untyped in the library
    return fast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=DEMO_CONTEXT_TOKENS,
    )


def train_base(
    folder: Path,
    examples: Sequence[Example],
    tokenizer: Any,
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

    made = {
        "texts": sha256_json([example.text for example in examples]),
        "seed": seed,
        "training": {**shape, "family": family, "lr": BASE_LR, "batch": BASE_BATCH},
        "versions": versions(),
    }
    record = json.dumps(made, indent=1, sort_keys=True) + "\n"
    if (folder / MADE).exists() and (folder / MADE).read_text("utf-8") == record:
        return
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "base"))
        untyped: Any = AutoModelForCausalLM
        model = untyped.from_config(config)
    seed = seed_for(seed, "base")
    rng = np.random.default_rng(seed_for(seed, "order", 0))
    fit(
        Student(model),
        encode_rows(examples, tokenizer, max_length=DEMO_CONTEXT_TOKENS),
        rng.permutation(len(examples)),
        name="fit",
        lr=BASE_LR,
        batch_size=BASE_BATCH,
        seed=seed,
        progress=lambda *done: progress("training the base, steps", *done),
    )
    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (folder / MADE).write_text(record, encoding="utf-8")


def make_examples(rows: int, *, split: Split, seed: int) -> list[Example]:
    """Labelled rows of the six tasks, ``rows`` each, without any identifier."""
    examples = []
    for task, (prompt, labels) in TASKS.items():
        rng = np.random.default_rng(seed_for(seed, "text", task, split))
        names = sorted(labels)
        for i in range(rows):
            label = names[i % len(names)]
            chosen = rng.permutation(labels[label])[: rng.integers(1, 3)]
            text = _SLOT.sub(partial(_fill, rng), " ".join(chosen))
            name = f"{task}-{split}-{i:04d}"
            examples.append(
                Example(
                    id=name,
                    task=task,
                    prompt=prompt.replace("{text}", text),
                    response=f" {label}",
                    split=split,
                    source_id=name,
                )
            )
    return examples


def unlabelled(example: Example) -> Example:
    """The same text without its last line, which asks for the label, and without it."""
    text = example.prompt.rpartition("\n")[0]
    cut = text.index(" ")
    return replace(example, prompt=text[:cut], response=text[cut:])


def _fill(rng: np.random.Generator, slot: re.Match[str]) -> str:
    def made_up() -> str:
        return "".join(rng.choice(DEMO_WORDS["syllable"], rng.integers(2, 5)))

    drawn: dict[str, Callable[[], str]] = {
        "n": lambda: str(rng.integers(2, 10 ** rng.integers(1, 4))),
        "amount": lambda: f"${rng.integers(3, 900)}.{rng.integers(0, 100):02d}",
        "time": lambda: f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}",
        "date": lambda: f"{rng.integers(1, 29)} {rng.choice(DEMO_WORDS['month'])}",
        "brand": lambda: made_up().capitalize(),
        "file": lambda: f"{made_up()}-{made_up()}{rng.integers(10, 100)}.pdf",
        "code": lambda: "".join(rng.choice(list(CODE_CHARACTERS), rng.integers(6, 13))),
    }
    name = slot[1]
    return drawn[name]() if name in drawn else str(rng.choice(DEMO_WORDS[name]))
