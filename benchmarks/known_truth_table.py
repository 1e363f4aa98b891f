"""The lines of ``known_truth.py`` and the table of them."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from known_truth_scenarios import CLAIMS, FORMERLY, GUARDS, SCENARIOS, TITLES, Scenario
from scipy.stats import beta

Line = dict[str, Any]


def read(lines: Path) -> list[Line]:
    """The finished lines; one that an interrupt cut is left out."""
    found = []
    for text in lines.read_text("utf-8").splitlines() if lines.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "state" in line:  # `membership.py` writes none
            line["state"] = FORMERLY.get(line["state"], line["state"])
        found.append(line)
    return found


def append(lines: Path, line: Line) -> None:
    """A line in one piece, for several processes write the same file."""
    handle = os.open(lines, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


def limits(found: int, n: int) -> tuple[float, float]:
    """Exact one-sided 95% limits of a share, lower and upper."""
    low = beta.ppf(0.05, found, n - found + 1) if found else 0.0
    high = beta.ppf(0.95, found + 1, n - found) if found < n else 1.0
    return float(low), float(high)


def made(line: Line, what: str, lines: dict[Any, Line]) -> bool | None:
    """Whether a line makes a claim; None: the report holds no such figure."""
    if line["state"] == "refused":
        return None
    if what == "less memory":
        full = lines.get((line["seed"], TITLES["full"]), {})
        both = [one.get("memory", {}).get("pooled", [None])[0] for one in (line, full)]
        return None if None in both else both[0] > both[1]
    if match := re.fullmatch(r"memory, dose (\d+)", what):
        figures = {
            int(found[1]): row
            for group, row in line["memory"].items()
            if (found := re.match(r"dose:(\d+)", group))
        }
        row = figures.get(int(match[1]))
        return None if row is None or row[2] is None else row[2] < 0
    return any(claim["claim"] in CLAIMS[what] for claim in line["claims"])


def records(lines: Iterable[Line]) -> dict[str, list[dict[str, Any]]]:
    """``claims``, ``outcomes`` (states and exit codes) and ``guards``, as records."""
    lines = list(lines)
    return {
        "claims": _claims(lines),
        "outcomes": _outcomes(lines),
        "guards": _guards(lines),
    }


def _claims(lines: list[Line]) -> list[dict[str, Any]]:
    """How often each claim was made in each scenario, and by which audit."""
    by_key = {(line["seed"], line["scenario"]): line for line in lines}
    found = []
    for scenario, own in _by_scenario(lines):
        for what in dict.fromkeys([*CLAIMS, *scenario.truth]):
            said = [made(line, what, by_key) for line in own]
            n, count = len(said) - said.count(None), said.count(True)
            claims = [c for line in own for c in line["claims"]]
            kinds = CLAIMS.get(what, ())
            by = Counter(c["audit"] for c in claims if c["claim"] in kinds)
            alone = [
                any((c["alone"] or c["claim"]) in kinds for c in line["claims"])
                for line in own
            ]
            low, high = limits(count, n) if n else (math.nan, math.nan)
            found.append(
                {
                    "scenario": scenario.name,
                    "claim": what,
                    "true": scenario.truth.get(what),
                    "made": count,
                    "of": n,
                    "low": round(low, 3) if n else None,
                    "high": round(high, 3) if n else None,
                    "alone": sum(alone) if kinds else None,
                    "findings by audit": dict(by),
                }
            )
    return found


def _outcomes(lines: list[Line]) -> list[dict[str, Any]]:
    """How often each state was shown and ``gate`` exited with each code."""
    found = []
    for scenario, own in _by_scenario(lines):
        states = Counter(line["state"] for line in own)
        gates = Counter(str(line["gate"]) for line in own)
        wrong = [s for s in states if scenario.states and s not in scenario.states]
        right = str(scenario.gate)
        found.append(
            {
                "scenario": scenario.name,
                "states": dict(states),
                "right states": list(scenario.states),
                "states wrong": sum(states[s] for s in wrong),
                "gate": dict(gates),
                "right gate": scenario.gate,
                "gates wrong": 0
                if scenario.gate is None
                else sum(n for code, n in gates.items() if code != right),
                "of": len(own),
            }
        )
    return found


def _guards(lines: list[Line]) -> list[dict[str, Any]]:
    """Of each guard: how often it fails where it must, and where it must not.

    ``any`` counts a line once, whichever guards fail; reports that were refused and
    guards that may fail are left out.
    """
    found, total = [], Counter[str]()
    for name in GUARDS:
        due: dict[str, list[bool]] = defaultdict(list)
        false: Counter[str] = Counter()
        others = 0
        for line in lines:
            scenario = SCENARIOS[line["scenario"]]
            fails = name in line["guards"]
            if scenario.guard == name:
                due[scenario.name].append(fails)
            elif scenario.allowed != name and line["state"] != "refused":
                others += 1
                false[scenario.name] += fails
        found.append(_guard(name, due, false, others))
    for line in lines:
        scenario = SCENARIOS[line["scenario"]]
        known = {scenario.guard, scenario.allowed}
        total[scenario.name] += bool({*line["guards"]} - known)
    sound = sum(line["state"] != "refused" for line in lines)
    return [*found, _guard("any", {}, total, sound)]


def _guard(
    name: str, due: dict[str, list[bool]], false: Counter[str], others: int
) -> dict[str, Any]:
    alarms = sum(false.values())
    return {
        "guard": name,
        "fails where it must": {k: [sum(v), len(v)] for k, v in due.items()},
        "false alarms": alarms,
        "of": others,
        "high": round(limits(alarms, others)[1], 4) if others else None,
        "where": {k: n for k, n in false.items() if n},
    }


def _by_scenario(lines: Sequence[Line]) -> list[tuple[Scenario, list[Line]]]:
    parts = [
        (scenario, [line for line in lines if line["scenario"] == scenario.name])
        for scenario in SCENARIOS.values()
    ]
    return [(scenario, own) for scenario, own in parts if own]


def _truth(lines: Sequence[Line]) -> str:
    """Means of what was measured by plain torch, as cells of the table."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for key, value in line["truth"].items():
            found[key].append(value)
    means = {key: fmean(values) for key, values in found.items()}
    doses = [f"{means[k]:+.2f}" for k in means if re.fullmatch(r"A\d+", k)]
    kind = f"{means['K']:+.2f}" if "K" in means else "-"
    back = [f"{means[k]:.0%}" if k in means else "-" for k in ("back", "back held")]
    rows = f"{means['AUC']:.2f}" if "AUC" in means else "-"
    return f"{' / '.join(doses)} | {kind} | {' / '.join(back)} | {rows}"


