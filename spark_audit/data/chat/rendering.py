"""Render chat templates with transformers in a separate process.

A template is a program by the author of the checkpoint. transformers' sandbox keeps it
from files and Python. Limits on time and memory stop a template that does not end.
"""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.errors import InputError
from spark_audit.json_values import JsonObject

NOT_VALID = "it is not valid Jinja"
"""Beginning of the failure text of a template that cannot be parsed."""
_END_OF_GENERATION = "endgeneration"
"""The tag of templates that mark what an assistant writes."""
START_SECONDS = 120
"""Time in which the process must have imported transformers."""
ROW_SECONDS = 10
"""Time in which all renderings of a row must be there."""
MEMORY_BYTES = 1 << 32
"""Address space of the process."""
MOST_BYTES = 1 << 26
"""Bytes of the longest answer that is read: all renderings of a row."""

# Isolated (-I): neither the working directory nor environment variables add code.
# Arguments: the folder of the libraries, MEMORY_BYTES, NOT_VALID. Each line of stdin is
# a JSON list of requests (see Renderer._process_request); each line of stdout is the
# list of their answers (see _Answer). The first line of stdout is "ready".
_RENDERING_PROGRAM = """
import json, resource, sys
sys.path.append(sys.argv[1])
from jinja2 import TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
print("ready", flush=True)

def lacks_memory(error):
    seen = []
    while error is not None and error not in seen:
        if isinstance(error, MemoryError):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False

for line in sys.stdin:
    answers = []
    for request in json.loads(line):
        try:
            messages = [
                {k: v for k, v in message.items() if v is not None}
                for message in request["messages"]
            ]
            tracked = request["track"]
            texts, ranges = render_jinja_template(
                conversations=[messages],
                tools=request["tools"],
                chat_template=request["template"],
                return_assistant_tokens_mask=tracked,
                add_generation_prompt=request["add_generation_prompt"],
                **request["variables"],
            )
            answers.append([texts[0], ranges[0] if tracked else []])
        except TemplateSyntaxError as error:
            answers.append(["", f"{sys.argv[3]}, line {error.lineno}"])
        except Exception as error:
            # Only words of the template are shown: an error may quote the row.
            message = str(error)
            is_of_template = message and message in request["template"]
            failure = message if is_of_template else type(error).__name__
            # Another error may follow from the lack of memory.
            if lacks_memory(error):
                failure = "it takes too much memory"
            answers.append(["", failure])
    print(json.dumps(answers), flush=True)
"""


