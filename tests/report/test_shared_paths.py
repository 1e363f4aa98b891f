"""What shared commands, settings and sources tell of the paths that somebody typed."""

import time
from typing import Any

import pytest
from made_reports import made_report

from spark_audit.report.disclosure.shared import disclosed

OUTSIDE = [
    # Of Linux and macOS.
    "/home/anna/x",
    "//home/anna/x",
    "/home/anna lee/a,b;d e/x",
    "~/anna/x",
    "~anna/x",
    "../anna/x",
    "runs/../../anna/x",
    "./../anna/x",
    "$HOME/anna/x",
    "${HOME:-/home/anna}/anna/x",
    "$(pwd)/anna/x",
    # Of Windows.
    r"C:\Users\anna\x",
    r"C:\\Users\\anna\\x",
    "c:/Users/anna/x",
    "C://Users/anna/x",
    r"C:Users\anna\x",
    "C:Users/anna/x",
    r"\Users\anna\x",
    r"~\anna\x",
    r"..\anna\x",
    r"runs\..\..\anna\x",
    r"%USERPROFILE%\anna\x",
    r"$env:USERPROFILE\anna\x",
    r"\\server\anna\x",
    "//server/anna/x",
    r"\\?\C:\Users\anna\x",
    r"\\?\UNC\server\anna\x",
    r"\\.\C:\Users\anna\x",
    r"\??\C:\Users\anna\x",
    # As addresses.
    "file:/home/anna/x",
    "file:///home/anna/x",
    "file://localhost/home/anna/x",
    "FILE:///home/anna/x",
    "file:anna/x",
    "file:///C:/Users/anna/x",
    "file://C:/Users/anna/x",
    "file:/C:/Users/anna/x",
    r"file:C:\Users\anna\x",
    r"file:\\server\anna\x",
    "file://server/anna/x",
]
"""Spellings of a path that leaves the working directory and whose last name is x."""

BEFORE = [
    "",
    *"=:,;|([{<\"'`",
    "--ckpt=",
    "mine=",
    "mine:",
    "mine=-",
    "1,b=",
    " ",
]
BEFORE += ["https://host/v1,", "https://host/v1,b=", "https://host:80/v1:", "hf:A/B,"]
"""Text that a path may follow."""


def shared_word(word: str) -> str:
    """The word of a command, as it is shared."""
    (shown_word,) = disclosed(made_report("a", command=[word])).command
    return shown_word


def shared_option(value: str) -> Any:
    """The value of an option that names files, as it is shared."""
    report = made_report("a", settings={"mia.scores_file": value})
    return disclosed(report).settings["mia.scores_file"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_of_a_path_outside_only_its_last_name_is_shared(path):
    for before in BEFORE:
        word = shared_word(f"{before}{path}")
        assert word == f"{before}x", before
        assert shared_word(f"{before}{path}]") == f"{before}x]", before


@pytest.mark.parametrize("path", OUTSIDE)
def test_behind_a_name_of_one_letter_a_path_is_cut_too(path):
    """The name may go with it: it reads as a drive."""
    assert shared_word(f"a:{path}") in ("a:x", "x")


@pytest.mark.parametrize(
    "path", [path for path in OUTSIDE if path[0] in "/~\\C$%" or path[:2] == ".."]
)
def test_a_path_at_once_behind_a_short_option_is_cut_too(path):
    assert shared_word(f"-o{path}") == "-ox"


@pytest.mark.parametrize("scheme", ["git+file://", "sqlite:///", "x+FILE://host"])
def test_an_address_without_a_host_on_the_web_is_a_path(scheme):
    word = shared_word(f"{scheme}/home/anna/x")
    assert "anna" not in word
    assert word.endswith(":x")


@pytest.mark.parametrize(
    "address",
    [
        "redis://anna:secret@host:6379",
        "openai://anna@host",
        "hdfs://anna@host/runs/x",
        "https://anna:sec@ret@host/v1",
        "no answer of tcp://anna:secret@host",
    ],
)
def test_no_address_shows_its_user(address):
    word = shared_word(address)
    assert "anna" not in word
    assert "ret" not in word


@pytest.mark.parametrize(
    ("listed", "shared"),
    [
        ("/home/anna/x:/home/anna/y;/home/anna/z", "x:y;z"),
        (r"C:\anna\x;D:\anna\y", "x;y"),
        (r"[C:\anna\x,\\anna\b\y,~anna/z]", "[x,y,z]"),
        ("a=/home/anna/x,b=-/home/anna/y", "a=x,b=-y"),
        ("'https://host/v1','/home/anna/x'", "'https://host/v1','x'"),
        ("https://host/v1,https://anna:key@host/v2", "https://host/v1,https://host/v2"),
    ],
)
def test_each_path_of_a_list_is_cut(listed, shared):
    assert shared_word(listed) == shared


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/v1",
        "https://[::1]:8000/v1",
        "https://host/a/b(c),d/e=f",
        "https://web.archive.org/web/https://host/page",
        "hf:ORG/NAME",
        "ORG/NAME@2",
        "runs/mine",
        r"runs\mine",
        "./runs/mine",
        "a=runs/mine@2",
        "a:b=runs/mine",
        "could not read file: runs/mine",
        "Type a: yes/no, and/or 1/2 of b",
        "my-/mine",
    ],
)
def test_web_addresses_and_paths_inside_the_working_directory_stay(text):
    assert shared_word(text) == text


@pytest.mark.parametrize(
    ("value", "shared"),
    [
        ("loss=anna/x.csv", "loss=x.csv"),
        ("loss=-anna/x.csv", "loss=-x.csv"),
        ("loss:a=anna/x.csv#loss,rank=anna/y.csv", "loss:a=x.csv#loss,rank=y.csv"),
        (r"C:anna\x.csv", "x.csv"),
        (r"loss=C:anna\x.csv", "loss=x.csv"),
        (r"anna\x.csv", "x.csv"),
        ("file:anna/x.csv", "x.csv"),
    ],
)
def test_an_option_that_names_files_is_shared_without_any_folder(value, shared):
    assert shared_option(value) == shared


@pytest.mark.parametrize("piece", ["a/", "../", "a:", "C:", "~", "=,", "a ", "http://"])
def test_long_text_is_read_in_time(piece):
    start = time.process_time()
    shared_word(piece * 1000)
    shared_word(piece * 1000 + "\n")
    assert time.process_time() - start < 5
