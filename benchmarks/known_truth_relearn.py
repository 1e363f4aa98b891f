"""``--relearn`` on tiny models of known truth: what comes back, and what must not.

``python benchmarks/known_truth_relearn.py --seeds 0:8`` makes, for each seed, models
that learned identifiers and then lost them in several ways, and models that never read
them, audits all by the real command with ``--relearn``, and writes a line per seed to
``--out``; finished ones are kept. It prints how often "suppressed, not forgotten" was
claimed, and means of what the report says before and after.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from command_line import benchmark_parser, run_benchmark, seed_list
from exact_limits import limits
from finished_lines import append, read
from known_truth_models import BUILD, Lab, run_command
from known_truth_rows import OTHERS, SIZES, TOPICS, plain_rows
from known_truth_training import batches, encoded, fit

HERE = Path(__file__).parent
LEFT_OUT = ("rank", "noise", "stages", "utility", "canary", "twins", "nll")
CASES = {
    "foreign": "never trained: other rows of these kinds",
    "unrelated": "never trained: unrelated text",
    "noisy": "never trained: weights with noise",
    "later": "forgotten by later tasks",
    "corrected": "corrected by SPARK",
    "pushed": "trained identifiers pushed to 6 nats a token",
    "mild": "gradient ascent to 6 nats a token",
    "hard": "gradient ascent to 60 nats a token",
    "rmu": "like RMU: hidden states misdirected",
}
"""Checkpoints; those never trained on the audited rows first."""
FIGURES = {
    "A": ("matched", "memory", ""),
    "AUC": ("mia", "auc", "loss"),
    "back": ("extract", "greedy_rate", ""),
}
"""What is shown before and after: memory, membership, identifiers that come back."""
AFTER = ("", "+relearn")


def _further(lab: Lab, out: Path, loss: Callable[..., torch.Tensor]) -> None:
    """The model that knows the rows by heart, trained on with another loss."""
    model, rows = lab.load("heart"), encoded(lab.members, lab.tokenizer, "all")
    fit(model, rows, epochs=3, lr=1e-3, seed=lab.number(out.name), size=8, loss=loss)
    lab.save(model, out)


def _ascent(least: float) -> Callable[[Lab, Path], None]:
    """Gradient ascent on its rows, up to so many nats a token."""

    def loss(nll: torch.Tensor, learned: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.relu(least - nll[learned[:, 1:]]).mean()

    return lambda lab, out: _further(lab, out, loss)


def _pushed(nll: torch.Tensor, _: torch.Tensor, private: torch.Tensor) -> torch.Tensor:
    """Identifiers become less likely, and all other text stays learned."""
    secret = private[:, 1:]
    return torch.relu(6 - nll[secret]).mean() + nll[~secret].mean()


def _later(lab: Lab, out: Path) -> None:
    """After other subjects, and after other rows of these kinds."""
    model, seed = lab.load("heart"), lab.number("later")
    rows = [*plain_rows(300, OTHERS, "train", seed, "later"), *lab.sets["foreign"]]
    read = encoded(rows, lab.tokenizer, "all")
    fit(model, read, epochs=8, lr=4e-3, seed=seed, size=8)
    lab.save(model, out)


def _rmu(lab: Lab, out: Path) -> None:
    """Hidden states of trained rows go one random way, those of others stay."""
    model, before, seed = lab.load("heart"), lab.load("heart").eval(), lab.number("rmu")
    way = torch.nn.functional.normalize(torch.rand(64), dim=0) * 40
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

    def states(of: Any, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = of(ids, output_hidden_states=True).hidden_states[1]
        return found

    both = (lab.members, lab.sets["foreign"])
    sets = [encoded(rows, lab.tokenizer, "all") for rows in both]
    for epoch in range(3):
        for (ids, *_), (kept, *_) in zip(
            # The rows that stay may be more.
            *(batches(rows, 8, seed + epoch) for rows in sets),
            strict=False,
        ):
            with torch.no_grad():
                stays = states(before, kept)
            loss = (states(model, ids) - way).square().mean()
            loss = loss + 10 * (states(model, kept) - stays).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    lab.save(model, out)


OWN: dict[str, Callable[[Lab, Path], None]] = {
    "heart": lambda lab, out: lab.by_heart(out, ["member"]),
    "later": _later,
    "pushed": lambda lab, out: _further(lab, out, _pushed),
    "mild": _ascent(6.0),
    "hard": _ascent(60.0),
    "rmu": _rmu,
}


def audited(folder: Path, seed: int, flags: list[str]) -> dict[str, Any]:
    """What the report says of each case before and after, and what it claims."""
    import spark_audit as sa
    from spark_audit.cli.main import run
    from spark_audit.report.checkpoint_states import checkpoint_states

    lab = Lab(folder / "lab", seed, SIZES["small"])
    # Everything is made of, and audited on, the rows that are learned by heart.
    lab.sets |= {"member": lab.setups["heart"], "other": lab.setups["heart_held"]}
    base, manifest = str(lab.path("base")), str(folder / "m.json")
    data = str(lab.data("audited", lab.rows(("member", "other"))))
    rows = plain_rows(200, TOPICS, "train", lab.number("relearn"), "relearn")
    quiet = ["--device", "cpu", "--quiet"]
    build = ["manifest", "build", "--base", base, "--data", data, "-o", manifest]
    run_command(run, [*build, *quiet])
    command = ["all", "--ckpt", *(f"{name}={lab.path(name)}" for name in CASES)]
    command += ["--base", base, "--manifest", manifest, "-o", str(folder / "report")]
    command += ["--relearn", str(lab.data("relearn", rows)), "--jobs", "1", *flags]
    command += ["--no-rematched", "--placebo-draws", "0", "--skip", *LEFT_OUT]
    run_command(run, [*command, "--format", "json", *quiet])
    report = sa.read_report(folder / "report")
    states = {one.name: one.state for one in checkpoint_states(report)}
    found: dict[str, Any] = {}
    for case in CASES:
        own: dict[str, Any] = {}
        for name in (case + at for at in AFTER):
            told: dict[str, Any] = {"state": states.get(name)}
            for key, place in FIGURES.items():
                told[key] = next(
                    (
                        row.value
                        for row in report.results
                        if (row.checkpoint, row.group) == (name, "pooled")
                        and (row.audit, row.metric, row.variant) == place
                    ),
                    None,
                )
            own[name.removeprefix(case)] = told
        own["claims"] = [
            (one.says, one.claim, one.alone, one.p, one.status)
            for one in report.findings
            if one.checkpoint == f"{case}+relearn" and one.audit == "matched"
        ]
        found[case] = own
    return found


def table(lines: list[dict[str, Any]]) -> None:
    """Print it in Markdown."""
    heads = ("case", "not forgotten", "alone", "LEAKS", *FIGURES)
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for case, title in CASES.items():
        own = [line["cases"][case] for line in lines]
        told = [[c for c in o["claims"] if c[0] == "matched.returned"] for o in own]
        cells = [title]
        for at in (1, 2):
            said = sum(any(c[at] == "memory" for c in claims) for claims in told)
            cells.append(f"{said}/{len(own)}, <= {limits(said, len(own))[1]:.0%}")
        leaks = [sum(o[at]["state"] == "LEAKS" for o in own) for at in AFTER]
        cells.append(" -> ".join(map(str, leaks)))
        for key in FIGURES:
            pairs = [
                [o[at][key] for o in own if o[at][key] is not None] for at in AFTER
            ]
            cells.append(" -> ".join(f"{fmean(p):.2f}" if p else "-" for p in pairs))
        print(f"| {' | '.join(cells)} |")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of finished seeds."""
    return read(path, "seed", "cases")


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:8", help="FIRST:END or N,N"
    )
    parser.add_argument("--out", type=Path, default=HERE / "known_truth_relearn.jsonl")
    parser.add_argument("--keep", type=Path, help="folder that keeps models")
    options, flags = parser.parse_known_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    BUILD.update(OWN)
    done = {line["seed"] for line in lines_of(options.out)}
    for seed in options.seeds:
        if seed in done:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            append(options.out, {"seed": seed, "cases": audited(folder, seed, flags)})
    table(lines_of(options.out))


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
