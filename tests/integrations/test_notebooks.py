"""The notebooks of the docs run in a real kernel, and show what they say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_audit import demo
from spark_audit.data.examples import write_examples

nbformat = pytest.importorskip("nbformat", reason="nbformat reads notebooks")
nbclient = pytest.importorskip("nbclient", reason="nbclient runs notebooks")
pytest.importorskip("ipykernel", reason="a notebook needs a kernel of its own")
jupyter_client = pytest.importorskip("jupyter_client", reason="it starts the kernel")

DOCS = Path(__file__).parents[2] / "docs"

SECONDS_OF_A_CELL = 600
"""A cell that takes longer hangs."""

SMALLER = {
    "n_candidates=64": "n_candidates=16",
    "sa.audits.Matched()": "sa.audits.Matched(placebo_draws=10)",
}
"""Options of the tutorial, and those with which it takes a test less time."""

FACTS_OF_THE_TUTORIAL = """
print(json.dumps({
    "inputs": sum(row.training_input is not None for row in rows) / len(rows),
    "digests": [report.manifest.digest, manifest.digest],
    "audits": sorted({row.audit for row in report.results}),
    "memory": dict(zip(memory.checkpoint, memory.value)),
    "picture": (work / "exposure.png").stat().st_size,
}))
"""

FACTS_OF_UNLEARNING = """
import json
print(json.dumps({
    "steps": memory["step"].to_list(),
    "statuses": memory["status"].to_list(),
    "memory": memory[["low", "high"]].to_numpy().tolist(),
    "voided_by": sorted(set(report.to_frame()["voided_by"])),
}))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Iterator[Any]:
    """One kernel for all notebooks: each would import the same libraries.

    It reads no settings of the user, and leaves no history there.
    """
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        manager = jupyter_client.KernelManager(kernel_name="python3")
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def executed(
    page: str, folder: Path, kernel: Any, *, facts: str, smaller: dict[str, str]
) -> Any:
    """Run a notebook in a folder, with a last cell that prints facts as JSON."""
    notebook = nbformat.read(DOCS / f"{page}.ipynb", as_version=4)
    source = "".join(cell.source for cell in notebook.cells)
    for shown, other in smaller.items():
        assert source.count(shown) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(shown, other)
    # Nothing is left of the notebook before.
    start = f"%reset -f\n%cd -q {folder}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(start))
    notebook.cells.append(nbformat.v4.new_code_cell(facts))
    return run_in(kernel, notebook)


def run_in(kernel: Any, notebook: Any) -> Any:
    """Run the cells of a notebook in a kernel that goes on."""
    client = nbclient.NotebookClient(notebook, timeout=SECONDS_OF_A_CELL, km=kernel)
    try:
        return client.execute()
    finally:
        client.kc.stop_channels()


def outputs(notebook: Any) -> Iterator[Any]:
    """Yield what the cells of a notebook show."""
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def facts_of(notebook: Any) -> dict[str, Any]:
    """Return what the last cell printed."""
    (printed,) = notebook.cells[-1].outputs
    facts: dict[str, Any] = json.loads(printed.text)
    return facts


def printed_on(notebook: Any, stream: str) -> str:
    """Return all that a notebook printed on ``stdout`` or ``stderr``."""
    shown = [one for one in outputs(notebook) if one.output_type == "stream"]
    return "".join(one.text for one in shown if one.name == stream)


def last_outputs(notebook: Any) -> list[Any]:
    """Return the value of the last line of each cell that shows one."""
    shown = [one for one in outputs(notebook) if one.output_type == "execute_result"]
    return [one.data for one in shown]


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory) -> Path:
    """A folder with what the tutorial reads of a demo: rows and a base."""
    folder: Path = tmp_path_factory.mktemp("notebook")
    run = folder / "reports" / "demo-run"
    (run / "data").mkdir(parents=True)
    size = demo.Size(tasks=2, base_rows=40, train_rows=80, test_rows=60)
    background, audited = demo.make_data(0, size)
    write_examples(run / "data/rows.jsonl", audited)
    tokenizer = demo.make_tokenizer([example.text for example in background])
    demo.train_base(
        run / "runs/base",
        background,
        tokenizer,
        seed=0,
        progress=lambda *_: None,
    )
    return folder


def test_the_tutorial_goes_from_chat_rows_to_a_report(demo_folder, kernel):
    notebook = executed(
        "tutorial", demo_folder, kernel, facts=FACTS_OF_THE_TUTORIAL, smaller=SMALLER
    )

    facts = facts_of(notebook)
    assert facts["inputs"] == 1
    assert len({*facts["digests"]}) == 1
    assert facts["audits"] == ["canary", "matched", "mia"]
    assert facts["memory"].keys() == {"mine"}
    assert facts["memory"]["mine"] < 0
    assert facts["picture"] > 10_000

    # All but the run's folder have a table, the last one a picture.
    run, *tables, picture = last_outputs(notebook)
    assert "TrainingRun" in run["text/plain"]
    assert len(tables) == 6
    for table in tables:
        assert "<table" in table["text/html"]
    assert "image/png" in picture

    shown = [one for one in outputs(notebook) if one.output_type != "stream"]
    assert str(demo_folder) not in json.dumps(shown)
    assert str(demo_folder) not in printed_on(notebook, "stdout")


def test_progress_leaves_nothing_in_a_saved_notebook(kernel):
    cells = [
        "from spark_audit.messages import progress\n"
        "with progress() as show:\n"
        "    for stage in ('scoring', 'matching'):\n"
        "        for done in range(101):\n"
        "            show(stage, done, 100)",
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells]
    )
    run_in(kernel, notebook)
    (bar,) = outputs(notebook)
    assert bar.output_type == "display_data"
    assert bar.data == {"text/plain": "", "text/html": ""}


def test_gradient_ascent_takes_the_memory_away_that_training_gave(tmp_path, kernel):
    notebook = executed(
        "unlearning", tmp_path, kernel, facts=FACTS_OF_UNLEARNING, smaller={}
    )

    facts = facts_of(notebook)
    assert facts["steps"] == [0, 1, 2, 3, 4]
    assert facts["statuses"][0] == "ok"
    assert facts["statuses"][-1] == "void"
    # It remembers at first; in the end it can no more be told from the base.
    (_, first_high), *_, (last_low, last_high) = facts["memory"]
    assert first_high < 0
    assert last_low < 0 < last_high
    # But it is broken, and looks and the audit say so.
    assert "broken_model" in facts["voided_by"]

    # What looks find is a message, and no failure of the cell.
    assert "step-0: " in printed_on(notebook, "stdout")
    assert "step-0: " not in printed_on(notebook, "stderr")
    assert any("image/png" in one.get("data", ()) for one in outputs(notebook))
