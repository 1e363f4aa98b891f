"""Mutants of every file that may come from others: no crash, no hang, no silent pass.

    SPARK_FUZZ=manifest:17 pytest tests/fuzz        one mutant, by its number
    SPARK_FUZZ=manifest:0-999 pytest tests/fuzz     a thousand of a family
    SPARK_FUZZ=all:5000-5999 pytest tests/fuzz      a thousand of each
    pytest tests/fuzz -m slow                       10,000 of all families

A mutant follows from its family's name and its number alone, as long as the mutations
and the small audit they are made of stay what they are. The short run takes the first
50: every family its share.
"""

import json
import os
import socket
import sys
import tempfile
import threading
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path

import fuzz.foreign  # noqa: F401
import numpy as np
import pytest
from clocks import Hung, limited
from fuzz.families import FAMILIES, Silent, flaws, nonsense
from fuzz.scene import Scene, make_scene, sealed

from spark_audit.cli.main import run as audit
from spark_audit.errors import SparkError
from spark_audit.manifest.file import read_manifest

CPU_SECONDS = 5.0
"""Of one command; of the process, so that a busy machine trips nothing."""
WALL_SECONDS = 300.0
SHORT, LONG = 0.5, 100
"""Times as many mutants as a family's share of a hundred: about 50, and 10,000."""


@pytest.fixture(scope="session")
def scene(tmp_path_factory, tiny_base, make_adapter) -> Scene:
    return make_scene(tmp_path_factory.mktemp("fuzz"), tiny_base, make_adapter)


def called(name: str, words: Sequence[str], scene: Scene) -> int:
    """What commands call below the command line, with its exit code."""
    try:
        ACTS[name](scene, *words)
    except SparkError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _audit(scene: Scene, path: str, name: str) -> None:
    """One audit of the scores of both checkpoints over a changed manifest."""
    from audited import chosen

    from spark_audit.scoring.table import Pass, TokenTable

    manifest = read_manifest(path)
    read = {
        name: {Pass(): TokenTable.read(scene.folder / f"{name}.parquet")}
        for name in ("base", "ours")
    }
    options = {"placebo_draws": 0, "rematched": False, "blind_permutations": 20}
    chosen(name, **options)[0](read, manifest, preset="paper")


def _draw(scene: Scene, folder: str, name: str) -> None:
    from spark_audit.report.figures.drawing import drawings
    from spark_audit.report.folder import read_report

    drawings(read_report(folder), only=[name])


def _open(scene: Scene, folder: str, base: str) -> None:
    from spark_audit.checkpoints.open import open_checkpoint

    open_checkpoint(folder, base=base or None, device="cpu")


def _tables(scene: Scene, folder: str) -> None:
    from spark_audit.checkpoints.run_record import read_run, trained_order

    trained_order(Path(folder))
    read_run(Path(folder))


def _resume(scene: Scene, folder: str) -> None:
    from spark_train.run_folder import Folder

    run = Folder(Path(folder))
    record = run.read()
    assert record is not None
    run.check(record, record)


def _store(scene: Scene, folder: str) -> None:
    import pyarrow.parquet as pq

    from spark_audit.scoring.store import Store
    from spark_audit.scoring.table import COLUMN_TYPES, Pass

    full_store = scene.report / "scores" / "store"
    store = Store(Path(folder))
    for shard in full_store.glob("*.parquet"):
        table = pq.read_table(shard)
        keys = table["key"].unique().to_pylist()
        names = set(table.column_names) - {"key", "position"}
        kind = next(k for k, layout in COLUMN_TYPES.items() if set(layout) == names)
        got = store.gather({key: key for key in keys}, scoring_pass=Pass(kind))
        assert set(got.columns) == set(COLUMN_TYPES[kind])
        for name, values in got.columns.items():
            if values.dtype != COLUMN_TYPES[kind][name]:
                raise Silent(f"{name} is {values.dtype}")
            if not np.isfinite(values[values != -np.inf]).all():
                raise Silent(f"{name} is no number")


