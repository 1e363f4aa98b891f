"""Claims on tiny models of which it is known what their training supervised.

``python benchmarks/known_truth_supervision.py --seeds 0:20`` trains four models a seed
on rows of chat data with a number in each question or answer, and audits them:

``full``
    Numbers stand in answers; all tokens have loss.
``packed``
    The same rows, several in a row of the batch, each with its answer in the loss.
``masked``
    Numbers stand in questions, and only answers have loss.
``cut``
    Numbers stand behind ``max_length``.

It counts the numbers whose label in the manifest is the truth, and what is claimed:
``memory`` or ``verbatim`` of ``masked`` or ``cut`` is a false claim. A finished (seed,
scenario) is a line of ``--out``; the same command resumes.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import benchmark_parser, check_model, run_benchmark, seed_list
from exact_limits import limits
from finished_lines import append, read

from spark_audit.audits import Extraction, Matched, Twins
from spark_audit.audits.claims import corrected
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.encoding import encode_rows, tokens_of_ranges
from spark_audit.data.examples import Example, Span
from spark_audit.data.training_input import Supervision, TrainingInput
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.names import BASE
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.scoring.score import score

HERE = Path(__file__).parent
TRUTH: dict[str, Supervision] = {
    "full": "in the loss",
    "packed": "in the loss",
    "masked": "read only",
    "cut": "cut off",
}
"""Scenario -> what training did with every number of its trained rows."""
N_TRAIN, N_HELD_OUT = 24, 24
STEPS, PACKED = 80, 4
NO_LOSS = -100
AUDITS = (Matched(placebo_draws=0, rematched=False), Twins(), Extraction())
DETECTED = ("memory", "verbatim")
WORDS = "the service food good cold said customer paid dollars rate label news".split()


def make_rows(scenario: str, seed: int, tokenizer: Any) -> list[Example]:
    """Return trained and held-out rows, with one number each."""
    rng = np.random.default_rng([seed, 7])
    rows = []
    for i in range(N_TRAIN + N_HELD_OUT):
        number = f"{rng.integers(100, 999)}-{rng.integers(1000, 9999)}"
        words = [" ".join(rng.choice(WORDS, 3)) for _ in range(2)]
        question, answer, rest = words[0], words[1], ""
        if scenario == "masked":
            question += f" call {number}"
        elif scenario == "cut":
            rest = f"</s>\nUser: call {number}"
        else:
            answer += f" call {number}"
        prompt = f"<s>User: {question}\nBot: "
        response = f"{answer}{rest}</s>"
        start = (prompt + response).index(number)
        has_loss = (len(prompt), len(prompt + answer))
        if scenario == "full":
            has_loss = (0, len(prompt + response))
        training = TrainingInput("in_text", supervised=(has_loss,))
        is_trained = i < N_TRAIN
        row = Example(
            id=f"row-{i:02d}",
            task="chat",
            prompt=prompt,
            response=response,
            split="train" if is_trained else "test",
            source_id=f"row-{i:02d}",
            spans=(Span(start, start + len(number), "PHONE", "injected"),),
            training_input=training,
        )
        if scenario == "cut" and is_trained:
            (encoding,) = encode_rows(tokenizer, [row])
            length = encoding.first_token_past(len(prompt + answer)) + 1
            training = TrainingInput(
                "in_text", supervised=(has_loss,), max_length=length
            )
            row = Example(
                row.id,
                row.task,
                prompt,
                response,
                row.split,
                row.source_id,
                row.spans,
                training_input=training,
            )
        rows.append(row)
    return rows


def batch_of(
    rows: Sequence[Example], tokenizer: Any, *, together: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and labels as a trainer feeds them; so many rows stand in one."""
    fed: list[tuple[list[int], list[int]]] = []
    for row, encoding in zip(rows, encode_rows(tokenizer, rows), strict=True):
        training = row.training_input
        assert training is not None
        low, high = training.token_range_read(len(encoding))
        has_loss = tokens_of_ranges(encoding, training.supervised)
        own_labels = np.where(has_loss, encoding.ids, NO_LOSS)
        fed.append((encoding.ids[low:high].tolist(), own_labels[low:high].tolist()))
    lines = []
    for start in range(0, len(fed), together):
        part = fed[start : start + together]
        tokens = [token for own, _ in part for token in own]
        lines.append((tokens, [label for _, own in part for label in own]))
    shape = len(lines), max(len(tokens) for tokens, _ in lines)
    ids = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, NO_LOSS)
    for i, (row_ids, row_labels) in enumerate(lines):
        ids[i, : len(row_ids)] = torch.tensor(row_ids)
        labels[i, : len(row_ids)] = torch.tensor(row_labels)
    return ids, labels


