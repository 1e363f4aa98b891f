"""The membership panel beside the published codes, on fine-tunes of real rows.

``python benchmarks/membership.py --base MODEL --data FOLDER --seeds 0:10`` fine-tunes a
base on 300 rows of a task (full text), audits it by the real command on these and 300
others, and audits a second fine-tune, of 300 third rows, on the same: it saw none of
them, so whatever is claimed of it is false. ``FOLDER/TASK/train.jsonl`` holds rows
``{"text", "label"}``. Published scores are computed from the models' own logits as
their programmes do. A finished (seed, kind) is a line of the output; the same command
goes on where it was interrupted. ``--table`` only prints, in Markdown.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from command_line import (
    benchmark_parser,
    check_finished_lines,
    check_folder,
    check_model,
    positive_number,
    run_benchmark,
    seed_list,
)
from exact_limits import limits
from finished_lines import append, read
from known_truth_models import run_command
from known_truth_training import encoded, fit
from scipy import special
from transformers import AutoModelForCausalLM, AutoTokenizer

import spark_audit as sa
from spark_audit.audits.mia import score_tables
from spark_audit.audits.mia.score_tables import ALL_SCORES
from spark_audit.cli.main import run as audit
from spark_audit.data.examples import Example, write_examples
from spark_audit.provenance import seed_for
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import COLUMN_TYPES, TokenTable
from spark_audit.stats.roc import auc, tpr_at_fpr

HERE = Path(__file__).parent
TASKS = ("agnews", "amazon", "fomc", "mentill", "yelp")
ROWS, CHARACTERS = 300, 200
EPOCHS, RATE = 1, 3e-4
WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
FPRS = {"TPR at 1% FPR": 0.01, "TPR at 10% FPR": 0.1}
KINDS = ("trained", "clean")
EARLIER = ("loss", "response", "mink10", "minkpp10", "zlib", "reference")
BESIDE = {
    "WBC": "wbc",
    "EZ": "ez",
    "InfoRMIA, token-level": "rmia",
    "Min-K 20%": "mink20",
    "Min-K++ 20%": "minkpp20",
    "zlib": "zlib",
    "loss": "loss",
    "reference": "reference",
}
"""Published score -> ours."""


def rows_of(folder: Path, task: str, seed: int) -> dict[str, list[Example]]:
    """Rows that are trained on, others, and third ones; drawn anew for each seed."""
    lines = (folder / task / "train.jsonl").read_text("utf-8").splitlines()
    texts = {}
    for line in lines:
        row = json.loads(line)
        texts[row["text"][:CHARACTERS].strip()] = row["label"]
    known = list(texts.items())
    order = np.random.default_rng(seed_for(seed, "rows")).permutation(len(known))
    found: dict[str, list[Example]] = {}
    for part, name in enumerate(("members", "others", "third")):
        found[name] = [
            Example(
                id=f"{name}-{i:04d}",
                task=task,
                prompt=known[at][0],
                response=f" {known[at][1]}",
                split="test" if name == "others" else "train",
                source_id=f"{name}-{i:04d}",
            )
            for i, at in enumerate(order[part * ROWS : (part + 1) * ROWS])
        ]
    return found


@torch.no_grad()
def published(target: Any, base: Any, tokenizer: Any, text: str) -> dict[str, float]:
    """Scores of one text as the published programmes give them, larger = member."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    ours, theirs = (
        model(input_ids=ids).logits[0, :-1].log_softmax(-1).double()
        for model in (target, base)
    )
    goal = ids[0, 1:]
    new, old = (each.gather(1, goal[:, None])[:, 0].numpy() for each in (ours, theirs))
    shares = []
    for window in WINDOWS:
        ones = np.ones(min(window, len(new)))
        sums = [np.convolve(-v, ones, "valid") for v in (old, new)]
        shares.append(np.mean(sums[0] > sums[1]))
    wrong = (ours.argmax(1) != goal).numpy()
    wrong[0] = False
    moved = (new - old)[wrong]
    up, down = moved[moved > 0].sum(), -moved[moved < 0].sum()
    mean = (ours.exp() * ours).sum(1)
    sd = ((ours.exp() * ours**2).sum(1) - mean**2).clamp(min=0).sqrt()
    z = ((torch.from_numpy(new) - mean) / sd).numpy()
    lowest = max(1, int(0.2 * len(new)))
    away = (theirs.exp() * (theirs - ours)).sum(1).numpy()
    return {
        "WBC": float(np.mean(shares)),
        "EZ": up / (down + 1e-12) if wrong.sum() >= 2 and down > 0 else 0.0,
        "InfoRMIA, token-level": float(np.mean(new - old + away)),
        "Min-K 20%": float(np.sort(new)[:lowest].mean()),
        "Min-K++ 20%": float(np.sort(z)[:lowest].mean()),
        "zlib": float(new.mean() / len(zlib.compress(text.encode()))),
        "loss": float(new.mean()),
        "reference": float((new - old).mean()),
    }