@dataclass(frozen=True)
class RenderedConversation:
    """One rendering of a conversation.

    Attributes
    ----------
    text
        The text; empty if the template failed.
    generated
        Character ranges inside ``{% generation %}`` blocks.
    failure
        The reason of the failure; empty if there is none.
    """

    text: str
    generated: tuple[tuple[int, int], ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class RenderRequest:
    """A request to render a conversation or a beginning of one.

    Attributes
    ----------
    messages
        The first messages of the conversation, or all of them.
    tools, variables
        Further inputs of the template.
    add_generation_prompt
        Whether to write the header of an assistant's message at the end.
    """

    messages: Sequence[JsonObject]
    tools: Sequence[object] | None = None
    variables: JsonObject = field(default_factory=dict)
    add_generation_prompt: bool = False


_Answer: TypeAlias = tuple[str, list[tuple[int, int]] | str]
"""A text and the ranges of its generation blocks, or an empty text and the failure."""


class _RenderingProcess:
    """The process that renders, started once, when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    def ask(self, line: str, place: str) -> list[_Answer]:
        """Send a line of requests, and return the answers to it.

        Parameters
        ----------
        place
            Place of the row, for errors.

        Raises
        ------
        InputError
            If the answer does not come in time, or the process ends.
        """
        if self._process is None:
            self._process = _start_process()
            # The first line of the process reports that all imports are done.
            if self._read_line(START_SECONDS) is None:
                raise self._failure(place, "its process does not start")

        # A template may end the process at any moment, for example by its use of
        # memory.
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode() + b"\n")
        except OSError as error:
            raise self._failure(place, "it ended its process") from error

        answer_line = self._read_line(ROW_SECONDS)
        if answer_line is None and process.poll() is not None:
            raise self._failure(place, "it ended its process")
        if answer_line is None:
            reason = f"it takes more than {ROW_SECONDS} s, or writes too much"
            raise self._failure(place, reason)

        answers: list[_Answer] = json.loads(answer_line)
        return answers

    def end(self) -> None:
        """End the process; the next request starts a new one."""
        if self._process is None:
            return

        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def _failure(self, place: str, reason: str) -> InputError:
        """End the process, which may still work on the row, and return the error."""
        self.end()
        return InputError(
            f"the chat template fails: {reason}",
            where=place,
            fix="give the template that the rows were trained with",
        )

    def _read_line(self, seconds: float) -> bytes | None:
        """Return a line from the process; ``None`` if none arrives in time."""
        assert self._process is not None
        stream = self._process.stdout
        assert stream is not None

        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        n_bytes = 0
        while True:
            # A blocking read would wait for ever for an endless template.
            seconds_left = max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select([stream], [], [], seconds_left)
            piece = stream.read(1 << 16) if ready else b""

            # The time is over, the process has ended, or the line is too long.
            n_bytes += len(piece)
            if not piece or n_bytes > MOST_BYTES:
                return None

            pieces.append(piece)
            if piece.endswith(b"\n"):
                return b"".join(pieces)


def _start_process() -> subprocess.Popen[bytes]:
    """Start the rendering process, with the folder of transformers on its path."""
    package = find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    site_packages = str(Path(package.origin).parents[1])
    # stderr is hidden: the text of an error may quote a row.
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            _RENDERING_PROGRAM,
            site_packages,
            str(MEMORY_BYTES),
            NOT_VALID,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


# All rows share one process: it takes seconds to start.
_rendering_process = _RenderingProcess()


class Renderer:
    """A renderer of conversations by a tokenizer's chat template.

    Parameters
    ----------
    tokenizer
        The source of the template and of the special tokens in it.
    template
        A template that replaces the tokenizer's own.

    Raises
    ------
    InputError
        If there is no template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        if template is None and not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "its tokenizer has no chat template",
                where="option --chat-template",
                fix="give a file with the template, and the checkpoint by --tokenizer",
            )

    def template_for(self, tools: Sequence[object] | None) -> str:
        """Return the template for a conversation with or without tools."""
        # A tokenizer may have a separate template for conversations with tools.
        if self._template is not None:
            return self._template
        return str(self._tokenizer.get_chat_template(None, tools or None))

    def has_generation_blocks(self, tools: Sequence[object] | None) -> bool:
        """Return whether the template marks what an assistant writes."""
        return _END_OF_GENERATION in self.template_for(tools)

    def render(
        self, requests: Sequence[RenderRequest], place: str
    ) -> list[RenderedConversation]:
        """Render conversations as ``tokenizer.apply_chat_template`` does, in order.

        Parameters
        ----------
        requests
            All requests of one row.
        place
            The row, for errors.

        Raises
        ------
        InputError
            If the template takes too long or its process ends. The error names the row.
        """
        line = json.dumps([self._process_request(request) for request in requests])
        answers = _rendering_process.ask(line, place)

        renderings: list[RenderedConversation] = []
        for text, ranges_or_failure in answers:
            if isinstance(ranges_or_failure, str):
                failure = ranges_or_failure
                renderings.append(RenderedConversation("", failure=failure))
            else:
                generated = tuple((start, end) for start, end in ranges_or_failure)
                renderings.append(RenderedConversation(text, generated))
        return renderings

    def _process_request(self, request: RenderRequest) -> dict[str, object]:
        """Return a request as the process reads it: JSON, with the template."""
        template = self.template_for(request.tools)
        return {
            "messages": [*request.messages],
            "tools": request.tools,
            "template": template,
            "track": _END_OF_GENERATION in template,
            "add_generation_prompt": request.add_generation_prompt,
            "variables": {
                **self._tokenizer.special_tokens_map,
                **request.variables,
            },
        }
