"""Read the tokenizer and the chat template that a training run used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints import untrusted
from spark_audit.checkpoints.tokenizer import read_tokenizer
from spark_audit.errors import CheckpointError, InputError
from spark_audit.files import SETTINGS_BYTES, read_regular

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def read_chat_template(
    source: str, *, tokenizer: str | None = None
) -> tuple[PreTrainedTokenizerFast, str | None]:
    """Return a tokenizer, and a template that replaces its own, if any.

    Parameters
    ----------
    source
        A checkpoint whose tokenizer has the template, or a file with a template. In the
        first case, the returned template is ``None``.
    tokenizer
        The checkpoint whose tokenizer belongs to a file; default: the file's folder.

    Raises
    ------
    InputError
        If the file holds no template, or has no tokenizer.
    CheckpointError
        If the tokenizer cannot be loaded. The error names its folder.
    """
    path = Path(source)
    if not path.is_file():
        if tokenizer is not None:
            problem = (
                "is for a file with a template, and --chat-template is a checkpoint"
            )
            raise InputError(problem, where="option --tokenizer", fix="leave it out")
        return read_only_tokenizer(source), None

    # A bad template is refused first, because the tokenizer takes seconds to read.
    template = _template_in(path)
    folder = path.parent
    if tokenizer is not None:
        folder = untrusted.locate(tokenizer)
    elif not (folder / "tokenizer.json").exists():
        problem = "no tokenizer lies beside the template"
        remedy = "give the checkpoint by --tokenizer"
        raise InputError(problem, where=str(path), fix=remedy)
    remedy = "give a checkpoint with a tokenizer.json that loads by --tokenizer"
    return _tokenizer_of(folder, remedy), template


def read_only_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a checkpoint, whose weights are not read.

    Raises
    ------
    InputError
        If the path does not exist.
    CheckpointError
        If the tokenizer cannot be loaded. The error names its folder.
    """
    remedy = "give a checkpoint whose folder holds a tokenizer.json that loads"
    return _tokenizer_of(untrusted.locate(source), remedy)


def _tokenizer_of(folder: Path, remedy: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder; an error names the folder and a remedy."""
    try:
        return read_tokenizer(folder).tokenizer
    except CheckpointError as error:
        # The advice of the tokenizer's reader (--base) does not apply here.
        raise CheckpointError(error.what, where=str(folder), fix=remedy) from error


def _template_in(path: Path) -> str:
    """Return the template of a file, as plain text or under its key in JSON."""
    if path.suffix == ".json":
        template = untrusted.read_json(path).get("chat_template")
        if not isinstance(template, str):
            remedy = "give a file with the template"
            raise InputError("holds no chat template", where=str(path), fix=remedy)
        return template

    try:
        content = read_regular(path, follow=True, most=SETTINGS_BYTES)
        return content.decode()
    except (OSError, UnicodeDecodeError):
        problem = "is no text, or cannot be read"
        raise InputError(problem, where=str(path)) from None
