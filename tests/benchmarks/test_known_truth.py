"""The audits are audited: two seeds of ``benchmarks/known_truth.py``, and its table."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_reports import said

UNGUESSABLE = "addresses and few|^names"
SOME = "untouched base|never saw|1, 4, 16$|^rows by heart|swapped"


@pytest.fixture
def known_truth(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("known_truth")
    for name in [name for name in sys.modules if name.startswith("known_truth")]:
        del sys.modules[name]


def made_line(seed: int, scenario: str, *claims: str, **more: Any) -> dict[str, Any]:
    told = [{"audit": "matched", "claim": claim, "alone": None} for claim in claims]
    truth = {"A1": 0.0, "A4": 0.0, "A16": 0.0, "K": 0.0, "AUC": 0.5}
    line = {"seed": seed, "scenario": scenario, "claims": told, "memory": {}}
    outcome = {"state": "NO LEAK FOUND", "gate": 0, "guards": []}
    return line | outcome | {"truth": truth} | more


def test_a_false_claim_and_a_missed_one_are_counted(known_truth):
    full = "full text, doses 1, 4, 16"
    dose = {"dose:4-15": [-0.5, -0.9, -0.1], "dose:16": [-0.5, -0.9, 0.1]}
    lines = [
        made_line(0, "untouched base", "memory"),
        made_line(1, "untouched base", "moved"),
        made_line(0, full, "verbatim", memory=dose),
        made_line(1, full, "nothing_shown"),
    ]
    counts = {
        (count.scenario, count.claim): count
        for count in importlib.import_module("known_truth_claim_counts").claim_counts(
            lines
        )
    }
    wrong = counts["untouched base", "memory"]
    assert (wrong.is_true, wrong.n_made, wrong.n_reports) == (False, 1, 2)
    assert wrong.is_false_claim
    assert wrong.n_findings == {"matched": 1}
    missed = counts[full, "memory"]
    assert (missed.n_made, missed.n_reports, missed.is_missed) == (1, 2, True)
    at_4, at_16 = (counts[full, f"memory, dose {dose}"] for dose in (4, 16))
    assert (at_4.n_made, at_4.n_reports) == (1, 1)
    assert (at_16.n_made, at_16.n_reports) == (0, 1)
    assert "**1/2**, <= 98%" in known_truth.markdown(lines)


def test_states_gates_and_false_alarms_are_counted(known_truth):
    swapped = "trained and held-out lists swapped"
    void = {"state": "NOT TESTED", "gate": 1, "guards": ["held_out_back"]}
    lines = [
        made_line(0, "weights with noise"),
        made_line(1, "weights with noise", **void),
        made_line(0, swapped, **void),
        made_line(1, swapped),
        made_line(0, "all candidates tied", guards=["broken_model"]),
        made_line(1, "all candidates tied", state="refused", gate=None),
    ]
    counts = importlib.import_module("known_truth_outcome_counts")
    outcomes = {count.scenario: count for count in counts.outcome_counts(lines)}
    for scenario in ("weights with noise", swapped):
        outcome = outcomes[scenario]
        assert outcome.states == {"NO LEAK FOUND": 1, "NOT TESTED": 1}
        assert outcome.n_wrong_states == outcome.n_wrong_codes == 1
        assert outcome.n_reports == 2

    guards = {count.guard: count for count in counts.guard_counts(lines)}
    held_out_back = guards["held_out_back"]
    assert held_out_back.required_failures == {swapped: (1, 2)}
    assert (held_out_back.n_alarms, held_out_back.n_reports) == (1, 3)
    assert guards["broken_model"].n_alarms == 0
    assert guards["any"].n_reports == 5
    assert guards["any"].alarms == {"weights with noise": 1}


def test_what_a_guard_voids_is_no_claim(known_truth):
    told = [
        said(audit, "x", claim, "told.", family="primary", p=0.001, status=status)
        for audit, claim, status in (
            ("matched", "memory", "invalid"),
            ("mia", "membership", "ok"),
        )
    ]
    without = dict.fromkeys(("results", "contrasts", "guards", "checkpoints"), ())
    report = SimpleNamespace(findings=told, tables={}, **without)
    audited = known_truth.Audited(report, frozenset())
    line = known_truth.summarise_checkpoint(audited, "x", name_suffix="")
    assert [finding["claim"] for finding in line["claims"]] == ["membership"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_claims_of_a_seed(seed, known_truth, tmp_path):
    out = tmp_path / "lines.jsonl"
    command = ["--seeds", f"{seed},", "--scenarios", SOME, "--size", "small"]
    command += ["--out", str(out)]
    assert known_truth.main(command) == 0
    lines = {line["scenario"]: line for line in known_truth.read(out)}
    untouched, foreign, full, heart, swapped = lines.values()
    # By plain torch: what was trained on is remembered, the more the oftener it stood.
    assert full["truth"]["A16"] < full["truth"]["A1"] < 0
    assert abs(foreign["truth"]["A16"]) < 0.3 < -full["truth"]["A16"]
    assert foreign["truth"]["K"] < -0.1
    assert {untouched["truth"][key] for key in ("A1", "A16", "K", "AUC")} == {0.0, 0.5}
    assert heart["truth"]["back"] > 0.3 > heart["truth"]["back held"]
    assert swapped["truth"]["back"] == heart["truth"]["back held"]
    for line in (untouched, foreign):
        claims = {claim["claim"] for claim in line["claims"]}
        assert not claims & {"verbatim", "memory", "membership", "betrays"}
    states = [line["state"] for line in (untouched, foreign, full, heart, swapped)]
    assert states == ["NOT TESTED", "NO LEAK FOUND", "LEAKS", "LEAKS", "NOT TESTED"]
    assert [line["gate"] for line in (untouched, foreign, heart, swapped)] == [
        1,
        0,
        1,
        1,
    ]
    # Only who was trained on other rows is asked whether these were the rows.
    asked = [line["asks"] for line in (untouched, foreign, full, heart, swapped)]
    assert asked == [False, True, False, False, False]
    before = out.read_bytes()
    assert known_truth.main(command) == 0
    assert out.read_bytes() == before, "what is finished is not done again"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_addresses_and_names_of_a_seed(seed, known_truth, tmp_path):
    """Held-out rows that were trained on are seen by whatever nobody can guess."""
    out = tmp_path / "lines.jsonl"
    command = ["--seeds", f"{seed},", "--scenarios", UNGUESSABLE, "--size", "small"]
    command += ["--out", str(out)]
    assert known_truth.main(command) == 0
    lines = known_truth.read(out)
    assert len(lines) == 5
    for line in lines:
        is_clean = line["scenario"].endswith("by heart")
        assert line["truth"]["back"] > 0.1, "trained identifiers come back"
        assert (line["truth"]["back held"] > 0.1) == (not is_clean)
        assert line["guards"] == ([] if is_clean else ["held_out_back"])
        assert line["state"] in (["LEAKS"] if is_clean else ["LEAKS", "NOT TESTED"])
        assert line["gate"] == 1, "no leak passes"