def markdown(lines: Sequence[Line]) -> str:
    """The tables for readers."""
    found = records(lines)
    seeds = len({line["seed"] for line in lines})
    heads = ("memory", "dose 4", "dose 16", *tuple(CLAIMS)[1:])
    out = [
        f"{seeds} seeds. A cell says in how many a claim was made; **wrong** ones with "
        "the exact upper limit of the share of false claims, found ones with the lower "
        "limit; in brackets: neither true nor false by construction. A, K, back, AUC: "
        "means of what plain torch measures: change of identifiers' NLL per token "
        "against held-out ones by dose, that of held-out ones, how many of the trained "
        "and of the held-out ones greedy decoding gives, and the AUC of rows' change.",
        "",
        f"| scenario | {' | '.join(heads)} | A by dose | K | back | AUC |",
        "|---" * (len(heads) + 5) + "|",
    ]
    cells = {
        (r["scenario"], r["claim"].replace("memory, ", "")): r for r in found["claims"]
    }
    for scenario, own in _by_scenario(lines):
        row = [_cell(cells.get((scenario.name, head))) for head in heads]
        out.append(f"| {scenario.name} | {' | '.join(row)} | {_truth(own)} |")
    out += [*_outcome_lines(found["outcomes"]), *_guard_lines(found["guards"])]
    wrong = [r for r in found["claims"] if r["true"] is False and r["made"]]
    missed = [r for r in found["claims"] if r["true"] and r["made"] < r["of"]]
    absent = [r for r in found["claims"] if r["true"] and not r["of"]]
    for title, rows in (("False claims", wrong), ("True claims not made", missed)):
        out += [
            "",
            f"| {title} | claim | of seeds | by audit, findings |",
            "|---" * 4 + "|",
        ]
        for r in rows:
            count = r["made"] if r["true"] is False else r["of"] - r["made"]
            by = ", ".join(f"{k} {v}" for k, v in r["findings by audit"].items())
            out.append(f"| {r['scenario']} | {r['claim']} | {count}/{r['of']} | {by} |")
    if absent:
        names = sorted({f"{r['claim']} ({r['scenario']})" for r in absent})
        out += ["", f"Not in these reports: {', '.join(names)}."]
    return "\n".join(out) + "\n"


def _outcome_lines(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    out = ["", "| scenario | state | right | gate exits 1 | right |", "|---" * 5 + "|"]
    for r in outcomes:
        right = r["right states"]
        states = [
            f"**{name} {n}**" if right and name not in right else f"{name} {n}"
            for name, n in sorted(r["states"].items(), key=str)
        ]
        gate = f"{r['gate'].get('1', 0)}/{r['of']}"
        gate = f"**{gate}**" if r["gates wrong"] else gate
        code = "any" if r["right gate"] is None else str(r["right gate"])
        out.append(
            f"| {r['scenario']} | {', '.join(states)} | {' or '.join(right) or 'any'} "
            f"| {gate} | {code} |"
        )
    return out


def _guard_lines(guards: Sequence[dict[str, Any]]) -> list[str]:
    out = ["", "| guard | fails where it must | false alarms |", "|---" * 3 + "|"]
    for r in guards:
        due = [f"{k} {n}/{of}" for k, (n, of) in r["fails where it must"].items()]
        where = ", ".join(f"{k} {n}" for k, n in r["where"].items())
        share = f"{r['false alarms']}/{r['of']}"
        share += f", <= {r['high']:.1%}" if r["of"] else ""
        share += f" ({where})" if where else ""
        out.append(f"| {r['guard']} | {'; '.join(due) or '-'} | {share} |")
    return out


def _cell(record: dict[str, Any] | None) -> str:
    if record is None or not record["of"]:
        return "-"
    count = f"{record['made']}/{record['of']}"
    if record["true"] is None:
        return f"({count})"
    if record["true"]:
        return f"{count}, >= {record['low']:.0%}"
    bold = "**" if record["made"] else ""
    return f"{bold}{count}{bold}, <= {record['high']:.0%}"