def rates(values: np.ndarray, member: np.ndarray) -> dict[str, float]:
    """AUC and rates of one score over the rows that have it."""
    known = np.isfinite(values)
    x, y = values[known & member], values[known & ~member]
    found = {name: tpr_at_fpr(x, y, fpr).value for name, fpr in FPRS.items()}
    return {"AUC": auc(x, y), **found, "rows": int(known.sum())}


def run_seed(
    seed: int, kinds: Sequence[str], base: Path, data: Path, lines: Path
) -> None:
    """Both fine-tunes of a seed, audited; one line each."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    sets = rows_of(data, TASKS[seed % len(TASKS)], seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audited = [*sets["members"], *sets["others"]]
        write_examples(folder / "rows.jsonl", audited)
        shared = ["--base", str(base), "--device", "cpu", "--quiet"]
        shared += ["--scores", str(folder / "scores")]
        manifest = str(folder / "manifest.json")
        build = ["manifest", "build", "--data", str(folder / "rows.jsonl")]
        run_command(audit, [*build, "-o", manifest, *shared])
        for kind in kinds:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            learned = sets["members" if kind == "trained" else "third"]
            torch.manual_seed(seed)
            fit(
                model,
                encoded(learned, tokenizer, "all"),
                epochs=EPOCHS,
                lr=RATE,
                seed=seed_for(seed, kind) % 2**31,
            )
            shutil.rmtree(folder / "model", ignore_errors=True)
            model.save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")
            out = folder / f"report-{kind}"
            command = ["mia", "--ckpt", f"ours={folder / 'model'}", "--manifest"]
            command += [manifest, "-o", str(out), "--format", "json", *shared]
            run_command(audit, [*command, "--seed", str(seed)])
            line = {"seed": seed, "kind": kind, "claim": _claim(out)}
            if kind == "trained":
                both = model.eval(), before
                theirs = [published(*both, tokenizer, row.text) for row in audited]
                line["ours"], line["published"] = _figures(out, audited, theirs)
            append(lines, line)


def _claim(out: Path) -> str:
    (own,) = (f for f in sa.read_report(out).findings if f.checkpoint == "ours")
    return f"{own.claim}: {own.variant}"


def _figures(
    out: Path, rows: Sequence[Example], theirs: Sequence[dict[str, float]]
) -> tuple[Any, Any]:
    """Rates of our scores, from the evidence, and of the published ones."""
    known = Evidence.read(out / "scores" / "mia.parquet")
    frame = known.whole("ours").dropna(subset=[*known.values], how="all")
    frame = frame.set_index("example")
    member = frame["member"].to_numpy(bool)
    ours = {of: rates(frame[of].to_numpy(np.float64), member) for of in ALL_SCORES}
    other = pd.DataFrame(theirs, index=[row.id for row in rows]).loc[frame.index]
    return ours, {of: rates(other[of].to_numpy(), member) for of in other}


# --- time -----------------------------------------------------------------------------


def timed(texts: int) -> str:
    """Processor time of all scores, and of those that were there before the panel."""
    rng = np.random.default_rng(0)
    length = rng.integers(20, 101, texts)
    ids = tuple(f"{i:08d}" for i in range(texts))
    ends = np.concatenate([[0], np.cumsum(length)])
    position = np.concatenate([np.arange(1, n + 1, dtype=np.int32) for n in length])
    tables = []
    for _ in range(2):
        columns = {
            name: rng.gamma(2, 1.5, ends[-1]).astype(dtype)
            for name, dtype in COLUMN_TYPES["plain"].items()
        }
        tables.append(TokenTable(ids, ends, position, columns))
    blank = SimpleNamespace(text="", kept=(0, 1), reference_unll=[0], response_token=15)
    manifest: Any = SimpleNamespace(by_id=dict.fromkeys(ids, blank))
    held = vars(score_tables)
    seconds: list[float] = []
    every = dict(held["MEMBERSHIP_SCORES"])
    for names in (EARLIER, ALL_SCORES) * 3:
        held["MEMBERSHIP_SCORES"] = {k: run for k, run in every.items() if k in names}
        start = time.process_time()
        score_tables.membership_scores(tables[0], manifest, ids, base=tables[1])
        seconds.append(time.process_time() - start)
    before, now = np.median(seconds[::2]), np.median(seconds[1::2])
    return (
        f"{texts:,} texts, {ends[-1]:,} tokens: {now:.2f} s of processor time, "
        f"{now - before:.2f} s more than for {len(EARLIER)} scores; zlib left out.\n"
    )


# --- table ----------------------------------------------------------------------------


def mean(values: Sequence[float], *, least: float = -1.0) -> str:
    """Mean over seeds with its 95% t interval, cut to what can be."""
    x = np.asarray(values)
    reach = special.stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / np.sqrt(len(x))
    low, high = max(x.mean() - reach, least), min(x.mean() + reach, 1.0)
    return f"{x.mean():.3f} [{low:.3f}, {high:.3f}]"


def markdown(lines: Iterable[dict[str, Any]]) -> str:
    """Rates of both sides, differences paired by seed, and claims."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_kind[line["kind"]].append(line)
    trained = by_kind["trained"]
    if len(trained) < 2:
        return "Fewer than two seeds.\n"
    heads = ("AUC", *FPRS)
    out = [f"| score | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for side, names in (("ours", ALL_SCORES), ("published", tuple(BESIDE))):
        for of in names:
            values = [[one[side][of][head] for one in trained] for head in heads]
            told = [mean(each, least=0.0) for each in values]
            out.append(
                f"| {of}{', published' * (side != 'ours')} | {' | '.join(told)} |"
            )
    title = " | ".join(f"{h}, combined less it" for h in heads)
    out += ["", f"| published score | {title} |", "|---" * (len(heads) + 1) + "|"]
    for of in BESIDE:
        apart = [
            mean([o["ours"]["combined"][h] - o["published"][of][h] for o in trained])
            for h in heads
        ]
        out.append(f"| {of} | {' | '.join(apart)} |")
    out.append("")
    for kind in KINDS:
        own = by_kind[kind]
        made = sum(line["claim"].startswith("membership") for line in own)
        if own:
            low, high = limits(made, len(own))
            out.append(
                f"{kind}: membership claimed of {made} of {len(own)} (exact one-sided "
                f"95% limits {low:.1%}, {high:.1%})."
            )
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--base", type=Path, help="folder of a base model")
    parser.add_argument("--data", type=Path, help="folder of tasks")
    parser.add_argument(
        "--seeds", type=seed_list, default="0:10", help="FIRST:END or N,N"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    out = HERE.parent / "runs" / "membership.jsonl"
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument(
        "--time", type=positive_number, metavar="N", help="time N texts, no more"
    )
    options = parser.parse_args(arguments)
    if options.time:
        print(timed(options.time), end="")
        return 0
    if options.table:
        check_finished_lines(options.out)
    else:
        if options.base is None or options.data is None:
            parser.error("give --base and --data, or --table, or --time")
        check_model("--base", options.base)
        check_folder("--data", options.data)
        torch.set_num_threads(1)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        lines = read(options.out, "seed", "kind")
        done = {(line["seed"], line["kind"]) for line in lines}
        for seed in options.seeds:
            if kinds := [k for k in options.kinds if (seed, k) not in done]:
                run_seed(seed, kinds, options.base, options.data, options.out)
    print(markdown(read(options.out, "seed", "kind")), end="")
    return 0


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
