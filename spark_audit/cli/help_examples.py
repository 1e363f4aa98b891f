"""What ``--help`` shows as examples, by command: each is one that works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "demo": ("demo", "demo -o reports/demo-2 --seed 2"),
    "inspect": ("inspect runs/mine --base models/base",),
    "data import": (
        "data import raw/reviews --task reviews --map response=label "
        "--template 'Review: {text}' -o data/reviews.jsonl",
        "data import reviews.csv --task reviews --split train "
        "--map prompt=text response=label -o data/reviews.jsonl",
    ),
    "data annotate": ("data annotate data/reviews.jsonl -o data/annotated.jsonl",),
    "data inject": ("data inject data/reviews.jsonl -o data/injected --canaries 50",),
    "manifest build": (
        "manifest build --base models/base --data data/injected "
        "-o manifests/reviews.json",
    ),
    "manifest show": ("manifest show manifests/reviews.json",),
    "manifest verify": ("manifest verify manifests/reviews.json --base models/base",),
    "manifest export": (
        "manifest export manifests/reviews.json --redact -o shared.json",
    ),
    "manifest rows": ("manifest rows manifests/reviews.json -o peer",),
    "all": (
        "all --ckpt runs/mine --base models/base --dry-run",
        "all --ckpt with=runs/mine without=runs/plain --base models/base "
        "--baseline without",
        "all --ckpt runs/mine --base models/base --skip extract --also noise",
        "all --config reports/reviews-mine/command-all.toml",
    ),
    "series": (
        "series --ckpt runs/mine --base models/base",
        "all --ckpt runs/mine --base models/base --also series",
    ),
    "stages": (
        "stages --ckpt runs/mine --base models/base",
        "stages --ckpt 'mine=[run/step1,run/step2]' --base models/base --order t1,t2",
    ),
    "utility": ("utility --ckpt runs/mine --data data/test.jsonl",),
    "report": (
        "report reports/reviews-mine --format html,md",
        "report reports/reviews-mine/report.html --manifest manifests/reviews.json",
    ),
    "persons": (
        "persons reports/reviews-mine",
        "persons reports/before reports/after --person customer-0172",
    ),
    "epsilon": (
        "epsilon reports/reviews-mine --claims 2 --delta 1e-5",
        "epsilon reports/reviews-mine --claims 3 --unit canary --relation replace",
    ),
    "verify": (
        "verify reports/reviews-mine",
        "verify reports/reviews-mine --attestation gate.intoto.json",
    ),
    "compare": ("compare reports/reviews-mine reports/reviews-plain",),
    "gate": (
        "gate reports/reviews-mine",
        "gate reports/reviews-mine --fail-if 'mia.auc.loss.low > 0.55'",
        "gate reports/reviews-mine --fail-if 'claim >= memory except base'",
        "gate reports/reviews-mine --against reports/reviews-old "
        "--fail-if 'matched.memory[type=EMAIL] rose by 0.05'",
    ),
}
ANY = "--ckpt runs/mine --base models/base"
"""The example of an audit that has none here."""
