"""Tables of reports that no audit makes: matching, and tokens of some examples."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_audit.errors import OutputError
from spark_audit.report import attachments
from spark_audit.report.attachments import (
    CASES,
    case_ids,
    cases,
    cases_file,
    read_cases,
    united,
    united_cases,
    write_cases,
)
from spark_audit.scoring.table import Pass, write_parquet


def places_of(case: Any, keys: list[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Token ``i`` has the characters ``2 i`` and ``2 i + 1``."""
    found = {}
    for key in keys:
        count = len(case.manifest.by_id[key].reference_unll)
        found[key] = (2 * np.arange(count), 2 * np.arange(count) + 2)
    return found


def test_examples_are_chosen_before_anything_is_scored(make_case):
    manifest = make_case(sources=30, tests=5).manifest
    keys = case_ids(manifest)
    assert len(keys) == CASES
    paired = {pair.example for pair in manifest.pairs}
    for key in keys:
        assert key in paired
        assert manifest.by_id[key].split == "train"
        assert manifest.by_id[key].canary_id is None
    # The order of the manifest is no matter.
    turned = manifest.model_copy(update={"examples": manifest.examples[::-1]})
    assert sorted(case_ids(turned)) == sorted(keys)


def test_records_hold_places_roles_and_every_checkpoints_nll(make_case):
    case = make_case(sources=30)
    keys = case_ids(case.manifest)
    tables = {
        "base": {Pass(): case.table(lambda key, nll: nll)},
        "ours": {Pass(): case.table(lambda key, nll: nll + 1)},
    }
    found = cases(case.manifest, places_of(case, keys), tables)
    assert list(dict.fromkeys(r["example"] for r in found)) == keys
    for record in found:
        example = case.manifest.by_id[record["example"]]
        at = record["position"]
        unll = example.reference_unll[at]
        assert (record["start"], record["end"]) == (2 * at, 2 * at + 2)
        if unll is None:
            assert record["nll/base"] is record["nll/ours"] is None
        else:
            assert record["nll/base"] == pytest.approx(unll / 1e6, abs=1e-3)
            assert record["nll/ours"] == pytest.approx(unll / 1e6 + 1, abs=1e-3)
    for key in keys:
        roles = {
            role: [
                r["position"] for r in found if (r["example"], r["role"]) == (key, role)
            ]
            for role in ("pii", "control")
        }
        example = case.manifest.by_id[key]
        pairs = [p for p in case.manifest.pairs if p.example == key]
        spans = [s for s in example.spans if s.token_start is not None]
        assert roles["pii"] == sorted(
            {at for s in spans for at in range(s.token_start, s.token_end)}
        )
        assert roles["control"] == sorted(
            {
                at
                for p in pairs
                for at in range(p.control.token_start, p.control.token_end)
            }
        )
        assert roles["pii"]
        assert roles["control"]


def test_reference_scores_stand_for_a_base_that_was_not_scored(make_case):
    case = make_case(sources=10)
    keys = case_ids(case.manifest)
    tables = {"ours": {Pass(): case.table(lambda key, nll: nll + 1)}}
    found = cases(case.manifest, places_of(case, keys), tables)
    known = [r for r in found if r["nll/base"] is not None]
    assert known
    for record in known:
        assert record["nll/ours"] == pytest.approx(record["nll/base"] + 1, abs=1e-3)
    assert cases(case.manifest, places_of(case, keys), {})[0].keys() == {
        "example", "task", "position", "start", "end", "role", "type",
    }  # fmt: skip


def test_of_a_long_text_the_tokens_around_an_identifier_are_shown(
    make_case, monkeypatch
):
    monkeypatch.setattr(attachments, "CASE_TOKENS", 12)
    monkeypatch.setattr(attachments, "CASE_LEAD", 2)
    case = make_case(sources=10)
    keys = case_ids(case.manifest)
    found = cases(case.manifest, places_of(case, keys), {})
    for key in keys:
        shown = [r["position"] for r in found if r["example"] == key]
        low, high = case.manifest.by_id[key].kept
        first = min(
            s.token_start for s in case.manifest.by_id[key].spans if s.token_start
        )
        assert shown == list(range(shown[0], shown[0] + 12))
        assert low <= shown[0] <= first < high
        assert shown[-1] < high


def test_reports_unite_with_each_checkpoint_once():
    def token(**nlls: float) -> dict[str, Any]:
        place = {"example": "e", "position": 1, "role": "pii"}
        return {**place, **{f"nll/{name}": nll for name, nll in nlls.items()}}

    one = {"balance": [{"covariate": "x"}]}
    mine, theirs = [token(base=1.0, er=2.0)], [token(base=1.0, er=5.0, spark=3.0)]
    same = {"base": "base", "er": "er", "spark": "spark"}
    assert united([one, {}, one]) == united([{}, one]) == one
    assert united_cases([(mine, same), (theirs, same)]) == [
        token(base=1.0, er=2.0, spark=3.0)
    ]
    renamed = {"base": "base", "er": "b/er", "spark": "spark"}
    (both,) = united_cases([(mine, same), (theirs, renamed)])
    assert (both["nll/b/er"], both["nll/er"]) == (5.0, 2.0)
    assert united([{}]) == {}
    assert united_cases([([], {})]) == []


def test_token_scores_are_kept_apart_and_for_the_owner(make_case, tmp_path):
    case = make_case(sources=10)
    tables = {"ours": {Pass(): case.table(lambda key, nll: nll + 1)}}
    places = places_of(case, case_ids(case.manifest))
    found = cases(case.manifest, places, tables)
    assert read_cases(tmp_path) == []
    write_cases(tmp_path, found)
    assert read_cases(tmp_path) == found
    assert cases_file(tmp_path).stat().st_mode & 0o077 == 0
    write_parquet(pa.table({"example": ["a"], "nll/ours": [1.0]}), cases_file(tmp_path))
    with pytest.raises(OutputError, match="is no table of token scores; audit again"):
        read_cases(tmp_path)
    write_cases(tmp_path, [])
    assert not cases_file(tmp_path).exists()
