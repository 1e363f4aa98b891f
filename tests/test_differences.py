"""Nested figures, and reports before and after a row was removed, tell no secret."""

import hashlib
import hmac
import itertools
import math
import re
from pathlib import Path
from typing import Any

import groups as scenes
import numpy as np
import pytest
from audited import conclude
from decoding import lines_of
from made_reports import figure, made_report

from spark_audit.audits import Extraction, Matched, ratio_rows
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.data.examples import Example, Span
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.provenance import canonical_json
from spark_audit.report.disclosure.rounding import step_of
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_files, write_report
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers import table_files
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import Row

TEXTS = (
    "Ticket {} is still open, and nobody at the office has called back. Label:",
    "Order {} came late; the food was cold and the service slow. Label:",
    "Room {} had a view of the sea, which is more than we had paid for. Label:",
    "Case {} was closed without a word, like the three before it. Label:",
)
SECRET = "row-05"
ROWS = 32
NAMED = ("digest", "name")
FIGURES = ("top1_rate", "top5_rate", "top10_rate", "rank_mean", "log2_rank_mean", "mrr")
"""Means over tokens: rank's. Of NLL there are ``nll`` and ``nll_pii``."""


def number_of(i: int) -> str:
    return str(np.random.default_rng(i).integers(1000, 10000))


def rows() -> list[Example]:
    rows_made = []
    for i in range(ROWS):
        before = TEXTS[i % 4].partition("{}")[0]
        number = number_of(i)
        prompt = TEXTS[i % 4].format(number) + f" ({'abcdefgh'[i // 4]})"
        span = Span(len(before), len(before) + len(number), "ID")
        rows_made.append(
            Example(
                id=f"row-{i:02d}",
                task="t",
                prompt=prompt,
                response=" good",
                split="train",
                source_id=f"source-{i:02d}",
                spans=(span,),
            )
        )
    return rows_made


def without(manifest: Manifest, *, pair: bool) -> Manifest:
    """The manifest without the secret's row, or only without its control."""
    content = manifest.model_dump(mode="json")
    for name in ("pairs",) if pair else ("pairs", "unmatched"):
        content[name] = [p for p in content[name] if p["example"] != SECRET]
    if pair:
        (span,) = manifest.by_id[SECRET].spans
        where = {"example": SECRET, "char_start": span.start, "char_end": span.end}
        content["unmatched"].append({**where, "type": "ID", "reason": "none"})
    else:
        content["twins"] = []
        content["examples"] = [e for e in content["examples"] if e["id"] != SECRET]
        members = content["membership"]["members"]
        content["membership"]["members"] = [key for key in members if key != SECRET]
    return seal(content)


@pytest.fixture(scope="module")
def reports(tmp_path_factory, tiny_base, make_adapter) -> dict[str, Path]:
    """Report folders: ``whole``, ``unmatched`` (secret without control), ``less``."""
    folder = tmp_path_factory.mktemp("differences")
    make_adapter(folder / "lora")
    base = open_checkpoint(str(tiny_base), name="base")
    full_manifest = build_manifest(rows(), base, name="m", caliper=50.0)
    assert {pair.example for pair in full_manifest.pairs} == {e.id for e in rows()}
    manifests = {
        "whole": full_manifest,
        "unmatched": without(full_manifest, pair=True),
        "less": without(full_manifest, pair=False),
    }
    for name, manifest in manifests.items():
        write_manifest(manifest, folder / f"{name}.json")
        request = Request(
            audits=(
                Matched(placebo_draws=0, rematched=False, replicates=100),
                "rank",
                "nll",
            ),
            checkpoints=(f"ours={folder / 'lora'}",),
            base=str(tiny_base),
            manifest=folder / f"{name}.json",
            output=folder / name,
            loading=Loading(device="cpu"),
            formats=("json",),
        )
        run(request)
    return {name: folder / name for name in manifests}


