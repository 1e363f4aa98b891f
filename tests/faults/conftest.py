"""A folder with all that commands read, and an interpreter that runs them."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disturbed import LINES, Commands, rows

from spark_audit.data.examples import Example, write_examples


@pytest.fixture(scope="session")
def commands(tmp_path_factory) -> Iterator[Commands]:
    """See :class:`Commands`."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    yield Commands(process, tmp_path_factory.mktemp("told"))
    process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def workshop(commands, tmp_path_factory, tiny_base, make_adapter) -> Path:
    """A folder with all that the commands read."""
    folder = tmp_path_factory.mktemp("workshop")
    shutil.copytree(tiny_base, folder / "base")
    make_adapter(folder / "lora", base=folder / "base")
    config = folder / "lora" / "adapter_config.json"
    told = json.loads(config.read_text()) | {"base_model_name_or_path": "base"}
    config.write_text(json.dumps(told))
    (folder / "data").mkdir()
    for task in ("yelp", "fomc"):
        write_examples(folder / "data" / f"{task}.jsonl", rows(task))
    plain = [
        Example(f"p-{i}", "p", "Text: food.", " news", "train", f"p-{i}")
        for i in range(4)
    ]
    write_examples(folder / "plain.jsonl", plain)
    (folder / "raw").mkdir()
    for split in ("train", "test"):
        lines = [{"text": f"The {split} rate {i}.", "label": "good"} for i in range(9)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "raw" / f"{split}.jsonl").write_text(text)
    for line in (
        LINES["build"].replace("built/", ""),
        LINES["audit"],
        LINES["audit"].replace("report", "other").replace("ours=lora", "two=lora"),
    ):
        ended = commands.run(folder, line)
        assert ended.code == 0, ended.err
    return folder


@pytest.fixture
def fresh(workshop, tmp_path) -> Callable[[str], Path]:
    """``fresh(line)``: a copy of the workshop without what the command makes."""
    numbers = itertools.count()

    def make(name: str) -> Path:
        folder = tmp_path / str(next(numbers)) / "work"
        shutil.copytree(workshop, folder)
        if name in ("audit", "all"):
            shutil.rmtree(folder / "report")
        return folder

    return make
