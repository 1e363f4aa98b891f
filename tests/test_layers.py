"""The house: no import runs up, and heavy libraries stay where they belong.

Imports are read with ``ast``, those inside functions and under ``TYPE_CHECKING`` too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; modules of one line never import each other.
FLOORS = {
    "F0": "errors memory",
    "F0 above errors": "interrupts",
    "F1": "registry results facts progress",
    "F1 above facts": "checksums locks",
    "F1 with files": "examples paper_values console runs workers",
    "F2": "table tokens sources stats pii sensitivity canaries",
    "F2 above canaries": "injection identifiers",
    "F3": "manifest checkpoints",
    "F4": "scoring spans ratios membership",
    "F4 above scoring": "sequences",
    "F5": "build audits",
    "F5 above audits": "plans replicates gate accumulate attachments figures",
    "F6": "reports",
    "F6 above reports": "beside",
    "F7": "pipeline compare",
    "F8": "demo",
    "F9 drawing": "terminal",
    "F9 commands": "commands",
    "F9": "cli",
    "top": "__main__",
}
FLOOR = {
    f"spark_audit.{name}": height
    for height, names in enumerate(FLOORS.values())
    for name in names.split()
} | {"spark_audit": len(FLOORS)}
TRAINABLE = FLOOR["spark_audit.sequences"]

# Folders that are no registry have an order of their own; in every other folder a
# file imports no sibling. A file that is not named here imports none either, but the
# folder's ``_private`` files, which stand below all others.
INNER = {
    "spark_audit.stats": {
        "bootstrap": 0,
        "assignment": 0,
        "intervals": 1,
        "matching": 2,
        "roc": 2,
        "roc_clusters": 3,
        "exposure": 2,
        "epsilon": 2,
        "extraction": 2,
        "power": 3,
        "accuracy": 3,
        "selectivity": 3,
        "balance": 3,
        "memory": 4,
    },
    "spark_audit.build": {
        "layout": 0,
        "covariates": 0,
        "overview": 0,
        "clusters": 1,
        "selection": 1,
        "records": 2,
        "tasks": 2,
    },
    "spark_audit.checkpoints": {
        "_offline": 0,
        "_files": 1,
        "_adapter_fields": 2,
        "_adapter_config": 3,
        "_bench": 3,
        "_models": 3,
        "_tokenizer": 2,
    },
    "spark_audit.reports": {"_latex_text": 0, "_latex_tables": 1},
    "spark_audit.scoring": {
        "answers": 0,
        "batching": 0,
        "head": 0,
        "store": 0,
        "engine": 1,
        "generate": 1,
        "prefixes": 2,
        "noise": 2,
    },
    "spark_train": {
        "losses": 0,
        "penalties": 0,
        "projection": 0,
        "lora": 0,
        "data": 0,
        "crew": 0,
        "settings": 0,
        "accuracy": 0,
        "scores": 1,
        "student": 1,
        "inspect_scores": 2,
        "loop": 2,
        "stream": 2,
        "folder": 3,
        "carried": 3,
        "importance": 3,
        "scored": 3,
        "learning": 3,
        "distillation": 4,
        "correction": 4,
        "methods": 5,
        "accounting": 0,
        "privacy": 5,
        "run": 6,
        "relearn": 6,
        "cli": 7,
        "__main__": 8,
    },
}

HEAVY = {"torch", "transformers", "peft", "accelerate", "safetensors"}
HEAVY_PLACES = (
    "spark_audit.checkpoints",
    "spark_audit.scoring",
    "spark_audit.demo",
    "spark_train",
)


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(*packages: str) -> dict[str, Path]:
    paths = [p for package in packages for p in (ROOT / package).rglob("*.py")]
    return {module_name(path): path for path in sorted(paths)}


OURS = modules("spark_audit", "spark_train")


def imports(source: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and module of every import, ``importlib.import_module("...")`` too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in known else node.module
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            name = node.args[0]
            if called == "import_module" and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def home(module: str) -> str:
    """The entry of ``FLOOR`` that a module belongs to."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        if (name := ".".join(parts[:length])) in FLOOR:
            return name
    if module in FLOOR:
        return module
    raise AssertionError(f"{module} has no floor yet: give it one in {__file__}")


def arrow_up(module: str, target: str) -> str | None:
    """Why ``module`` may not import ``target``; ``None`` if it may."""
    package = module.rpartition(".")[0]
    if within(module, "spark_train"):
        if within(target, "spark_audit"):
            ok = FLOOR[home(target)] <= TRAINABLE
            return None if ok else "spark_train stands on F0 to F4 of spark_audit"
        return inner_arrow(module, target, "spark_train")
    if within(target, "spark_train"):
        ok = within(module, "spark_audit.demo")
        return None if ok else "spark_audit never imports spark_train, the demo apart"
    here, there = home(module), home(target)
    if here != there:
        ok = FLOOR[there] < FLOOR[here]
        return None if ok else "runs up, or to a module of the same floor"
    return inner_arrow(module, target, package if module != here else here)


