"""A model on the hub is the same folder on disk: seen on a mirror, no network."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from refusals import load_tokenizer, opened
from tiny_models import make_model

from spark_audit.checkpoints.specs import parse_specs
from spark_audit.errors import CheckpointError

COMMITS = {"main": "a" * 40, "v1.2": "b" * 40, "refs/pr/3": "b" * 40, "7": "b" * 40}


class Mirror(ThreadingHTTPServer):
    """What of the hub's API a snapshot is made by; ``folders``: commit -> files."""

    folders: dict[str, Path]
    asked: list[str]


class Answer(BaseHTTPRequestHandler):
    server: Mirror
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        self.folder, rest = self.server.folders, path.removeprefix("/api/models/")
        if "/revision/" in rest:
            commit = COMMITS.get(rest.partition("/revision/")[2])
            model_facts = {"id": "org/tiny", "sha": commit, "siblings": []}
            self.answer(json.dumps(model_facts).encode() if commit else None)
        elif "/tree/" in rest:
            folder = self.folder[rest.partition("/tree/")[2].strip("/")]
            files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
            listing = [
                {
                    "type": "file",
                    "path": p.relative_to(folder).as_posix(),
                    "size": p.stat().st_size,
                    "oid": hashlib.sha1(p.read_bytes()).hexdigest(),
                }
                for p in files
            ]
            self.answer(json.dumps(listing).encode())
        else:
            commit, _, name = path.partition("/resolve/")[2].partition("/")
            file = self.folder[COMMITS.get(commit, commit)] / name
            self.answer(file.read_bytes() if file.is_file() else None, commit)

    do_HEAD = do_GET

    def answer(self, body: bytes | None, commit: str = "") -> None:
        self.send_response(404 if body is None else 200)
        body = body or b"{}"
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def mirror(tiny_base, tmp_path, monkeypatch):
    """The hub, where ``org/tiny`` has two commits, and a cache of its own."""
    import huggingface_hub.constants as constants
    from transformers import AutoTokenizer

    old = tmp_path / "old"
    new = tmp_path / "new"
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.chat_template = "{{ messages[0].content }}"
    for folder, seed in ((old, 5), (new, 6)):
        make_model("llama", seed=seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text("not read")
    assert (old / "chat_template.jinja").is_file()
    server = Mirror(("127.0.0.1", 0), Answer)
    server.folders, server.asked = {"a" * 40: new, "b" * 40: old}, []
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    # What HF_ENDPOINT and HF_HOME set where the library is imported.
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_revision_is_the_same_folder_on_disk(mirror, tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    for source, folder in (("hf:org/tiny", "new"), ("hf:org/tiny@v1.2", "old")):
        fetched = opened(source)
        local = opened(tmp_path / folder)
        assert fetched.source == source
        for field in ("weights_sha256", "tokenizer_sha256", "model_id", "notes"):
            assert getattr(fetched, field) == getattr(local, field), field
        assert fetched.tokenizer.chat_template == local.tokenizer.chat_template
    # The checkpoint's own revision comes before that of all.
    other_revision = opened("hf:org/tiny@main", revision="v1.2")
    new = opened(tmp_path / "new")
    assert other_revision.weights_sha256 == new.weights_sha256
    assert not any(path.endswith("README.md") for path in mirror.asked)
    with pytest.raises(CheckpointError, match="^hf:org/tiny@nothing: "):
        opened("hf:org/tiny@nothing")
    # Without a network it is what was fetched before.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    n_asked = len(mirror.asked)
    again = opened("hf:org/tiny@v1.2")
    assert again.weights_sha256 != new.weights_sha256
    assert load_tokenizer("hf:org/tiny@v1.2").chat_template
    assert len(mirror.asked) == n_asked


def test_names_of_revisions_are_no_stages():
    sources = ("hf:org/tiny@7", "hf:org/tiny@refs/pr/3", "hf:org/tiny")
    specs = parse_specs(sources)
    assert [spec.name for spec in specs] == ["tiny-7", "tiny-refs-pr-3", "tiny"]
    assert [spec.paths[0] for spec in specs] == [*sources]
    assert all(spec.stage is None for spec in specs)


@pytest.mark.parametrize("name", ["x", "org/tiny@", "org/tiny@-x", "org/../x@v", "@v"])
def test_what_is_no_name_on_the_hub_is_refused(name):
    with pytest.raises(CheckpointError, match="hf:ORG/"):
        opened(f"hf:{name}")
