"""The house: no import runs up or in a circle, and heavy libraries stay with models.

Imports are read with ``ast``, those inside functions and under ``TYPE_CHECKING`` too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A file or folder imports from those before it, in its own line too, and from itself.
LAYERS = (
    "spoken_options errors argument_types arguments names",
    "sentences json_values cells_html",
    "stats",
    "cell_line files wrong_paths provenance messages clock options collector",
    "previous results terminal",
    "data",
    "checkpoints",
    "scoring",
    "manifest",
    "audits",
    "report",
    "planning",
    "pipeline",
    "integrations",
    "demo_rows demo_base demo_time demo",
    "cli __main__",
)
TRAIN_LAYERS = (
    "training_settings training_request training_rows losses processes trained_stage",
    "lora training_corpus",
    "adapter_folder student tensor_files",
    "loop",
    "stream",
    "token_scores",
    "scores_in_training scored_examples",
    "fine_tuning",
    "task_phase",
    "distilled_replay correction method",
    "training_methods privacy_accounting",
    "dpsgd frozen_noise",
    "privacy",
    "method_summaries request_settings",
    "run_record stage_keys",
    "stage_accuracy run_folder",
    "resumed_record first_phase",
    "relearn training_run",
    "training_calls",
    "kept_work cli __main__",
)
TRAINING_STANDS_ON = "manifest"

PATTERNS = {
    "spark_audit.audits.extract.string_facts": "parts of identifiers",
    "spark_audit.audits.unguessable": "parts of identifiers",
    "spark_audit.audits.identifier_texts": "forms of identifiers",
    "spark_audit.audits.identifiers": "forms of identifiers",
    "spark_audit.report.figures.text_room": "where names of checkpoints break",
    "spark_audit.report.figures.figure_files": "long numbers of drawings",
    "spark_audit.report.gate.rules": "rules that somebody typed",
    "spark_audit.report.writers.eval_records": "names of folders",
    "spark_audit.report.disclosure.tables": "lengths in a reason",
    "spark_audit.report.disclosure.paths": "folders of a path",
    "spark_audit.report.writers.latex_text": "what is escaped",
    "spark_audit.report.writers.markdown": "what is escaped",
    "spark_audit.results.report_checks": "names of files",
}
"""What looks for patterns behind the audits, and in what: never for a figure."""

TERMINAL_PLACES = (
    "spark_audit.terminal",
    "spark_audit.cli",
    "spark_audit.__main__",
    "spark_train.cli",
    "spark_train.__main__",
)

HEAVY = {"torch", "transformers", "peft", "accelerate", "safetensors"}
HEAVY_PLACES = (
    "spark_audit.checkpoints",
    "spark_audit.scoring",
    "spark_audit.demo",
    "spark_audit.demo_base",
    "spark_audit.demo_time",
    "spark_audit.integrations",
    "spark_train",
)


def places(package: str, layers: tuple[str, ...]) -> dict[str, int]:
    names = " ".join(layers).split()
    return {f"{package}.{name}": i for i, name in enumerate(names)}


AUDIT = places("spark_audit", LAYERS)
TRAIN = places("spark_train", TRAIN_LAYERS)


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(*packages: str) -> dict[str, Path]:
    paths = [p for package in packages for p in (ROOT / package).rglob("*.py")]
    return {module_name(path): path for path in sorted(paths)}


OURS = modules("spark_audit", "spark_train")


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and module of every import, ``importlib.import_module("...")`` too."""
    return tuple(_imports(path.read_text(encoding="utf-8")))


