"""Families of mutants: what is changed, which commands read it, what may not pass.

A family makes one mutant from a generator and yields one command line after the other.
What it is sent back is the exit code; what was accepted though it is nonsense, it says
by raising ``Silent``. So it judges with its own eyes: no check is the project's.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.mutations import (
    LONG,
    Rng,
    changed,
    mutate,
    mutate_bytes,
    mutate_table,
    mutate_tensors,
    one,
    written,
)
from fuzz.scene import AUDIT, Scene, sealed

from spark_audit.report.figures.drawing import FIGURE_NEEDS
from spark_audit.report.figures.paper.drawing import PAPER_FIGURES

Commands = Generator[list[Any], int, None]
Family = Callable[[Scene, Rng, list[str]], Commands]

FAMILIES: dict[str, tuple[Family, int]] = {}
"""Name -> the family, and how many of 100 mutants are its own."""


class Silent(AssertionError):
    """Nonsense was accepted."""


def family(share: int) -> Callable[[Family], Family]:
    def register(made: Family) -> Family:
        FAMILIES[made.__name__.replace("_", "-")] = (made, share)
        return made

    return register


def finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 and True differ, 1 and 1.0 do not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# --- manifests ------------------------------------------------------------------------


@family(10)
def manifest(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A manifest that was changed without a new digest."""
    original = json.loads(scene.manifest.read_bytes())
    if rng.random() < 0.3:
        raw, mutation = mutate_bytes(scene.manifest.read_bytes(), rng)
    else:
        content, mutation = mutate(original, rng)
        raw = written(content)
    said.append(mutation)
    path = scene.file("m.json", raw)
    if (yield ["manifest", "verify", path]) == 0:
        free = ("name", "digest")
        content_read = json.loads(raw)
        content_before = dict(original)
        if not same(
            *(
                {k: v for k, v in m.items() if k not in free}
                for m in (content_read, content_before)
            )
        ):
            raise Silent("its content differs from what the digest is of")
    yield ["manifest", one(rng, ("show", "show")), path, *one(rng, ([], ["--json"]))]


