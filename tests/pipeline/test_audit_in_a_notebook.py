"""An audit whose class stands in a notebook: no package registers it.

Each program runs in a process of its own, since it makes the audit known in all of it.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from forks import python
from named import examples

import spark_audit as sa
from spark_audit.audits import CanaryRank, Matched, register
from spark_audit.errors import InputError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
(SURPRISE,) = re.findall(r"^```python\n(\"\"\"The NLL.*?)^```$", PAGE, re.M | re.S)
"""The worked example of an audit, as the page has it."""
(FALL,) = re.findall(r"^```python\n(import scipy.*?)^```$", PAGE, re.M | re.S)
"""The worked example of an attack."""

FALL_AUDIT = """
import json
import spark_audit as sa

report = sa.audit(
    {"mine": "mine"}, "m.json", base="base", audits=Fall, output="fall", jobs=1
)
(finding,) = (one for one in report.findings if one.audit == "fall")
(row,) = (one for one in report.results if one.checkpoint == "mine")
matrix = report.glance.matrix
number = [column.audit for column in matrix.columns].index("fall")
print(json.dumps({
    "checkpoint": finding.checkpoint,
    "claim": finding.claim,
    "mde": [finding.mde, row.mde],
    "at_most": [finding.at_most, row.at_most, row.low],
    "sentence": finding.sentence,
    "cell": matrix.rows[0].cells[number].effect,
    "head": matrix.columns[number].head,
}))
"""

ATTACK = '''
from dataclasses import replace
from spark_audit.results import Finding

@dataclass(frozen=True, kw_only=True)
class Attack(Surprise):
    """Claims memory of each checkpoint but the base."""

    name = "attack"
    strongest_claim = "memory"
    attacks_identifiers = True
    covers = ("nll_quantile", "clusters")
    words = {
        "audit.attack.attack": "surprise",
        "attack.memory": {"text": "knows them", "withdrawn": "is not shown"},
    }

    def conclude(self, evidence, context):
        rows = super().conclude(evidence, context).results
        findings = [
            Finding.on(row, "memory", "attack.memory", facts={"found": row}, p=0.001)
            for row in rows
            if row.checkpoint != "base"
        ]
        return AuditResult(results=rows, findings=findings)
'''

CARELESS = """
import json
import spark_audit as sa

class Careless(Attack):
    '''Claims memory of each checkpoint, whatever its test came to.'''

    def conclude(self, evidence, context):
        rows = super().conclude(evidence, context).results
        findings = [
            Finding.on(
                row,
                "memory",
                "attack.memory",
                facts={"found": row},
                p=0.001 if row.checkpoint == context.base else P,
                family=FAMILY,
            )
            for row in rows
        ]
        return AuditResult(results=rows, findings=findings)

report = sa.audit(
    {"mine": "mine"}, "m.json", base="base", audits=Careless, output=FAMILY, jobs=1
)
print(json.dumps({
    "states": {one.name: str(one.state) for one in report.states},
    "claims": {one.checkpoint: one.claim for one in report.findings},
    "sentences": {one.checkpoint: one.sentence for one in report.findings},
    "tests": report.settings["primary_tests"],
    "gate": {one.checkpoint: one.state for one in report.gate()},
    "line": report.glance.gate,
}))
"""

AUDIT = """
import json
import spark_audit as sa

def audited(*audits, output):
    return sa.audit(
        {"mine": "mine"}, "m.json", base="base", audits=audits, output=output, jobs=1
    )

early = audited("nll", "matched", output="early")
report = audited(Surprise(quantile=0.5), Attack, output="out")
first = dict(zip(report.to_frame()["checkpoint"], report.to_frame()["value"]))

@dataclass(frozen=True, kw_only=True)
class Surprise(Surprise):
    quantile: Annotated[float, "another default"] = 0.1

again = audited("nll", Surprise(), output="again")
rows = again.to_frame().query("audit == 'surprise'")
print(json.dumps({
    "audits": sorted({row.audit for row in report.results}),
    "states": [str(one.state) for one in report.states],
    "guards": [guard.detail for guard in report.guards],
    "files": report.files["scores"],
    "heads": [column.attack for column in report.glance.matrix.columns],
    "sentence": report.findings[0].sentence,
    "early": [tried.audit for tried in early.states[0].tried],
    "fell": bool(rows["value"].iloc[0] < first["base"]),
    "gate": [one.state for one in report.gate("attack.nll_quantile.value > 0")],
}))
"""

READ = """
import spark_audit as sa
from spark_audit.errors import InputError