def train(base: Path, out: Path, ids: torch.Tensor, labels: torch.Tensor) -> None:
    """Train all weights of a model by heart, and save it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(ids, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(base).save_pretrained(out)


def run(base: Path, scenario: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train and audit a model; return what the manifest says and what is claimed."""
    loaded = open_checkpoint(str(base), name=BASE)
    rows = make_rows(scenario, seed, loaded.tokenizer)
    trained = [row for row in rows if row.split == "train"]
    together = PACKED if scenario == "packed" else 1
    torch.manual_seed(seed)
    train(
        base, folder / "mine", *batch_of(trained, loaded.tokenizer, together=together)
    )

    manifest = build_manifest(rows, loaded, name="m", caliper=5.0, seed=seed)
    trained_on = trained_identifiers(manifest)
    states = Counter(
        trained_on.supervision_of(row, span)
        for row in manifest.examples
        for span in row.spans
        if row.split == "train"
    )
    plan = union(make_plans(manifest, AUDITS, preset=None)[1])
    tables = {}
    for name, path in ((BASE, base), ("mine", folder / "mine")):
        opened = open_checkpoint(str(path), name=name)
        items = items_for(manifest, opened, plan)
        tables[name] = {
            kind: score(opened, own, passes=[kind])[kind] for kind, own in items.items()
        }
    findings = []
    for audit in AUDITS:
        if audit.plan(manifest):
            findings += audit(tables, manifest, seed=seed).findings
    claims = [
        [one.audit, one.claim]
        for one in corrected(findings)
        if one.checkpoint == "mine" and one.claim in DETECTED
    ]
    return {
        "seed": seed,
        "scenario": scenario,
        "labelled": states[TRUTH[scenario]],
        "identifiers": N_TRAIN,
        "claims": claims,
    }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table of scenarios in Markdown, with exact one-sided 95% limits."""
    made = [
        "| scenario | runs | labelled as they were | runs with a claim | limit |",
        "|---|---|---|---|---|",
    ]
    for scenario in TRUTH:
        own = [line for line in lines if line["scenario"] == scenario]
        if not own:
            continue
        n_labelled = sum(line["labelled"] for line in own)
        n_all = sum(line["identifiers"] for line in own)
        n_claims = sum(bool(line["claims"]) for line in own)
        least, most = limits(n_claims, len(own))
        if scenario in ("masked", "cut"):
            # At most so often is claimed what is not so.
            limit = f"at most {most:.0%}"
        else:
            limit = f"at least {least:.0%}"
        made.append(
            f"| {scenario} | {len(own)} | {n_labelled} of {n_all} "
            f"| {n_claims} | {limit} |"
        )
    return "\n".join(made)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "base", type=Path, metavar="MODEL", help="folder of a small model"
    )
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    out = HERE / "known_truth_supervision.jsonl"
    parser.add_argument("--out", type=Path, default=out)
    chosen = parser.parse_args()
    check_model("MODEL", chosen.base)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = read(chosen.out, "seed", "scenario")
    done = {(line["seed"], line["scenario"]) for line in lines}
    for seed in chosen.seeds:
        for scenario in TRUTH:
            if (seed, scenario) not in done:
                with tempfile.TemporaryDirectory() as folder:
                    line = run(chosen.base, scenario, seed, Path(folder))
                append(chosen.out, line)
                print(json.dumps(line), flush=True)
    print(table(read(chosen.out, "seed", "scenario")))


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