def _imports(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in OURS else node.module
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            name = node.args[0]
            if called == "import_module" and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def place_of(module: str) -> int:
    order = AUDIT if within(module, "spark_audit") else TRAIN
    home = ".".join(module.split(".")[:2])
    assert home in order, f"{module} has no layer yet: give it one in {__file__}"
    return order[home]


def arrow_up(module: str, target: str) -> str | None:
    """Why ``module`` may not import ``target``; ``None`` if it may."""
    train = within(module, "spark_train")
    audit = within(target, "spark_audit")
    if train and audit:
        most = AUDIT[f"spark_audit.{TRAINING_STANDS_ON}"]
        ok = target != "spark_audit" and place_of(target) <= most
        return None if ok else f"training stands on {TRAINING_STANDS_ON} and below"
    if not train and not audit:
        ok = module in ("spark_audit.demo", "spark_audit.demo_base")
        return None if ok else "spark_audit never imports spark_train, the demo apart"
    if target in ("spark_audit", "spark_train"):
        return "the package's public names are for its users"
    return None if place_of(target) <= place_of(module) else "runs up"


@pytest.mark.parametrize("module", [m for m in OURS if m.count(".")])
def test_no_import_runs_up(module):
    bad = [
        f"{module}:{line} -> {target}: {why}"
        for line, target in imports(OURS[module])
        if within(target, "spark_audit") or within(target, "spark_train")
        if (why := arrow_up(module, target))
    ]
    assert not bad, "\n".join(bad)


def test_no_imports_run_in_a_circle():
    arrows = {
        module: {
            target for _, target in imports(path) if target in OURS and target != module
        }
        for module, path in OURS.items()
    }
    try:
        tuple(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_folder_opens_with_its_names_alone():
    """An ``__init__`` holds a docstring and public names; one is a catalogue."""
    long = {
        module: count
        for module, path in OURS.items()
        if path.name == "__init__.py" and module != "spark_audit.audits"
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 40
    }
    assert not long, long


def test_nothing_is_found_by_magic():
    """Audits, formats and methods are classes and mappings that a reader can follow.

    The one stub is the list of imports that ``audits`` itself is loaded from.
    """
    folders = ("audits", "checkpoints", "pipeline", "report", "results", "scoring")
    magic = ("sys.modules[", "__signature__", "ast.parse", "inspect.getsource")
    for folder in folders:
        for path in (ROOT / "spark_audit" / folder).rglob("*.py*"):
            text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
            assert path.suffix != ".pyi" or path.parent.name == "audits", path
            assert not [word for word in magic if word in text], path


def test_no_figure_is_read_from_a_sentence():
    """Findings and rows carry their figures: what looks for patterns is named."""
    behind = ("audits", "results", "report", "pipeline", "cli")
    found = {
        module
        for module, path in OURS.items()
        if any(within(module, f"spark_audit.{folder}") for folder in behind)
        for _, target in imports(path)
        if target in ("re", "regex")
    }
    assert found == set(PATTERNS)


def test_the_terminal_is_for_command_lines():
    """Fields that are options, lines on stderr and clocks stand below, without it."""
    bad = [
        f"{module}:{line} -> {target}"
        for module, path in OURS.items()
        if not any(within(module, place) for place in TERMINAL_PLACES)
        for line, target in imports(path)
        if within(target, "spark_audit.terminal")
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("module", list(OURS))
def test_heavy_libraries_stay_where_models_are(module):
    if any(within(module, place) for place in HEAVY_PLACES):
        return
    bad = [
        f"{module}:{line} -> {target}"
        for line, target in imports(OURS[module])
        if target.partition(".")[0] in HEAVY
    ]
    assert not bad, "\n".join(bad)


def test_statistics_need_numpy_and_scipy_alone():
    """``stats`` is what other projects can take: nothing of ours but its errors."""
    allowed = {"numpy", "scipy", "lazy_loader", "spark_audit"}
    ours = ("spark_audit.stats", "spark_audit.errors")
    bad = [
        f"{module}:{line} -> {target}"
        for module, path in OURS.items()
        if within(module, "spark_audit.stats")
        for line, target in imports(path)
        if target.partition(".")[0] not in allowed | sys.stdlib_module_names
        or (within(target, "spark_audit") and not any(within(target, x) for x in ours))
    ]
    assert not bad, "\n".join(bad)


def test_audits_statistics_and_reports_run_without_torch():
    light = [m for m in OURS if not any(within(m, place) for place in HEAVY_PLACES)]
    light += ["spark_audit.scoring.score", "spark_audit.scoring.table"]
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
