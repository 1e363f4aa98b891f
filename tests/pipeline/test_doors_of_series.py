"""The doors of a run read its stages where these were scored, and add no pass."""

from typing import Any

from spark_audit.audits import Doors, Membership, Stages
from spark_audit.audits.doors.audit import NO_STAGES
from spark_audit.audits.of_series import UNORDERED
from spark_audit.pipeline.job import Job
from spark_audit.pipeline.run import run
from spark_audit.results.evidence import Evidence


def series(make_adapter: Any, folder: Any) -> str:
    for stage in ("0", "1"):
        make_adapter(folder / "series" / stage, seed=int(stage))
    return f"run={folder / 'series'}"


def test_no_pass_is_added_for_them(request_of, make_adapter, tmp_path):
    ckpt = (series(make_adapter, tmp_path),)
    planned = []
    for further in ((), (Doors(),)):
        audits = (Stages(), Membership(blind_permutations=0), *further)
        job = Job.of(request_of(audits=audits, checkpoints=ckpt))
        planned.append(
            {
                described.name: {
                    scoring_pass: set(items.store_keys())
                    for scoring_pass, items in job.items_by_pass(described).items()
                }
                for described in job.opening.described
            }
        )
    without, with_doors = planned
    assert with_doors == without
    assert {"run", "run@1", "run@2"} <= without.keys()


def test_stages_are_read_in_the_call_that_scored_them(
    request_of, make_adapter, tmp_path
):
    ckpt = (series(make_adapter, tmp_path),)
    reasons = []
    for audits in ((Doors(),), (Stages(), Doors())):
        run(request_of(audits=audits, checkpoints=ckpt, output=tmp_path / "r"))
        file = tmp_path / "r" / "scores" / "doors.parquet"
        evidence = Evidence.read(file)
        assert set(evidence.checkpoints) == {"base", "run"}
        reasons.append(evidence.facts["why_no_stages"]["run"])
    # Adapters have no record of what they learned first.
    assert reasons == [NO_STAGES, UNORDERED]