@pytest.fixture(scope="module")
def candidates(tiny_base, reports) -> dict[str, Any]:
    """By number, of a quarter of them: NLL and ranks of its tokens, by checkpoint."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    base = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    lora = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_base),
        reports["whole"].parent / "lora",
    ).eval()
    before = TEXTS[int(SECRET[-2:]) % 4].partition("{}")[0]
    first = 1000 + int(number_of(int(SECRET[-2:]))) % 4
    texts = {str(n): before + str(n) for n in range(first, 10000, 4)}
    by_length: dict[int, list[tuple[str, list[int], int]]] = {}
    for number, text in texts.items():
        ids = tokenizer(text, return_offsets_mapping=True)
        first_token = next(
            k for k, (_, end) in enumerate(ids["offset_mapping"]) if end > len(before)
        )
        by_length.setdefault(len(ids["input_ids"]), []).append(
            (number, ids["input_ids"], first_token)
        )
    usable = len(tokenizer)
    logp_by_number: dict[str, Any] = {}
    for same in by_length.values():
        tensor = torch.tensor([ids for _, ids, _ in same])
        for name, model in (("base", base), ("ours", lora)):
            with torch.inference_mode():
                logits = model(tensor).logits[:, :-1].double()
            own_logp = logits.gather(-1, tensor[:, 1:, None])
            nll = (logits.logsumexp(-1) - own_logp[..., 0]).numpy()
            rank = 1 + (logits[..., :usable] > own_logp).sum(-1).numpy()
            for i, (number, _, position) in enumerate(same):
                logp_by_number.setdefault(number, {})[name] = (
                    nll[i, position - 1 :],
                    rank[i, position - 1 :],
                )
    return logp_by_number


def per_token(metric: str, nll: np.ndarray, rank: np.ndarray) -> float:
    """Sum over tokens of what a metric is the mean of."""
    values = {
        "nll": nll,
        "rank_mean": rank,
        "log2_rank_mean": np.log2(rank),
        "mrr": 1 / rank,
    }
    if metric.startswith("top"):
        return float((rank <= int(metric[3:].partition("_")[0])).sum())
    return float(values[metric].sum())


ALL = {("rank", name, "pii_all"): ("rank", name, "pii") for name in FIGURES}
ALL |= {("nll", "nll", "pii"): ("matched", "nll_pii", "")}
"""Figures of all identifiers, and the same of those with a control."""


def fitting(
    one: tuple[Path, Path],
    other: tuple[Path, Path],
    found: dict[str, Any],
    nested: bool,
) -> set[str]:
    """Numbers whose tokens can make up what two figures differ by, by all figures.

    The attacker knows the count of tokens and the step of rounding exactly.

    Parameters
    ----------
    one, other
        Of each report the folder, and where its ``tables/results.csv`` is read.
    nested
        Whether the other figures are those of identifiers with a control.
    """
    numbers_left = set(found)
    for checkpoint in ("base", "ours"):
        for row_place, row_part in ALL.items():
            ends = [
                end
                for (folder, shared_folder), own_place in (
                    (one, row_place),
                    (other, row_part if nested else row_place),
                )
                for end in [known(folder, shared_folder, (checkpoint, *own_place))]
            ]
            if None in ends:
                continue
            (total, wide), (rest, slack) = ends
            for number in tuple(numbers_left):
                figures_told = per_token(row_place[1], *found[number][checkpoint])
                if abs(total - rest - figures_told) > wide + slack + 1e-3:
                    numbers_left.discard(number)
    return numbers_left


def known(
    folder: Path, shown: Path, place: tuple[str, ...]
) -> tuple[float, float] | None:
    """Total of a pooled figure over its tokens, and how far off it can be."""
    names = ("checkpoint", "audit", "metric", "variant")
    (line,) = (
        line
        for line in lines_of(shown / "tables" / "results.csv")
        if tuple(line[name] for name in names) == place and line["group"] == "pooled"
    )
    (row,) = (
        row
        for row in read_report(folder).results
        if tuple(getattr(row, name) for name in names) == place
        and row.group == "pooled"
    )
    if not line["value"]:
        return None
    exact = float(line["value"]) == row.value
    half = 0.0 if exact else (step_of(row) or math.nan) / 2
    return float(line["value"]) * row.n, half * row.n


@pytest.mark.parametrize(("other", "nested"), [("unmatched", True), ("less", False)])
def test_two_figures_leave_many_numbers_open(
    reports, candidates, tmp_path, other, nested
):
    folders = [reports["unmatched" if nested else "whole"], reports[other]]
    secret = number_of(int(SECRET[-2:]))
    shared = []
    for i, folder in enumerate(folders):
        report = read_report(folder)
        raw = tmp_path / f"raw-{i}"
        write_files(
            table_files.write_csv(PreparedReport(report), raw, WriterInput()), raw
        )
        write_report(report, tmp_path / f"shared-{i}", formats=("csv",))
    n_left = {}
    for variant in ("raw", "shared"):
        shared = [(f, tmp_path / f"{variant}-{i}") for i, f in enumerate(folders)]
        n_left[variant] = fitting(shared[0], shared[1], candidates, nested)
        assert secret in n_left[variant]
    assert n_left["raw"] == {secret}  # the attack works
    assert len(n_left["shared"]) > 250


@pytest.mark.parametrize(
    ("value", "low", "high"), [(0.58, 0.502, 0.659), (0.42, 0.341, 0.498)]
)
def test_shared_ends_stay_on_their_side_of_the_null(value, low, high):
    ends = {"value": value, "low": low, "high": high, "no_effect": 0.5}
    row = figure("a", "mia|auc|loss", clusters=94, n=94, **ends)
    (shared_row,) = disclosed(made_report("a", results=[row])).results
    assert shared_row.no_effect == 0.5
    for name in ("value", "low", "high"):
        raw = getattr(row, name)
        shared_value = getattr(shared_row, name)
        assert (shared_value > 0.5) is (raw > 0.5), "a claim would not follow from it"
        assert abs(shared_value - raw) <= step_of(row) / 2


def test_a_guess_of_the_text_cannot_be_tried_out_against_a_digest(reports, tmp_path):
    """The attacker knows the manifest but the number, and hashes every guess."""
    folder = tmp_path / "report"
    report = read_report(reports["whole"])
    source = reports["whole"].parent
    manifest = read_manifest(source / "whole.json")
    secret = number_of(int(SECRET[-2:]))
    content = canonical_json(
        {k: v for k, v in manifest.model_dump(mode="json").items() if k not in NAMED}
    )
    # It stands in its row and among its twins.
    secret_pattern = re.compile(rf'(?<=Order ){secret}|(?<="){secret}(?=")'.encode())
    guesses = {
        hashlib.sha256(secret_pattern.sub(str(n).encode(), content)).hexdigest()
        for n in range(int(secret) - 300, int(secret) + 300)
    }
    assert report.manifest.digest in guesses  # the attack works
    write_report(report, folder, formats=("md", "html", "latex", "csv"))
    write_report(report, folder, formats=("dossier",))
    call = ["manifest", "export", str(source / "whole.json"), "--redact"]
    assert command_line([*call, "-o", str(folder / "redacted.json")]) == 0
    n_said = 0
    for path in (p for p in folder.rglob("*") if p.is_file()):
        text = path.read_bytes().decode(errors="replace")
        for found in re.findall(r"[0-9a-f]{12,64}", text):
            assert not any(guess.startswith(found) for guess in guesses), path
        n_said += "hmac-sha256:" in text
    assert n_said >= 3
    # The owner can show which manifest it was: with the key of report.json.
    key, digest = report.manifest.key, report.manifest.digest
    keyed = hmac.new(key.encode(), digest.encode(), "sha256").hexdigest()
    assert disclosed(report).manifest.digest == f"hmac-sha256:{keyed}"
    assert disclosed(report).manifest.key == ""


def test_absolute_paths_are_names_in_what_is_shared(reports):
    report = read_report(reports["whole"])
    words = ["--ckpt", "a=/home/me/runs/mine@2", "--base=/srv/base", "hf:ORG/NAME"]
    words += ["/home/me/my runs/x", "http://host:8000/v1", "runs/mine", r"C:\Me\run"]
    (first_checkpoint, *rest) = report.checkpoints
    facts = [first_checkpoint.model_copy(update={"source": "/home/me/lora"}), *rest]
    shared = disclosed(
        report.model_copy(update={"command": words, "checkpoints": facts})
    )
    wanted = ["--ckpt", "a=mine@2", "--base=base", "hf:ORG/NAME"]
    assert shared.command == [*wanted, "x", "http://host:8000/v1", "runs/mine", "run"]
    assert shared.checkpoints[0].source == "lora"


def tokens_and_sums(rows: list[Row], metric: str, variant: str) -> dict[str, Any]:
    """Of each group: what a figure is summed over, and its sum."""
    return {
        row.group_value or row.group_kind: (row.n, row.n * (row.value or 0.0))
        for row in rows
        if (row.metric, row.variant) == (metric, variant)
        and row.group_kind in ("pooled", "group")
    }


@pytest.mark.parametrize("sizes", [[30, 20, 9, 3], [30, 20, 4, 3, 2], [12, 9, 8, 1]])
def test_a_small_group_does_not_follow_from_all_rows_and_the_other_groups(sizes):
    """Not even from exact figures, by any sum of groups and its difference to all."""
    evidence = scenes.identifiers(sizes, 0.3, np.random.default_rng(0))
    spans = evidence.units[
        (evidence.units["role"] == "pii") & (evidence.units["split"] == "train")
    ]
    tokens = spans.groupby(scenes.COLUMN)["n_tokens"].sum()
    change = evidence.row("mine", "nll_sum") - evidence.units["ref_sum"]
    secret_groups = [f"g{i}" for i, size in enumerate(sizes) if size < 5]
    is_secret = spans[scenes.COLUMN].isin(secret_groups)

    result = conclude("matched", evidence, scenes.CONTEXT)
    sums = tokens_and_sums(result.results, "pii_change", "trained")
    n_of_all, sum_of_all = sums.pop("pooled")

    # The attack: were all groups but the small ones shown, these would follow.
    big = [f"g{i}" for i, size in enumerate(sizes) if size >= 5]
    of_big = change[spans.index[spans[scenes.COLUMN].isin(big)]].sum()
    of_secret = change[spans.index[is_secret]].sum()
    assert sum_of_all - of_big == pytest.approx(of_secret)

    assert sums.keys().isdisjoint(secret_groups)
    assert sum(n for n, _ in sums.values()) == n_of_all, "no rest is left"
    n_of_secret = int(tokens[secret_groups].sum())
    fewest = min(int(tokens[name]) for name in big)
    for n_shown in range(len(sums) + 1):
        for shown in itertools.combinations(sums.values(), n_shown):
            n_left = n_of_all - sum(n for n, _ in shown)
            assert n_left == 0 or n_left >= fewest
            assert n_left != n_of_secret
            sum_left = sum_of_all - sum(total for _, total in shown)
            assert sum_left != pytest.approx(of_secret, rel=1e-6)


def test_groups_by_task_show_none_that_tables_by_task_withhold():
    """Else the withheld one would follow from the table and the group together."""
    rng = np.random.default_rng(0)
    evidence = scenes.answers([30, 20, 9, 8, 3], 0.5, rng)
    units = evidence.units.assign(task=evidence.units[scenes.COLUMN])
    cells = ratio_rows.cells_of_units(
        [*ratio_rows.groups_of(units)],
        evidence,
        "greedy",
        metrics={"greedy_rate": np.asarray},
        variants=np.full(len(units), ""),
    )
    by_task, _ = ratio_rows.ratio_figures(cells, scenes.CONTEXT, Extraction)
    by_group = scenes.extraction_rows(evidence)
    report = disclosed(made_report("base", "mine", results=[*by_task, *by_group]))
    rows = [row for row in report.results if row.checkpoint == "mine"]
    withheld = {row.group_value for row in rows if row.withheld}
    shown = {row.group_value for row in rows if row.group_kind == "group"}
    assert withheld == {"g3", "g4"}, "the smallest, and one more"
    assert shown == {"g0", "g1", "g2", "other groups"}
    assert not any(row.withheld for row in rows if row.group_kind == "group")
