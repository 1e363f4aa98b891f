"""Files that other tools write are read by place, and none out of its order.

The files of ``peers`` were made with these tools' own code from 60 made-up rows, all
with the loss of one model: LossAttack and ScoreAnalysisNode of PrivacyGuard 0.0.2;
MIAResult.save of LeakPro c47752f; Evaluator, LossMethod, ZlibMethod and ResultWriter of
Fast-MIA 0.3.0 (3eb9cbc); mia_loss, mia_zlib and save_logs of open-unlearning d3d7cf9.
``loss.csv`` is the loss by plain transformers.
"""

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits.mia.outside_scores import given_files, read_scores
from spark_audit.audits.mia.peer_rows import by_place, read_rows
from spark_audit.errors import InputError

PEERS = Path(__file__).parent / "peers"
AUDITS = (Path(__file__).parents[2] / "docs/audits/other-tools.md").read_text("utf-8")
ROWS = read_rows(PEERS / "rows.jsonl")
TEXTS = [json.loads(line) for line in (PEERS / "rows.jsonl").read_text().splitlines()]
LOSS = pd.read_csv(PEERS / "loss.csv", dtype={"id": str}).set_index("id")["loss"]
Move = Callable[[np.ndarray], np.ndarray]


def read(spec: str, rows: pd.DataFrame | None = ROWS) -> pd.Series:
    (score_file,) = given_files(f"peer={spec}")
    frame = read_scores(score_file, ["base", "mine"], rows)
    assert set(frame["checkpoint"]) == {"mine"}
    return frame.set_index("id")["score"]


@pytest.mark.parametrize(
    "file",
    [
        "privacyguard.json",
        "privacyguard.csv",
        "leakpro.json",
        "detailed_scores.csv#loss",
        "TOFU_EVAL.json#mia_loss",
    ],
)
def test_every_tool_gives_a_row_the_loss_that_it_has(file):
    scores = read(f"{PEERS / file}")
    assert len(scores) == len(LOSS) == 60
    np.testing.assert_allclose(scores, -LOSS[scores.index], rtol=1e-5)
    np.testing.assert_allclose(read(f"-{PEERS / file}"), -scores, rtol=1e-12)


@pytest.mark.parametrize(
    "file", ["detailed_scores.csv#zlib", "TOFU_EVAL.json#mia_zlib"]
)
def test_one_of_several_attacks_is_chosen(file):
    scores = read(f"{PEERS / file}")
    size = {row["id"]: len(zlib.compress(row["text"].encode())) for row in TEXTS}
    expected = [-LOSS[key] / size[key] for key in scores.index]
    # open-unlearning's text has lost its first token.
    np.testing.assert_allclose(scores, expected, rtol=0.2)
    assert np.corrcoef(scores, expected)[0, 1] > 0.95


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "tsv", "jsonl", "json"])
def test_plain_arrays_are_read(suffix, tmp_path):
    scores = -LOSS[ROWS["id"]].to_numpy()
    table = pd.DataFrame({"score": scores})
    path = tmp_path / f"a.{suffix}"
    write: dict[str, Callable[[], object]] = {
        "npz": lambda: np.savez(path, scores),
        "npy": lambda: np.save(path, scores),
        "parquet": lambda: table.to_parquet(path),
        "tsv": lambda: table.to_csv(path, sep="\t"),
        "jsonl": lambda: table.to_json(path, orient="records", lines=True),
        "json": lambda: path.write_text(json.dumps({"score": scores.tolist()})),
    }
    write[suffix]()
    scores_read = read(f"{path}")
    np.testing.assert_allclose(scores_read, -LOSS[scores_read.index], rtol=1e-9)