@family(11)
def sealed_manifest(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A manifest of nonsense with a digest that fits."""
    content = json.loads(scene.manifest.read_bytes())
    if rng.random() < 0.5:
        content, mutation = mutate(content, rng)
    else:
        mutation = nonsense(content, rng)
    said.append(mutation)
    try:
        raw = sealed(content) if isinstance(content, dict) else written(content)
    except (ValueError, TypeError, RecursionError):
        raw = written(content)
    path = scene.file("m.json", raw.replace(f'"{LONG}"'.encode(), b"9" * 400))
    code = yield ["manifest", "show", path]
    if code == 0:
        if wrong := list(flaws(json.loads(raw))):
            raise Silent("; ".join(wrong[:3]))
        yield ["manifest", "export", path, "--redact", "-o", path.with_name("r.json")]
        yield ["@audit", path, one(rng, ("matched", "rank", "nll", "mia", "extract"))]


def nonsense(content: dict[str, Any], rng: Rng, at: int | None = None) -> str:
    """One thing that no build would write, put into a manifest: a random one, or one
    of all in turn."""
    rows = content["examples"]
    pairs = content["pairs"]
    row = one(rng, rows)
    pair = one(rng, pairs)
    spanned = one(rng, [r for r in rows if r["spans"]])
    span = one(rng, spanned["spans"])
    canary = one(rng, content["canaries"])
    long = len(row["prompt"] + row["response"])
    side = one(rng, ("pii", "control"))
    weird = one(rng, (-1e300, float("nan"), float("inf"), 1e30, -1.0, 0, "1", None))
    tokens = len(row["reference_unll"])
    ends = one(rng, ((0, 0), (5, 4), (-1, 3), (0, tokens + 1), (tokens, tokens + 9)))
    bounds = [list(ends), [0, 10**9], [-5, 5], [3, 3]]
    acts: dict[str, Callable[[], Any]] = {
        "id twice": lambda: rows.append({**row}),
        "id blank": lambda: row.update(id=" "),
        "id steers": lambda: row.update(id="\x1b[2J"),
        "cluster blank": lambda: row.update(cluster=""),
        "task steers": lambda: row.update(task="a/../../b\x07"),
        "source blank": lambda: row.update(source_id=""),
        "weight": lambda: pair.update(weight=weird),
        "distance": lambda: pair.update(distance=weird),
        "nll": lambda: pair[side].update(nll=weird),
        "side tokens": lambda: pair[side].update(
            token_start=ends[0], token_end=ends[1]
        ),
        "side characters": lambda: pair[side].update(char_start=5, char_end=5),
        "side end": lambda: pair[side].update(char_end=10**9),
        "overlap": lambda: pair.update(control={**pair["pii"], "nll": 1.0}),
        "lonely pair": lambda: pair.update(example="nobody"),
        "pair twice": lambda: pairs.append({**pair}),
        "lonely miss": lambda: content["unmatched"].append(
            {
                "example": "nobody",
                "char_start": 0,
                "char_end": 1,
                "type": "NAME",
                "reason": "none",
            }
        ),
        "span empty": lambda: span.update(end=span["start"]),
        "span end": lambda: span.update(end=10**6),
        "span before": lambda: span.update(start=-3),
        "span twice": lambda: spanned["spans"].append({**span}),
        "span tokens": lambda: span.update(token_start=ends[0], token_end=ends[1]),
        "half tokens": lambda: span.update(token_end=None),
        "span type": lambda: span.update(type="\x1b[31mNAME"),
        "kept": lambda: row.update(kept=one(rng, bounds)),
        "response": lambda: row.update(
            response_token=one(rng, (-1, tokens + 5, 10**9))
        ),
        "unll": lambda: row["reference_unll"].__setitem__(
            tokens // 2, one(rng, (-7, 10**40, 10**15))
        ),
        "unll short": lambda: row["reference_unll"].pop(),
        "excluded": lambda: row["excluded"].append(list(ends)),
        "classes": lambda: row.update(classes=row["classes"][:-1]),
        "low": lambda: row.update(low=one(rng, ([-1], [tokens], [3, 3], [10**9]))),
        "template": lambda: row.update(template=[[5, long + 9]]),
        "candidate twice": lambda: canary["candidates"].append(
            canary["candidates"][-1] if canary["candidates"] else "x"
        ),
        "true index": lambda: canary.update(true_index=one(rng, (-1, 10**6))),
        "dose": lambda: canary.update(dose=-4),
        "canary twice": lambda: content["canaries"].append({**canary}),
        "context lonely": lambda: canary["contexts"].append(
            {"example": "nobody", "char_start": 0, "char_end": 3}
        ),
        "context end": lambda: canary["contexts"][0].update(char_end=10**7),
        "n_tokens": lambda: canary.update(n_tokens=one(rng, (-1, 0))),
        "member unknown": lambda: content["membership"]["members"].append("nobody"),
        "member twice": lambda: content["membership"]["members"].extend(
            [row["id"], row["id"]]
        ),
        "member both": lambda: [
            content["membership"][k].append(row["id"])
            for k in ("members", "non_members")
        ],
        "caliper": lambda: content["settings"].update(caliper=weird),
        "tau": lambda: content["settings"].update(tau=7.0),
        "n_candidates": lambda: content["settings"].update(n_candidates=-1),
        "buffer": lambda: content["settings"].update(buffer=-3),
        "vocabulary": lambda: content["reference"].update(vocab_size=-5),
        "hash": lambda: content["reference"].update(weights_sha256="x\x1b[0m"),
        "counts": lambda: content["counts"].update(pairs=-2),
        "balance": lambda: content["balance"][0].update(smd_before=weird),
    }
    name = one(rng, list(acts)) if at is None else [*acts][at % len(acts)]
    acts[name]()
    return name


def flaws(content: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a manifest, said plainly and independently."""
    rows = content["examples"]
    by_id = {row["id"]: row for row in rows}
    if len(by_id) < len(rows):
        yield "an id stands twice"

    def tokens(what: str, row: Any, start: Any, end: Any) -> Iterator[str]:
        if not 0 <= start < end <= len(row["reference_unll"]):
            yield f"{what} tokens {start}:{end}"

    def chars(what: str, row: Any, start: Any, end: Any) -> Iterator[str]:
        long = len(row["prompt"] + row["response"])
        if not 0 <= start < end or (long and end > long):
            yield f"{what} characters {start}:{end}"

    for row in rows:
        for name in ("id", "task", "source_id", "cluster"):
            if not row[name].strip() or not row[name].isprintable():
                yield name
        if any(u is not None and not 0 <= u < 10**10 for u in row["reference_unll"]):
            yield "unll"
        if len(row["classes"]) != len(row["reference_unll"]):
            yield "classes"
        if any(not 0 <= at < len(row["reference_unll"]) for at in row["low"]):
            yield "low"
        yield from tokens("kept", row, *row["kept"])
        for pair in row["excluded"]:
            yield from tokens("excluded", row, *pair)
        for pair in row["template"]:
            yield from chars("template", row, *pair)
        last = 0
        for span in sorted(row["spans"], key=lambda s: s["start"]):
            yield from chars("span", row, span["start"], span["end"])
            if span["start"] < last:
                yield "spans overlap"
            last = span["end"]
            if not span["type"].isprintable():
                yield "type"
            tokens_of_span = span["token_start"], span["token_end"]
            if (tokens_of_span[0] is None) != (tokens_of_span[1] is None):
                yield "half a token range"
            if tokens_of_span[0] is not None:
                yield from tokens("span", row, *tokens_of_span)
    for pair in content["pairs"]:
        if pair["example"] not in by_id:
            yield "a pair's example is missing"
            continue
        row = by_id[pair["example"]]
        if not 0 < pair["weight"] < 1e9 or not 0 <= pair["distance"] < 1e9:
            yield "weight or distance"
        for name in ("pii", "control"):
            side = pair[name]
            yield from tokens(name, row, side["token_start"], side["token_end"])
            yield from chars(name, row, side["char_start"], side["char_end"])
            if not 0 <= side["nll"] < 1e9:
                yield "nll"
        if (
            pair["pii"]["token_start"] < pair["control"]["token_end"]
            and pair["control"]["token_start"] < pair["pii"]["token_end"]
        ):
            yield "a control on its identifier"
    for miss in content["unmatched"]:
        if miss["example"] not in by_id:
            yield "an unmatched span's example is missing"
    parts_of_canaries = [(c["canary_id"], c["part"]) for c in content["canaries"]]
    if len(set(parts_of_canaries)) < len(parts_of_canaries):
        yield "a canary stands twice"
    for canary in content["canaries"]:
        if len(set(canary["candidates"])) < len(canary["candidates"]):
            yield "a candidate stands twice"
        if canary["true_index"] is not None and not (
            0 <= canary["true_index"] < len(canary["candidates"])
        ):
            yield "true_index"
        if canary["dose"] < 0 or (canary["n_tokens"] or 1) < 1:
            yield "dose or n_tokens"
        for context in canary["contexts"]:
            if context["example"] not in by_id:
                yield "a context's example is missing"
            else:
                row = by_id[context["example"]]
                yield from chars(
                    "context", row, context["char_start"], context["char_end"]
                )
    members = content["membership"]["members"]
    others = content["membership"]["non_members"]
    if len({*members, *others}) < len(members) + len(others):
        yield "a member stands twice"
    if not {*members, *others} <= set(by_id):
        yield "an unknown member"
    settings = content["settings"]
    if not 0 <= settings["caliper"] < 1e9 or not 0 <= settings["tau"] <= 1:
        yield "settings"
    if settings["n_candidates"] < 0 or settings["buffer"] < 0:
        yield "settings"
    if content["reference"]["vocab_size"] < 1 or min(content["counts"].values()) < 0:
        yield "counts"
    for record in content["balance"]:
        if any(isinstance(v, float) and abs(v) > 1e12 for v in record.values()):
            yield "balance"


# --- data -----------------------------------------------------------------------------


@family(11)
def data(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """Rows of the project's own format."""
    lines = scene.data.read_bytes().splitlines()
    if rng.random() < 0.25:
        raw, mutation = mutate_bytes(scene.data.read_bytes(), rng)
    else:
        line_index = int(rng.integers(len(lines)))
        row, mutation = mutate(json.loads(lines[line_index]), rng)
        lines[line_index] = written(row, line=True)
        raw = b"\n".join(lines) + b"\n"
        mutation = f"line {line_index + 1}: {mutation}"
    said.append(mutation)
    path = scene.file("rows.jsonl", raw)
    output = path.with_name("annotated.jsonl")
    if (yield ["data", "annotate", path, "-o", output]) == 0:
        # A byte order mark in front of a file is read over, as pandas does.
        text = raw.decode("utf-8-sig")
        rows_given = [json.loads(line) for line in text.split("\n") if line]
        rows_made = [
            json.loads(line) for line in output.read_text().split("\n") if line
        ]
        if len({row["id"] for row in rows_given}) < len(rows_given):
            raise Silent("an id stands twice")
        for before, after in zip(rows_given, rows_made, strict=True):
            names_kept = ("id", "task", "prompt", "response", "split")
            if any(before[k] != after[k] for k in names_kept):
                raise Silent("a row was changed")
            known_spans = [(s["start"], s["end"], s["type"]) for s in after["spans"]]
            for span in before.get("spans") or ():
                if (span["start"], span["end"], span["type"]) not in known_spans:
                    raise Silent("a span was lost")
            text = after["prompt"] + after["response"]
            if any(not 0 <= s < e <= len(text) for s, e, _ in known_spans):
                raise Silent("a span lies outside its text")
    if rng.random() < 0.3:
        yield ["data", "inject", path, "-o", path.with_name("more"), "--canaries", 1]


@family(6)
def csv(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """Somebody else's CSV, JSON or Parquet."""
    rows = [json.loads(line) for line in scene.data.read_bytes().splitlines()]
    file_kind = one(rng, ("csv", "csv", "csv", "json", "parquet"))
    if file_kind == "json":
        records, mutation = mutate(
            [{"sentence": r["prompt"], "label": "good"} for r in rows[:5]], rng
        )
        raw = written(records)
    elif file_kind == "parquet":
        table = pa.table(
            {"text": [r["prompt"] for r in rows], "label": ["good"] * len(rows)}
        )
        table, mutation = mutate_table(table, rng)
        path = scene.file("rows.parquet", b"")
        try:
            pq.write_table(table, path)
            raw = path.read_bytes()
        except Exception:  # what Arrow itself cannot write is no mutant
            raw = b"PAR1"
        if rng.random() < 0.3:
            raw, mutation = mutate_bytes(raw, rng)
    else:
        lines = ["text,label"]
        lines += [f'"{r["prompt"]}",good'.replace("\n", " ") for r in rows]
        if rng.random() < 0.5:
            raw, mutation = mutate_bytes("\n".join(lines).encode(), rng)
        else:
            line_index = int(rng.integers(len(lines)))
            new = str(changed("x", rng)).encode("utf-8", "surrogatepass")
            new = one(rng, (new, b'"', b",,,", b"", b'a,"b', b"\x00,\x00", b"a;b"))
            mutation = f"line {line_index + 1}: {new[:20]!r}"
            raw = b"\n".join(
                new if i == line_index else line.encode()
                for i, line in enumerate(lines)
            )
    said.append(f"{file_kind}: {mutation}")
    path = scene.file(f"rows.{file_kind}", raw)
    output = path.with_name("out.jsonl")
    command = ["data", "import", path, "--task", "t", "--split", "train", "-o", output]
    if (yield command) == 0:
        rows_made = [
            json.loads(line) for line in output.read_text().split("\n") if line
        ]
        for row in rows_made:
            if not (row["prompt"] + row["response"]).strip():
                raise Silent("a row without text")


# --- checkpoints ----------------------------------------------------------------------


def _checkpoint(
    folder: Path, names: tuple[str, ...], rng: Rng, said: list[str]
) -> bool:
    """Change one of the files; whether the folder can no longer be what it was."""
    name = one(rng, names)
    path = folder / name
    if name.endswith(".safetensors"):
        from safetensors.torch import load_file, save_file

        if rng.random() < 0.4:
            raw, mutation = mutate_bytes(path.read_bytes(), rng)
            path.write_bytes(raw)
            said.append(f"{name}: {mutation}")
            # A bit of a weight is another weight: nothing tells.
            return not mutation.startswith(("damage", "zeros"))
        try:
            state, mutation = mutate_tensors(load_file(path), rng)
            save_file(state, path)
        except Exception:
            state = {}
            mutation = "nothing"
        said.append(f"{name}: {mutation}")
        return mutation != "nothing"
    if rng.random() < 0.3:
        raw, mutation = mutate_bytes(path.read_bytes(), rng)
    else:
        content, mutation = mutate(json.loads(path.read_bytes()), rng)
        raw = written(content)
    path.write_bytes(raw)
    said.append(f"{name}: {mutation}")
    return False


@family(8)
def adapter(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A PEFT adapter from somebody else."""
    folder = scene.copy(scene.lora)
    weights = "adapter_model.safetensors"
    names = ("adapter_config.json", "adapter_config.json", weights)
    broken = _checkpoint(folder, names, rng, said)
    seen = yield ["inspect", folder, "--base", scene.base]
    if seen == 0 and (yield ["@open", folder, scene.base]) == 0 and broken:
        raise Silent("other weights were opened as an adapter")


@family(8)
def model(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A model's folder: configuration, tokenizer, weights."""
    folder = scene.copy(scene.base)
    names = (
        *("config.json", "config.json", "tokenizer_config.json", "tokenizer.json"),
        *("tokenizer.json", "special_tokens_map.json", "generation_config.json"),
        "model.safetensors",
    )
    special = folder / "special_tokens_map.json"
    if not special.exists():
        special.write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    broken = _checkpoint(folder, names, rng, said)
    seen = yield ["inspect", folder]
    if seen == 0 and (yield ["@open", folder, ""]) == 0 and broken:
        raise Silent("other weights were opened as a model")


@family(7)
def run(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """The folder of a run of spark-train."""
    folder = scene.copy(scene.run)
    names = ("run.json", "run.json", "metrics.jsonl", "trained_on.json")
    name = one(rng, names)
    path = folder / name
    if name == "trained_on.json":
        path = next(folder.rglob(name))
    if rng.random() < 0.3:
        raw, mutation = mutate_bytes(path.read_bytes(), rng)
    elif name == "metrics.jsonl":
        lines = path.read_bytes().splitlines()
        line_index = int(rng.integers(len(lines)))
        row, mutation = mutate(json.loads(lines[line_index]), rng)
        lines[line_index] = written(row, line=True)
        raw = b"\n".join(lines)
    else:
        content, mutation = mutate(json.loads(path.read_bytes()), rng)
        raw = written(content)
    path.write_bytes(raw)
    said.append(f"{name}: {mutation}")
    yield ["inspect", folder, "--base", scene.base]
    yield ["@tables", folder]
    if name == "run.json":
        yield ["@resume", folder]


# --- reports --------------------------------------------------------------------------


@family(10)
def report(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A report.json from somebody else."""
    folder = scene.copy(scene.report)
    path = folder / "report.json"
    content = json.loads(path.read_bytes())
    if rng.random() < 0.2:
        raw, mutation = mutate_bytes(path.read_bytes(), rng)
    else:
        section = one(rng, (None, None, "tables", "results"))
        if section is None:
            content, mutation = mutate(content, rng)
        else:
            content[section], mutation = mutate(content[section], rng)
            mutation = f"{section}: {mutation}"
        raw = written(content)
    said.append(mutation)
    path.write_bytes(raw)
    if (yield ["gate", folder, "--fail-if", "nll.nll.pii > 99", "--allow-missing"]) in (
        0,
        1,
    ):
        content_read = json.loads(raw)
        for row in [*content_read["results"], *content_read["contrasts"]]:
            gone = row.get("value") is None
            if gone != (row.get("status", "ok") == "not_estimable"):
                raise Silent("a value without a status")
            if not all(map(finite, row.values())):
                raise Silent("a figure that is no number")
    if rng.random() < 0.5:
        yield ["report", folder, "--format", one(rng, ("md", "csv", "latex"))]
    else:
        # One figure: a page draws all of them, in seconds.
        yield ["@draw", folder, one(rng, [*FIGURE_NEEDS, *PAPER_FIGURES])]


@family(7)
def evidence(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """Evidence in a report folder, which comparisons conclude from."""
    folder = scene.copy(scene.report)
    files = sorted((folder / "scores").glob("*.parquet"))
    path = one(rng, files)
    # One kind of evidence is enough: the rest would only take time.
    for other_file in files:
        if other_file != path:
            other_file.unlink()
    if rng.random() < 0.2:
        raw, mutation = mutate_bytes(path.read_bytes(), rng)
        path.write_bytes(raw)
    else:
        table, mutation = mutate_table(pq.read_table(path), rng)
        try:
            pq.write_table(table, path)
        except Exception:
            mutation += " (not written)"
    said.append(f"{path.name}: {mutation}")
    report_json = json.loads((folder / "report.json").read_bytes())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = report_json["evidence"].get(path.name, digest) != digest
    code = yield ["compare", folder, scene.report, "--baseline", "ours", "--json"]
    if code == 0 and changed:
        raise Silent("changed evidence was concluded from")


@family(5)
def store(scene: Scene, rng: Rng, said: list[str]) -> Commands:
    """A shard of scores, damaged or named anew after a change."""
    shutil.rmtree(scene.room, ignore_errors=True)
    folder = scene.room / "store"
    shutil.copytree(scene.report / "scores" / "store", folder)
    path = one(rng, sorted(folder.glob("*.parquet")))
    if rng.random() < 0.5:
        raw, mutation = mutate_bytes(path.read_bytes(), rng)
    else:
        full_table = pq.read_table(path)
        table, mutation = mutate_table(full_table, rng)
        try:
            pq.write_table(table, path)
            raw = path.read_bytes()
        except Exception:
            raw = b"PAR1"
            mutation = "nothing"
    path.unlink()
    name = path.name
    if rng.random() < 0.7:
        # As an attacker would: the name fits the bytes.
        name = f"{hashlib.sha256(raw).hexdigest()[:32]}.parquet"
    (folder / name).write_bytes(raw)
    said.append(mutation)
    yield ["@store", folder]


_ = AUDIT
