"""Mutants of JSON, bytes, CSV, tables and tensors, each drawn from one generator."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Rng = np.random.Generator
Path_ = tuple[Any, ...]

DEEP = "@@deep@@"
"""Stands for a nesting of lists that no writer would write."""
LONG = "@@long@@"
"""Stands for a number of 400 digits."""

STEERING = "\x1b]0;owned\x07\x1b[2J\u202e\x00\x9b1m"
TEXTS: tuple[Any, ...] = (
    "",
    " ",
    STEERING,
    "\ud800",
    "\u2028",
    "=1+1",
    "../../outside",
    "/etc/passwd",
    "a" * 70_000,
    "<img src=x onerror=alert(1)>",
    "$(touch owned)",
    "\ufeff",
    "NaN",
)
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**18,
    LONG,
    0.5,
    -0.0,
    1e30,
    -1e300,
    1e-300,
    float("nan"),
    float("inf"),
    -float("inf"),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [{}], {"a": 1}, DEEP, "x")


def one(rng: Rng, choices: Any) -> Any:
    """One of some things, whatever they are."""
    return choices[int(rng.integers(len(choices)))]


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """The path of every value inside nested JSON."""
    yield at
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from places(inner, (*at, key))


def get(value: Any, at: Path_) -> Any:
    """What stands at a path."""
    for key in at:
        value = value[key]
    return value


def put(value: Any, at: Path_, new: Any) -> Any:
    """The same with something else at a path; the given value is changed."""
    if not at:
        return new
    get(value, at[:-1])[at[-1]] = new
    return value


def a_place(value: Any, rng: Rng) -> Path_:
    """A path: first one of the kinds of places there are, then one of that kind.

    So a field that stands once is met as often as one of a thousand tokens.
    """
    kinds: dict[Path_, list[Path_]] = {}
    for at in places(value):
        kind = tuple("*" if isinstance(key, int) else key for key in at)
        kinds.setdefault(kind, []).append(at)
    return one(rng, one(rng, list(kinds.values())))


def changed(value: Any, rng: Rng) -> Any:
    """Something of the same kind that means something else, or of another kind."""
    like = rng.random() < 0.6
    if like and isinstance(value, bool):
        return not value
    if like and isinstance(value, int | float):
        near = [value + 1, value - 1, -value, value * 2, value / 2]
        return one(rng, (*near, *NUMBERS))
    if like and isinstance(value, list) and value:
        at = int(rng.integers(len(value)))
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    if like and isinstance(value, str):
        return one(rng, (value + "x", value[:-1], value.upper(), *TEXTS))
    # A copy: what one mutant changes in it, the next must not find.
    return copy.deepcopy(one(rng, (*OTHERS, *NUMBERS, *TEXTS)))


def mutate(value: Any, rng: Rng) -> tuple[Any, str]:
    """Nested JSON with one to three changes, and what they are."""
    value = json.loads(json.dumps(value))
    said = []
    for _ in range(1 + int(rng.random() < 0.3) + int(rng.random() < 0.1)):
        at = a_place(value, rng)
        here = get(value, at)
        parent = get(value, at[:-1]) if at else None
        kinds = ["change", "change", "change"]
        if at:
            kinds += ["remove", "copy"]
        if isinstance(here, dict):
            kinds += ["add", "rename"]
        if isinstance(here, list) and here:
            kinds += ["repeat", "cut", "shuffle"]
        kind = one(rng, kinds)
        if kind == "change":
            value = put(value, at, changed(here, rng))
        elif kind == "remove":
            del parent[at[-1]]
        elif kind == "copy":
            other = one(rng, list(parent) if isinstance(parent, dict) else range(9))
            if isinstance(parent, dict) or other < len(parent):
                parent[at[-1]] = json.loads(json.dumps(parent[other]))
        elif kind == "add":
            here[one(rng, ("unknown", STEERING, "alice@example.org", "", "\ud800"))] = (
                changed(None, rng)
            )
        elif kind == "rename" and here:
            key = one(rng, list(here))
            here[key + one(rng, ("x", STEERING))] = here.pop(key)
        elif kind == "repeat":
            here.append(json.loads(json.dumps(one(rng, here))))
        elif kind == "cut":
            del here[int(rng.integers(len(here))) :]
        elif kind == "shuffle":
            here.reverse()
        said.append(f"{kind} {'.'.join(map(str, at))!r}")
    return value, "; ".join(said)


def written(value: Any, *, line: bool = False) -> bytes:
    """JSON as bytes, with what Python's own writer would not write."""
    text = json.dumps(value, indent=None if line else 1)
    text = text.replace(f'"{DEEP}"', "[" * 60_000 + "]" * 60_000)
    return text.replace(f'"{LONG}"', "9" * 400).encode("utf-8", "surrogatepass")