try:
    sa.read_report("out")
except InputError as error:
    print(error)
sa.audits.register(Attack)
print([str(one.state) for one in sa.read_report("out").states])
print(sa.read_report("again").findings)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model, tiny_tokenizer) -> Path:
    """A folder with a base that has learned texts, a model like it, and a manifest."""
    folder: Path = tmp_path_factory.mktemp("notebook")
    model = make_model("llama")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for row in examples():
        ids = tiny_tokenizer(row.text, return_tensors="pt")["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for name, scale in (("base", 1.0), ("mine", 1.01)):
        with torch.no_grad():
            model.lm_head.weight.mul_(scale)
        model.save_pretrained(folder / name)
        tiny_tokenizer.save_pretrained(folder / name)

    base = sa.open_checkpoint(folder / "base", name="base", device="cpu")
    manifest = sa.build_manifest(examples(), base, name="m", caliper=2.0)
    sa.write_manifest(manifest, folder / "m.json")
    return folder


def printed(program: str, folder: Path) -> list[str]:
    """Lines that a program prints, without progress and warnings."""
    ended, said = python(["-c", program], root=ROOT, cwd=folder)
    assert ended == 0, said
    return said.splitlines()


def test_a_class_in_a_notebook_is_an_audit_as_ours_are(folder):
    facts = json.loads(printed(SURPRISE + ATTACK + AUDIT, folder)[-1])
    assert facts["audits"] == ["attack", "surprise"]
    assert facts["states"] == ["LEAKS"], facts["guards"]
    assert sorted(facts["files"])[:1] == ["scores/attack.parquet"]
    assert "scores/surprise.parquet" in facts["files"]
    assert "surprise" in facts["heads"]
    assert "knows them" in facts["sentence"]
    assert facts["gate"] == ["tripped", "tripped"]
    # An earlier report of this process did not run it, and has no column of it.
    assert "matched" in facts["early"]
    assert "attack" not in facts["early"]
    # A class that is defined again takes the place of the earlier one.
    assert facts["fell"]

    # Elsewhere, its claims have no words until it is known.
    refused, states, findings = printed(SURPRISE + ATTACK + READ, folder)[-3:]
    assert "attack" in refused
    assert "register" in refused
    assert states == "['LEAKS']"
    assert "attack" not in findings


@pytest.mark.parametrize(("family", "tests"), [("primary", 1), ("exploratory", 0)])
def test_an_audit_that_claims_memory_whatever_its_test_says_is_not_believed(
    folder, family, tests
):
    settings = f"FAMILY, P = {family!r}, 0.084"
    program = "\n".join([SURPRISE, ATTACK, settings, CARELESS])
    facts = json.loads(printed(program, folder)[-1])

    # The base was trained on nothing, however small its p is.
    assert facts["claims"] == {"base": "nothing_shown", "mine": "nothing_shown"}
    assert facts["states"] == {"mine": "NO LEAK FOUND"}
    assert "is not shown" in facts["sentences"]["base"]
    assert facts["tests"] == tests
    # The first screen says of the gate what the gate says.
    assert facts["gate"] == {"base": "left_out", "mine": "ok"}
    assert "mine" in facts["line"]
    assert "base" not in facts["line"]


def test_the_attack_of_the_page_states_what_it_could_have_missed(folder):
    facts = json.loads(printed("\n".join([SURPRISE, FALL, FALL_AUDIT]), folder)[-1])
    assert facts["checkpoint"] == "mine"
    assert facts["claim"] == "nothing_shown"
    assert facts["mde"][0] == facts["mde"][1] > 0
    at_most, at_most_of_row, low = facts["at_most"]
    # Of a single test, what could still be there is the end of its interval.
    assert at_most == at_most_of_row == pytest.approx(low)
    assert facts["cell"]
    assert facts["head"] == "per token"
    # Figures are rounded, and no record is printed.
    assert not re.search(r"Row|[.][0-9]{5}", facts["sentence"])


@pytest.mark.parametrize("name", ["", "Mia", "../x", "a.b", "all", "membership", "mia"])
def test_a_name_that_no_audit_can_have_is_refused(name):
    class Other(CanaryRank):
        pass

    Other.name = name
    with pytest.raises(InputError, match="Other"):
        register(Other)
    with pytest.raises(InputError, match="Other"):
        sa.audit("x", audits=Other())


def test_a_subclass_of_an_audit_of_ours_keeps_its_name():
    class Quick(Matched):
        pass

    register(Quick)
    assert sa.audits.about("matched") is Matched
