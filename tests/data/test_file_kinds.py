"""Files in forms that are not read are refused by what they are."""

import bz2
import lzma
import pickle
import zipfile

import pytest

from spark_audit.data.examples import data_files, read_examples
from spark_audit.data.importers import import_rows
from spark_audit.errors import InputError

ROW = '{"id": "1", "task": "t", "prompt": "Who?", "response": " I", "split": "train"}\n'


def sheet(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")


def archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.jsonl", ROW)


FORMS = {
    "sheet.xlsx": (sheet, "Excel", "save the sheet as CSV"),
    "renamed.csv": (sheet, "Excel", "save the sheet as CSV"),
    "old.xls": (
        lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512)),
        "old Excel",
        "save the sheet as CSV",
    ),
    "rows.zip": (archive, "zip", "unpack it"),
    "rows.jsonl": (archive, "zip", "unpack it"),
    "rows.bz2": (
        lambda path: path.write_bytes(bz2.compress(ROW.encode())),
        "bzip2",
        "unpack it",
    ),
    "rows.xz": (
        lambda path: path.write_bytes(lzma.compress(ROW.encode())),
        "xz",
        "unpack it",
    ),
    "rows.pkl": (
        lambda path: path.write_bytes(pickle.dumps([ROW])),
        "pickle",
        "convert it",
    ),
    "pointer.jsonl": (
        lambda path: path.write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        ),
        "pointer of Git LFS",
        "git lfs pull",
    ),
    "rows.pdf": (lambda path: path.write_bytes(b"%PDF-1.7\n"), "PDF", "convert it"),
}


@pytest.mark.parametrize("form", ["auto", "csv", "jsonl"])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_not_read_is_named_with_what_to_do(name, form, tmp_path):
    make, form_name, advice = FORMS[name]
    path = tmp_path / name
    make(path)
    with pytest.raises(InputError) as caught:
        import_rows(path, tmp_path / "out", task="t", format=form, split="train")
    assert form_name in caught.value.what
    assert advice in str(caught.value.fix)
    assert caught.value.where == str(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["rows.zip", "rows.pkl"])
def test_a_data_file_in_a_form_that_is_not_read_is_named(name, tmp_path):
    make, form_name, _ = FORMS[name]
    make(tmp_path / name)
    with pytest.raises(InputError, match=form_name):
        read_examples(tmp_path / name)


@pytest.mark.parametrize("ending", ["jsn", "ndjson", "jsonlines", "jsonl.gz"])
def test_a_folder_leaves_no_json_lines_out_in_silence(ending, tmp_path):
    (tmp_path / "one.jsonl").write_text(ROW)
    (tmp_path / f"two.{ending}").write_text(ROW)
    with pytest.raises(InputError) as caught:
        data_files([tmp_path])
    assert f"two.{ending}" in caught.value.what
    assert "two.jsonl" in str(caught.value.fix)


@pytest.mark.parametrize("ending", ["jsn", "xlsx", "zip", "tar.gz"])
def test_a_folder_to_import_leaves_no_split_out_in_silence(ending, tmp_path):
    (tmp_path / "train.jsonl").write_text(ROW)
    (tmp_path / f"test.{ending}").write_text(ROW)
    with pytest.raises(InputError, match=f"test.{ending}"):
        import_rows(tmp_path, tmp_path / "out", task="t")


def test_a_source_beside_what_was_made_of_it_is_no_other_data(tmp_path):
    (tmp_path / "train.jsonl").write_text(ROW)
    sheet(tmp_path / "train.xlsx")
    (tmp_path / "notes.txt").write_text("none")
    archive(tmp_path / "raw.zip")
    assert data_files([tmp_path]) == [tmp_path / "train.jsonl"]
    assert import_rows(tmp_path, tmp_path / "out", task="t") == {"train": 1}


def test_json_lines_of_any_ending_are_read_when_they_are_named(tmp_path):
    path = tmp_path / "rows.jsn"
    path.write_text(ROW)
    assert import_rows(path, tmp_path / "out", task="t") == {"train": 1}
    assert len(read_examples(*data_files([path]))) == 1