MOVES: dict[str, Move] = {
    "one further": lambda scores: np.roll(scores, 1),
    "turned round": lambda scores: scores[::-1],
    "non-members first": lambda scores: np.concatenate([scores[44:], scores[:44]]),
    "sorted": np.sort,
    "without the repeats, then others": lambda scores: np.concatenate(
        [scores[~ROWS["id"].duplicated()], scores[ROWS["id"].duplicated()]]
    ),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_scores_in_another_order_are_refused(move, tmp_path):
    np.save(tmp_path / "a.npy", move(-LOSS[ROWS["id"]].to_numpy()))
    with pytest.raises(InputError, match=r"a\.npy"):
        read(f"{tmp_path / 'a.npy'}")


def _refused(scores: np.ndarray, rows: pd.DataFrame) -> bool:
    try:
        by_place(pd.DataFrame({"score": scores}), rows, "x")
    except InputError:
        return True
    return False


def many_rows(rng: np.random.Generator, n: int) -> pd.DataFrame:
    """n rows of each side, 12 of them twice."""
    frames = []
    for side in (1, 0):
        keys = [f"{side}-{i}" for i in range(n)]
        order = rng.permutation([*keys, *keys[:12]])
        frames.append(pd.DataFrame({"id": order, "label": side}))
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize(("n", "values"), [(20, None), (20, 2), (200, 5)])
def test_an_order_within_the_sides_is_told_from_another(n, values):
    """Of 40: none in order is refused, and at most one in another order passes.

    Scores are exact, or of few values as those of attacks by votes.
    """
    passed = refused = 0
    for seed in range(40):
        rng = np.random.default_rng([n, seed])
        rows = many_rows(rng, n)
        score_by_id = pd.Series(rng.random(2 * n), index=rows["id"].unique())
        scores = score_by_id[rows["id"]].to_numpy() + rows["label"].to_numpy()
        if values:
            scores = np.floor(values * scores)
        refused += _refused(scores, rows)
        for side in (1, 0):
            positions = np.flatnonzero(rows["label"] == side)
            scores[positions] = scores[rng.permutation(positions)]
        passed += not _refused(scores, rows)
    assert refused == 0
    assert passed <= 1


def test_an_attack_that_draws_at_random_passes_and_a_late_gap_does_not():
    noisy = late = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows = many_rows(rng, 200)
        score_by_id = pd.Series(rng.normal(size=400), index=rows["id"].unique())
        scores = score_by_id[rows["id"]].to_numpy().copy()
        noisy += _refused(scores + rng.normal(0, 0.33, len(scores)), rows)
        # In each side's last quarter one row is left out, and one is added.
        for position in (160, 372):
            scores[position : position + 52] = np.append(
                scores[position + 1 : position + 52], 0.0
            )
        late += _refused(scores, rows)
    assert noisy <= 2
    assert late >= 36


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "detailed_scores.csv",
            "several attacks; write FILE#ATTACK with .* loss, zlib",
        ),
        ("TOFU_EVAL.json", "several attacks; write FILE#ATTACK .* mia_loss, mia_zlib"),
        ("TOFU_EVAL.json#mia_ref", "write FILE#ATTACK"),
        ("leakpro_counts.json", "cannot be read as a table"),
    ],
)
def test_what_holds_no_scores_of_one_attack_is_refused(file, message):
    with pytest.raises(InputError, match=message):
        read(f"{PEERS / file}")


def test_counts_labels_and_rows_must_fit(tmp_path):
    file = f"{PEERS / 'detailed_scores.csv'}#loss"
    with pytest.raises(InputError, match="84 .*83 "):
        read(file, ROWS[:-1])
    with pytest.raises(InputError, match="84 of 84"):
        read(file, ROWS.assign(label=1 - ROWS["label"]))
    with pytest.raises(InputError, match="--scores-rows"):
        read(file, None)
    for content in ("", "{", '{"id": "a"}\n', '{"id":"a","text":"x","label":1}\n'):
        (tmp_path / "rows.jsonl").write_text(content)
        with pytest.raises(InputError, match=r"rows\.jsonl: "):
            read_rows(tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match=r"none\.jsonl: "):
        read_rows(tmp_path / "none.jsonl")


def test_no_file_of_scores_is_unpickled(tmp_path):
    class Opened:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return Path(tmp_path / "opened").write_text, ("x",)

    held = np.array([Opened()], dtype=object)
    np.savez(tmp_path / "a.npz", score=held)
    np.save(tmp_path / "a.npy", held)
    for name in ("a.pt", "a.pkl"):
        (tmp_path / name).write_bytes((tmp_path / "a.npy").read_bytes())
        with pytest.raises(InputError, match=name):
            read(f"{tmp_path / name}")
    for name in ("a.npz", "a.npy"):
        with pytest.raises(InputError, match=name):
            read(f"{tmp_path / name}")
    assert not (tmp_path / "opened").exists()


def test_the_files_of_the_documentation_are_read():
    (block,) = re.findall(r"```\n([^`]*--scores-rows[^`]*)```", AUDITS)
    (text,) = re.findall(r"--scores-file '?([^\s']+)", block)
    for score_file in given_files(text):
        moved_file = score_file._replace(path=PEERS / score_file.path.name)
        scores = read_scores(moved_file, ["base", "mine"], ROWS).set_index("id")[
            "score"
        ]
        assert len(scores) == 60