def _served(scene: Scene, answer: str) -> None:
    """Ask a server that answers every request with the same bytes for scores."""
    from spark_audit.checkpoints import server

    raw = Path(answer).read_bytes()
    with (
        socket.create_server(("127.0.0.1", 0)) as line,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(server, "PAUSES", ())
        patch.setattr(server, "ANSWER_SECONDS", 2)
        patch.setattr(server, "FIRST_ANSWER_SECONDS", 2)

        def answers() -> None:
            with suppress(OSError):
                while True:
                    with line.accept()[0] as other, suppress(OSError):
                        other.settimeout(2)
                        other.recv(1 << 16)
                        other.sendall(raw)

        threading.Thread(target=answers, daemon=True).start()
        served = server.Server(f"http://127.0.0.1:{line.getsockname()[1]}/v1", "m")
        try:
            nll = served.nll([5, 6, 7])
            assert nll.shape == (2,)
            if not (np.isfinite(nll) & (nll > -1e-2)).all():
                raise Silent("scores that are none")
            served.reach()
        finally:
            line.shutdown(socket.SHUT_RDWR)


ACTS: dict[str, Callable[..., None]] = {
    "@audit": _audit,
    "@draw": _draw,
    "@open": _open,
    "@tables": _tables,
    "@resume": _resume,
    "@store": _store,
    "@served": _served,
}


def steering(text: str) -> str:
    """The first character of what was shown that would steer a terminal."""
    for char in text:
        if char not in "\n\r" and unicodedata.category(char) in ("Cc", "Cf", "Cs"):
            return f"U+{ord(char):04X}"
    return ""


def tried(
    family: str, number: int, scene: Scene, capfd: pytest.CaptureFixture[str]
) -> str:
    """What is wrong with one mutant; nothing, if all is well."""
    make, _ = FAMILIES[family]
    rng = np.random.default_rng([zlib.crc32(family.encode()), number])
    errors_said: list[str] = []
    words_shown: list[str] = []
    code: int | None = None
    commands = make(scene, rng, errors_said)
    try:
        while True:
            words = [str(word) for word in commands.send(code)]  # type: ignore[arg-type]
            words_shown = words[:2]
            capfd.readouterr()
            with limited(cpu=CPU_SECONDS, wall=WALL_SECONDS):
                if words[0] in ACTS:
                    code = called(words[0], words[1:], scene)
                else:
                    code = audit(words)
            output = "".join(capfd.readouterr())
            if code not in (0, 1, 2, 3, 4):
                raise AssertionError(f"exit {code}: {_where()}")
            if "Traceback" in output or "panicked" in output:
                raise AssertionError("a traceback")
            if char := steering(output):
                raise AssertionError(f"{char} was shown")
            if code > 1 and len(output) > 4000:
                raise AssertionError(f"an error of {len(output)} characters")
    except StopIteration:
        return ""
    except Hung:
        return f"{number}: hung in {words_shown} ({'; '.join(errors_said)[:300]})"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        failure = f"{type(error).__name__}: {str(error)[:300]}"
        if not isinstance(error, AssertionError):
            failure += f" at {_frame(error)}"
        return f"{number}: {failure} in {words_shown} ({'; '.join(errors_said)[:300]})"


def _frame(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if "spark_" in f.filename] or frames
    return f"{Path(mine[-1].filename).name}:{mine[-1].lineno}"


def _where() -> str:
    """What the log of a defect says of where it was."""
    logs = sorted(Path(tempfile.gettempdir()).glob("spark-audit-*.log"))
    if not logs:
        return "no log"
    lines = logs[-1].read_text().splitlines()
    for log in logs:
        log.unlink()
    mine = [line for line in lines if "/spark_" in line][-1:]
    return f"{lines[0]} at {[line.rpartition('/')[2] for line in mine or lines[-1:]]}"


def numbers(family: str, *, times: float) -> range:
    """Which mutants of a family are asked for."""
    numbers_asked = os.environ.get("SPARK_FUZZ", "")
    named, _, number_text = numbers_asked.partition(":")
    if not numbers_asked:
        return range(ceil(FAMILIES[family][1] * times))
    if named not in (family, "all"):
        return range(0)
    low, _, high = number_text.partition("-")
    return range(int(low), int(high or low) + 1)


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("number", range(50))
def test_a_digest_is_no_signature(number, scene):
    """Each kind of nonsense, sealed, is refused in a line or does no harm."""
    content = json.loads(scene.manifest.read_bytes())
    nonsense(content, np.random.default_rng(number), number)
    path = scene.file("m.json", sealed(content))
    try:
        read_manifest(path)
    except SparkError:
        return
    assert not [*flaws(content)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_mutants_are_read_rightly_or_refused_in_one_line(family, scene, capfd):
    failures = [tried(family, n, scene, capfd) for n in numbers(family, times=SHORT)]
    assert not [failure for failure in failures if failure]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_many_mutants_are_read_rightly_or_refused_in_one_line(family, scene, capfd):
    failures = [tried(family, n, scene, capfd) for n in numbers(family, times=LONG)]
    assert not [failure for failure in failures if failure]
