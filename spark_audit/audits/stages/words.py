"""What the audit by stage and task says: from when to when, and what came again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from spark_audit.audits.claims import LEVEL
from spark_audit.audits.stages.cells import Found, State
from spark_audit.audits.wording import adjusted_p, figure, unseen
from spark_audit.results import Finding, Guard, Row, number

UNORDERED = (
    "which task each stage learned is not known: give --order, a task for each stage"
)
Told: TypeAlias = "Mapping[tuple[str, str, str, str], Row]"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _when(states: Mapping[int, State], place: int) -> str:
    """From when to when a task's identifiers were remembered, in words."""
    held = [stage for stage, state in states.items() if state == "remembered"]
    last = max(states)
    every = [stage for stage in states if held[0] <= stage <= held[-1]]
    if held[-1] == last and held == every:
        return (
            "from their own stage on" if held[0] == place else f"from stage {held[0]}"
        )
    if held == every and len(held) > 1:
        said = f"from stage {held[0]} to {held[-1]}"
    else:
        stages = "stage" if len(held) == 1 else "stages"
        said = f"at {stages} {_and([str(stage) for stage in held])}"
    if held[-1] == last:
        return said
    end = next(stage for stage in states if stage > held[-1])
    lost = [s for s, state in states.items() if s > held[-1] and state == "forgotten"]
    if lost:
        return f"{said}, forgotten from stage {lost[0]}"
    return f"{said}, not shown any more from stage {end}"


def remembered(name: str, found: Found, rows: Told) -> Finding:
    """The one sentence of a series: what is remembered from when to when."""
    cells = found.of(name)
    tested = [k for k in cells if found.states[k] != "not yet trained"]
    known = [key for key in tested if found.states[key] != "not estimable"]
    if not known:
        reasons = dict.fromkeys(c.own.difference.note for c in cells.values())
        reason = "; ".join(filter(None, reasons)) or "no identifier differs"
        said = f"{name}: memory by stage and task not tested: {reason}."
        return Finding(
            audit="stages", checkpoint=name, claim="not_tested", sentence=said
        )
    by_task: dict[str, dict[int, State]] = defaultdict(dict)
    for _, task, stage in tested:
        by_task[task][stage] = found.states[name, task, stage]
    whens: dict[str, list[str]] = defaultdict(list)
    for task, states in by_task.items():
        if "remembered" in states.values():
            place = cells[name, task, max(states)].place
            whens[_when(states, place)].append(task)
    tests = len(found.late)
    if not whens:
        row = rows[name, "memory", str(max(key[2] for key in known)), "pooled"]
        text = f"{name}: of no task memory of identifiers is shown after any stage"
        text += f"; after the last, of all {figure(row)} nats a token"
        text += unseen(row.mde, unit="nats", after=".")
        return Finding.on(row, "nothing_shown", text)
    told = [f"of {_and(tasks)} {when}" for when, tasks in whens.items()]
    shown = [key for key in known if found.states[key] == "remembered"]
    # The latest stage is what is left now; of its tasks the one remembered most.
    best = min(shown, key=lambda k: (-k[2], cells[k].own.difference.value or 0.0))
    row = rows[name, "memory", str(best[2]), f"task:{best[1]}"]
    p = found.late[best]
    text = (
        f"{name}: identifiers are remembered {'; '.join(told)}. After stage {best[2]}, "
        f"those of {best[1]} by {figure(row)} nats a token against never-trained ones "
        f"of that task (0 without memory, {adjusted_p(p, tests)}; exploratory)."
    )
    return Finding.on(row, "moved", text, p_adjusted=p)


def likelier(name: str, found: Found, rows: Told) -> Finding:
    """Whether a later stage made identifiers of an earlier task likelier again."""
    cells = found.of(name)
    steps = {key: p for key, p in found.steps.items() if key[0] == name}
    head = f"{name}: whether a later stage made identifiers likelier again"
    if not steps:
        ordered = any(cell.place for cell in cells.values())
        reason = "no task can be followed beyond its stage" if ordered else UNORDERED
        return Finding(
            audit="stages",
            checkpoint=name,
            claim="not_tested",
            sentence=f"{head}: not tested ({reason}).",
        )
    again = [key for key in steps if key in found.again]
    best = min(again or steps, key=lambda key: cells[key].step.difference.value or 0.0)
    row = rows[name, "step", str(best[2]), f"task:{best[1]}"]
    tested = adjusted_p(steps[best], len(found.steps))
    if not again:
        text = (
            f"{name}: no later stage is shown to have made identifiers of earlier "
            f"tasks likelier again; the most {figure(row)} nats a token against "
            f"never-trained ones ({best[1]} by stage {best[2]}; {tested})."
        )
        return Finding.on(row, "nothing_shown", text, p_adjusted=steps[best])
    others = [f"{task} by stage {stage}" for _, task, stage in again]
    null = f"beyond {number(row.null_high)}, which they were apart before"
    text = (
        f"{name}: later stages made identifiers of earlier tasks LIKELIER AGAIN: "
        f"{_and(others)}; most {best[1]} by {figure(row)} nats a token against "
        f"never-trained ones ({null if row.null_high else '0 if not'}; {tested}; "
        "exploratory). Replay of their rows does this too."
    )
    return Finding.on(row, "moved", text, p_adjusted=steps[best])


def guards_of(name: str, found: Found) -> list[Guard]:
    """The contrast where nothing can be remembered: before a task was trained on."""
    early = [k for k, c in found.of(name).items() if k[2] < c.place]
    known = [key for key in early if key in found.early]
    if not known:
        return []
    apart = sorted({key[1] for key in known if found.early[key] < LEVEL})
    detail = (
        f"before their tasks were trained on, identifiers of trained and never-trained "
        f"rows differ in {len(known)} figures by task and stage "
    )
    detail += f"for {_and(apart)}: nothing is said of these" if apart else "for no task"
    return [
        Guard(
            name="tasks not yet trained on",
            checkpoint=name,
            passed=None if apart else True,
            detail=detail,
        )
    ]
