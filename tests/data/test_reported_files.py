"""Files of data out of bug reports of other projects, each with its right answer."""

import json

import pytest
from shared_cases import CASES, ELSEWHERE, case

from spark_audit.data.examples import read_examples
from spark_audit.data.importers import import_rows
from spark_audit.errors import InputError

TEXTS = [f"The parcel number {i} came late on day {i}." for i in range(4)]
LABELS = ["good", "bad", "good", "bad"]
TRUTHS = ["false", "true", "false", "true"]
ALPACA = {
    "template": "### Instruction:\\n{instruction}\\n\\n### Input:\\n{input}"
    "\\n\\n### Response:",
    "columns": {"response": "output"},
}

READ = [
    ("D01-csv-pandas-index/train.csv", {}, LABELS),
    ("D04-alpaca-empty-input/train.jsonl", ALPACA, LABELS),
    ("D04-alpaca-empty-input/train.json", ALPACA, LABELS),
    ("D05-labels-float-bool/float-train.jsonl", {}, ["0.0", "1.0", "2.0", "3.0"]),
    ("D05-labels-float-bool/bool-train.jsonl", {}, TRUTHS),
    ("D09-json-wrapped/train.json", {}, LABELS),
    ("D09-json-wrapped/pretty-train.json", {}, LABELS),
    ("D09-json-wrapped/columns-train.json", {}, LABELS),
    ("D10-nul/train.jsonl", {}, LABELS),
    ("D10-nul/train.csv", {}, ["bad", "good"]),
    ("D11-blank-end/train.jsonl", {}, LABELS),
    ("D12-utf16-csv/train.csv", {"encoding": "utf-16"}, ["bad", "good"]),
    ("D12-utf16-csv/latin1-train.csv", {"encoding": "latin-1"}, ["bad", "good"]),
    ("D13-csv-pipe/train.csv", {}, ["bad", "good"]),
    ("D14-odd-ids/train.jsonl", {}, LABELS),
    ("D16-empty-response/train.jsonl", {"empty": "keep"}, ["", *LABELS[1:]]),
    ("D16-empty-response/train.jsonl", {"empty": "drop"}, LABELS[1:]),
    (
        "D20-question-answer/train.json",
        {"columns": {"prompt": "question", "response": "answer"}},
        ["In Leeds.", "Poems."],
    ),
    ("D22-parquet/bool-train.parquet", {}, TRUTHS[::-1]),
    ("D22-parquet/float-train.parquet", {"empty": "drop"}, ["0.0", "1.0", "1.0"]),
    ("D22-parquet/category-train.parquet", {}, LABELS),
    ("D22-parquet/view-train.parquet", {}, LABELS),
]
"""Files, how they are imported, and the responses of their rows."""

REFUSED = [
    ("D03-chat-rows/messages-train.jsonl", "`--chat-template CHECKPOINT`"),
    ("D03-chat-rows/sharegpt-train.jsonl", "`--chat-template CHECKPOINT`"),
    ("D22-parquet/messages-train.parquet", "`--chat-template CHECKPOINT`"),
    ("D12-utf16-csv/train.csv", "--encoding utf-16"),
    ("D12-utf16-csv/latin1-train.csv", "--encoding"),
    ("D14-odd-ids/float-train.jsonl", "field 'id' is not text"),
    ("D14-odd-ids/nbsp-train.jsonl", "field 'id' is blank or holds control"),
    ("D16-empty-response/train.jsonl", "`--empty drop` or `--empty keep`"),
    ("D20-question-answer/train.json", "`--map prompt=COLUMN`"),
    ("D22-parquet/float-train.parquet", "row 3: field 'label' is missing"),
]
"""Files that are refused as they are, and words of what is to be done."""


def imported(name, tmp_path, **options):
    """Return the rows of a case's file, as they are written."""
    output = tmp_path / "rows.jsonl"
    import_rows(case(name), output, task="t", split="train", **options)
    return read_examples(output)


@pytest.mark.parametrize(("name", "options", "responses"), READ)
def test_a_reported_file_gives_its_rows(name, options, responses, tmp_path):
    rows = imported(name, tmp_path, **options)
    assert [row.response.strip() for row in rows] == responses
    if responses == LABELS and "template" not in options and "nul" not in name:
        assert [row.prompt for row in rows] == TEXTS


@pytest.mark.parametrize(("name", "words"), REFUSED)
def test_a_reported_file_is_refused_with_what_to_do(name, words, tmp_path):
    with pytest.raises(InputError) as caught:
        imported(name, tmp_path)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("name", ["messages-train.jsonl", "sharegpt-train.jsonl"])
def test_reported_chat_rows_are_read_by_a_chat_template(name, tmp_path, tiny_tokenizer):
    from spark_audit.cli.main import run

    template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
        "{% endfor %}"
    )
    (tmp_path / "chat.jinja").write_text(template)
    tiny_tokenizer.save_pretrained(tmp_path / "tokenizer")
    output = tmp_path / "rows.jsonl"
    words = ["data", "import", str(case("D03-chat-rows") / name), "--task", "t"]
    words += ["--split", "train", "--chat-template", str(tmp_path / "chat.jinja")]
    words += ["--tokenizer", str(tmp_path / "tokenizer"), "-o", str(output)]
    assert run(words) == 0
    rows = read_examples(output)
    assert len(rows) == 4
    for row, text in zip(rows, TEXTS, strict=True):
        assert text in row.text


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("email-at-end", None),
        ("email-two-domains", None),
        ("order-at-start", "ORDER=ORD-[0-9]{7}"),
        ("phone-at-start", None),
    ],
)
def test_identifiers_at_the_edge_of_a_shared_wording_are_found(name, pattern, tmp_path):
    from spark_audit.cli.main import run

    output = tmp_path / "rows.jsonl"
    words = ["data", "annotate", str(case("A01-shared-edges") / f"{name}.jsonl")]
    words += ["-o", str(output), *(["--pattern", pattern] if pattern else [])]
    assert run(words) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [len(row["spans"]) for row in rows] == [1] * 8


def test_every_case_is_tried_or_belongs_elsewhere():
    case("")
    tried = {name.partition("/")[0] for name, *_ in [*READ, *REFUSED]}
    tried |= {"A01-shared-edges", *ELSEWHERE}
    # tests/checkpoints/test_reported_checkpoints.py
    tried |= {
        "L03-tied-head-copies-in-adapter",
        "L08-deepspeed-folder",
        "L09-zero_to_fp32-writes-a-folder",
        "L11-folders-of-other-trainers",
        "T01-two-bos",
    }
    assert {path.name for path in CASES.iterdir() if path.is_dir()} == tried