def mutate_bytes(raw: bytes, rng: Rng) -> tuple[bytes, str]:
    """A file that was cut, damaged, or is another one altogether."""
    at = int(rng.integers(len(raw) + 1))
    some = rng.bytes(int(rng.integers(1, 9)))
    made: dict[str, Callable[[], bytes]] = {
        "cut": lambda: raw[:at],
        "empty": lambda: b"",
        "damage": lambda: raw[:at] + some + raw[at + len(some) :],
        "insert": lambda: raw[:at] + some + raw[at:],
        "mark": lambda: b"\xef\xbb\xbf" + raw,
        "wide": lambda: raw[:2000].decode("latin-1").encode("utf-16"),
        "zeros": lambda: bytes(len(raw)),
        "twice": lambda: raw + raw,
        "deep": lambda: b"[" * 100_000,
        "objects": lambda: b'{"a":' * 50_000,
        "NaN": lambda: b"NaN",
        "digits": lambda: b"9" * 5000,
        "null": lambda: b"null",
        "list": lambda: b"[1, 2]\n",
    }
    kind = one(rng, list(made))
    return made[kind](), f"{kind} at byte {at}"


def mutate_table(table: pa.Table, rng: Rng) -> tuple[pa.Table, str]:
    """A table of another shape, or with other values."""
    name = one(rng, table.column_names)
    at = table.column_names.index(name)
    column = table[name].combine_chunks()
    values = column.to_pylist()
    row = int(rng.integers(max(len(values), 1)))
    kind = one(
        rng,
        (
            "drop",
            "rename",
            "null",
            "nulls",
            "value",
            "value",
            "value",
            "type",
            "empty",
            "repeat",
            "extra",
            "nested",
            "halve",
        ),
    )
    said = f"{kind} {name!r} row {row}"
    if kind == "drop":
        return table.drop_columns([name]), said
    if kind == "rename":
        names = [*table.column_names]
        names[at] = one(rng, ("other", STEERING, "", names[at - 1]))
        return table.rename_columns(names), said
    if kind == "empty":
        return table.slice(0, 0), said
    if kind == "repeat":
        return pa.concat_tables([table, table]), said
    if kind == "halve":
        return table.slice(0, max(len(values) // 2, 1)), said
    if kind == "extra":
        return table.append_column(STEERING, pa.array([1] * len(values))), said
    if kind == "nested":
        new: Any = pa.array([[value] for value in values])
    elif kind == "type":
        new = pa.array([*map(str, values)])
    elif kind == "nulls":
        new = pa.nulls(len(values), column.type)
    else:
        chosen = None if kind == "null" else changed(values[row] if values else 0, rng)
        try:
            new = pa.array([*values[:row], chosen, *values[row + 1 :]], column.type)
        except Exception:  # whatever Arrow says of a value of another kind
            new = pa.nulls(len(values), column.type)
            said = f"nulls {name!r}"
    return table.set_column(at, name, new), said


def write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def mutate_tensors(state: dict[str, Any], rng: Rng) -> tuple[dict[str, Any], str]:
    """Weights with something missing, more, or other than they should be."""
    import torch

    state = dict(state)
    name = one(rng, sorted(state))
    tensor = state[name]
    kind = one(
        rng, ("drop", "rename", "nan", "inf", "shape", "dtype", "empty", "extra", "all")
    )
    if kind == "drop":
        del state[name]
    elif kind == "rename":
        state[name + one(rng, ("x", STEERING, ".weight"))] = state.pop(name)
    elif kind in ("nan", "inf"):
        tensor = tensor.clone()
        tensor.view(-1)[0] = float(kind)
        state[name] = tensor
    elif kind == "shape":
        state[name] = tensor.repeat(2, *[1] * (tensor.dim() - 1))
    elif kind == "dtype":
        state[name] = tensor.to(one(rng, (torch.int8, torch.bool, torch.complex64)))
    elif kind == "empty":
        state[name] = tensor[:0].clone()
    elif kind == "extra":
        state["more"] = torch.ones(2, 2)
    else:
        state = {}
    return state, f"{kind} {name!r}"