def inner_arrow(module: str, target: str, folder: str) -> str | None:
    # A folder's __init__ may name its files, and its files may import it.
    if module == folder or target == folder or module == target:
        return None
    order = INNER.get(folder, {})
    below = (name.removeprefix(f"{folder}.") for name in (module, target))
    mine, other = (name.partition(".")[0] for name in below)
    if mine == other:
        return inner_arrow(module, target, f"{folder}.{mine}")
    if other.startswith("_") and not mine.startswith("_"):
        return None
    if mine in order and other in order and order[other] < order[mine]:
        return None
    return f"siblings of {folder} do not import each other in this direction"


@pytest.mark.parametrize("module", list(OURS))
def test_no_import_runs_up(module: str) -> None:
    source = OURS[module].read_text(encoding="utf-8")
    bad = [
        f"{module}:{line} -> {target}: {why}"
        for line, target in imports(source, set(OURS))
        if within(target, "spark_audit") or within(target, "spark_train")
        if (why := arrow_up(module, target))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("module", list(OURS))
def test_heavy_libraries_stay_where_models_are(module: str) -> None:
    if any(within(module, place) for place in HEAVY_PLACES):
        return
    source = OURS[module].read_text(encoding="utf-8")
    bad = [
        f"{module}:{line} -> {target}"
        for line, target in imports(source, set(OURS))
        if target.partition(".")[0] in HEAVY
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("module", "target", "allowed"),
    [
        ("spark_audit.facts", "spark_audit.errors", True),
        ("spark_audit.errors", "spark_audit.facts", False),
        ("spark_audit.facts", "spark_audit.registry", False),
        ("spark_audit.tokens", "spark_audit.table", False),
        ("spark_audit.manifest", "spark_audit.checkpoints", False),
        ("spark_audit.stats.roc", "spark_audit.stats.intervals", True),
        ("spark_audit.stats.intervals", "spark_audit.stats.roc", False),
        ("spark_audit.stats.roc", "spark_audit.stats.matching", False),
        ("spark_audit.stats.unnamed", "spark_audit.stats.bootstrap", False),
        ("spark_audit.stats.power", "spark_audit.stats.duplicates", False),
        ("spark_audit.audits.rank", "spark_audit.audits.matched", False),
        ("spark_audit.audits.rank", "spark_audit.audits", True),
        ("spark_audit.audits.rank", "spark_audit.audits._part", True),
        ("spark_audit.audits._part", "spark_audit.audits.rank", False),
        ("spark_audit.audits.rank", "spark_audit.stats.roc", True),
        ("spark_audit.audits.rank", "spark_audit.build", False),
        ("spark_audit.pipeline", "spark_audit.cli", False),
        ("spark_audit.pipeline", "spark_audit", False),
        ("spark_audit.pipeline", "spark_train.loop", False),
        ("spark_audit.demo", "spark_train.loop", True),
        ("spark_audit.demo.models", "spark_train.loop", True),
        ("spark_audit.demo.models", "spark_audit.demo.text", False),
        ("spark_audit.plans", "spark_audit.demo.text", False),
        ("spark_train.loop", "spark_audit.tokens", True),
        ("spark_train.loop", "spark_audit.build", False),
        ("spark_train.loop", "spark_train.data", True),
        ("spark_train.data", "spark_train.loop", False),
        ("spark_train.methods.er", "spark_train.learning", True),
        ("spark_train.methods.er", "spark_train.methods", True),
        ("spark_train.methods.er", "spark_train.methods.spark", False),
        ("spark_train.learning", "spark_train.methods.er", False),
        ("spark_train.run", "spark_train.methods.er", True),
    ],
)
def test_the_rule_itself(module: str, target: str, allowed: bool) -> None:
    assert (arrow_up(module, target) is None) == allowed


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import spark_audit.cli
def f():
    from spark_audit import facts, nothing
    import importlib
    importlib.import_module("spark_audit.demo")
"""
    found = [target for _, target in imports(source, {"spark_audit.facts"})]
    assert sorted(found) == [
        "importlib",
        "spark_audit",
        "spark_audit.cli",
        "spark_audit.demo",
        "spark_audit.facts",
    ]


def test_a_module_without_a_floor_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no floor yet"):
        home("spark_audit.misc")


def test_audits_statistics_and_reports_run_without_torch() -> None:
    light = [m for m in OURS if not any(within(m, place) for place in HEAVY_PLACES)]
    light += [m for m in OURS if m == "spark_audit.scoring"]
    code = f"""
import importlib, sys
for name in {light!r}:
    importlib.import_module(name)
    heavy = {{"torch", "transformers", "peft"}} & set(sys.modules)
    assert not heavy, f"{{name}} imports {{sorted(heavy)}}"
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
