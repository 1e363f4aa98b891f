"""A conversation as a trainer prepares it: exact text, exact tokens, which had loss.

The rules are those of TRL's SFTTrainer: messages go through the chat template and get
no further special tokens; other text gets EOS and the special tokens that the tokenizer
adds; a completion begins where the ids of the prompt alone and of the whole part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import commonprefix

import numpy as np

from spark_audit.data.chat.formats import (
    ASSISTANT,
    Conversation,
    Supervised,
    text_of,
)
from spark_audit.data.chat.rendering import (
    NOT_VALID,
    RenderedConversation,
    Renderer,
    Wanted,
)
from spark_audit.data.encoding import Encoding, check_one_bos, encode, runs
from spark_audit.data.examples import Ranges
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import (
    SpecialTokens,
    TrainingInput,
    Truncation,
    Turn,
)
from spark_audit.errors import InputError, shown

_PLAIN_KEYS = frozenset(("role", "content", "name"))
"""Keys of a message of which a template writes the content alone."""


@dataclass(frozen=True)
class Settings:
    """What a trainer was told.

    Attributes
    ----------
    supervised
        What had loss; ``None``: what the usual trainer of the row's format does.
    max_length, truncation
        Tokens of a row, and the side that is cut off.
    """

    supervised: Supervised | None = None
    max_length: int | None = None
    truncation: Truncation = "end"


@dataclass(frozen=True)
class Prepared:
    """A row of chat data, ready to become an example.

    Attributes
    ----------
    prompt, response
        Its text in two parts: the response begins with the last assistant's message.
    training_input
        How it was tokenised, and what had loss.
    template
        Character ranges that the chat template writes.
    not_located
        Messages whose place in the text is not known.
    """

    prompt: str
    response: str
    training_input: TrainingInput
    template: Ranges = ()
    not_located: tuple[int, ...] = ()


class NotLocatableError(Exception):
    """What had loss cannot be told: an assistant's message cannot be located."""


@dataclass(frozen=True)
class _Renderings:
    """A conversation as the template writes it, and its beginnings.

    Attributes
    ----------
    whole
        All messages.
    beginnings
        The first ``n`` messages, by ``n`` from 0 on; the last is the whole.
    prompts
        The same with a generation prompt behind them: what a model continues.
    """

    whole: RenderedConversation
    beginnings: list[RenderedConversation]
    prompts: list[RenderedConversation]

    def is_beginning(self, rendering: RenderedConversation) -> bool:
        """Return whether the whole text begins with a rendering."""
        return not rendering.failure and self.whole.text.startswith(rendering.text)


@dataclass
class _MessageRanges:
    """Where the messages of a conversation stand in its text, by their numbers.

    A message without an entry could not be located.

    Attributes
    ----------
    with_template
        A message with what the template writes around it.
    written
        What an assistant generates: its message, up to the token that ends its turn.
    content
        The content alone; an empty one is an empty range.
    """

    with_template: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: dict[int, tuple[int, int]] = field(default_factory=dict)
    content: dict[int, tuple[int, int]] = field(default_factory=dict)


class Preparer:
    """Prepares conversations for one tokenizer and one trainer.

    Parameters
    ----------
    tokenizer
        The tokenizer of the training run.
    renderer
        Renders its chat template; ``None`` where rows hold no messages.
    settings
        What the trainer was told.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer | None,
        settings: Settings,
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self.settings = settings

        # Strings of added tokens: one of them may end an assistant's turn.
        added_tokens = sorted(filter(None, tokenizer.get_added_vocab()), key=len)
        self._turn_ends = tuple(added_tokens)

    def prepare(self, row: Conversation, place: str) -> Prepared:
        """Return a row as the trainer prepares it.

        Raises
        ------
        InputError
            If the template fails, or text begins with a second BOS.
        NotLocatableError
            If what had loss cannot be told.
        """
        if row.messages:
            return self._conversation(row, place)
        return self._text(row)

    def _text(self, row: Conversation) -> Prepared:
        """Return a row that holds text: it gets EOS, and the tokenizer's specials."""
        # As TRL adds it, a second EOS is never written.
        eos = self._tokenizer.eos_token or ""
        completion = row.completion
        if not completion.endswith(eos):
            completion += eos
        text = row.prompt + completion
        check_one_bos(self._tokenizer, [text])

        supervised: Ranges = ((0, len(text)),)
        supervised_part = self.settings.supervised or row.supervised
        if supervised_part != "all":
            whole, prompt = encode(self._tokenizer, [text, row.prompt], written=True)
            supervised = _behind_shared_tokens(whole, prompt, len(text))
        return Prepared(row.prompt, completion, self._training("added", supervised))

    def _conversation(self, row: Conversation, place: str) -> Prepared:
        """Return a row that holds messages: its text is what the template writes."""
        renderings = self._renderings(row, place)
        text = renderings.whole.text
        if not text:
            raise InputError(
                "the chat template writes nothing for the row",
                where=place,
                fix="leave the row out, or give the template that it was trained with",
            )

        ranges = self._message_ranges(row, renderings)
        supervised = self._supervised(row, renderings, ranges)

        # An empty message, such as a call of tools alone, has no turn.
        turns = [
            Turn(*ranges.content[i], str(row.messages[i]["role"]))
            for i in sorted(ranges.content)
            if ranges.content[i][0] < ranges.content[i][1]
        ]
        not_located = tuple(
            i for i in range(len(row.messages)) if i not in ranges.with_template
        )

        # The template wrote what is no message's content; which that is, is not known
        # where a message could not be located.
        is_template = np.ones(len(text), dtype=bool)  # (characters,)
        for turn in turns:
            is_template[turn.start : turn.end] = False
        if not_located:
            is_template[:] = False

        response_start = _response_start(row, ranges, len(text))
        return Prepared(
            text[:response_start],
            text[response_start:],
            self._training("in_text", supervised, turns),
            template=tuple(runs(is_template)),
            not_located=not_located,
        )

    def _renderings(self, row: Conversation, place: str) -> _Renderings:
        """Render a conversation and all its beginnings, in one request.

        Raises
        ------
        InputError
            If the whole cannot be rendered; a beginning may fail.
        """
        # One request for all of them: to ask the process takes longer than to render.
        assert self._renderer is not None
        n = len(row.messages)
        requests = [self._request(row, n)]
        for n_messages in range(1, n):
            requests.append(self._request(row, n_messages))
        for n_messages in range(1, n + 1):
            requests.append(self._request(row, n_messages, add_generation_prompt=True))

        whole, *others = self._renderer.render(requests, place)
        if whole.failure.startswith(NOT_VALID):
            raise InputError(
                f"the chat template cannot be used: {shown(whole.failure)}",
                where="option --chat-template",
                fix="give the template that the rows were trained with",
            )
        if whole.failure:
            raise InputError(
                f"the chat template refuses the row ({shown(whole.failure)})",
                where=place,
                fix="leave the row out, or give the template that it was trained with",
            )

        nothing = RenderedConversation("")
        return _Renderings(
            whole=whole,
            beginnings=[nothing, *others[: n - 1], whole],
            prompts=[nothing, *others[n - 1 :]],
        )

    def _request(
        self, row: Conversation, n_messages: int, *, add_generation_prompt: bool = False
    ) -> Wanted:
        """Return the request to render the first messages of a conversation."""
        return Wanted(
            row.messages[:n_messages], row.tools, row.variables, add_generation_prompt
        )

    def _message_ranges(
        self, row: Conversation, renderings: _Renderings
    ) -> _MessageRanges:
        """Return where the messages stand in the text.

        A message stands between the rendering of those before it and the rendering
        that ends with it, if the whole text begins with both: ::

            beginnings[i]      |<user>Hi</s>
            prompts[i]         |<user>Hi</s><bot>
            beginnings[i + 1]  |<user>Hi</s><bot>Hello</s>
            message i                       |low          |high
        """
        text = renderings.whole.text
        ranges = _MessageRanges()
        for i, message in enumerate(row.messages):
            before = renderings.beginnings[i]
            behind = renderings.beginnings[i + 1]
            if not renderings.is_beginning(before):
                continue
            if not renderings.is_beginning(behind):
                continue

            low = len(before.text)
            high = len(behind.text)
            if high < low:
                continue
            ranges.with_template[i] = low, high

            # What an assistant writes begins behind the generation prompt.
            header_end = low
            if message["role"] == ASSISTANT and i > 0:
                prompt = renderings.prompts[i]
                prompt_end = len(prompt.text)
                if renderings.is_beginning(prompt) and low <= prompt_end <= high:
                    header_end = prompt_end
                    written_end = self._written_end(text, header_end, high)
                    ranges.written[i] = header_end, written_end

            # A template may write more of a message than its content: what it writes of
            # calls of tools is the message's, too.
            content = text_of(message)
            if content.strip() or message.keys() - _PLAIN_KEYS:
                ranges.content[i] = _content_in(text, header_end, high, content)
            else:
                ranges.content[i] = header_end, header_end
        return ranges

    def _written_end(self, text: str, start: int, end: int) -> int:
        """Return where an assistant's turn ends: behind the token that ends it.

        A line end that the template writes behind that token is not generated.
        """
        without_line_end = text[start:end].rstrip()
        if without_line_end.endswith(self._turn_ends):
            return start + len(without_line_end)
        return end

    def _supervised(
        self, row: Conversation, renderings: _Renderings, ranges: _MessageRanges
    ) -> Ranges:
        """Return the characters that had loss.

        Raises
        ------
        NotLocatableError
            If they cannot be told.
        """
        whole = renderings.whole
        supervised_part = self.settings.supervised or row.supervised
        if supervised_part == "all":
            return ((0, len(whole.text)),)

        # TRL masks the ids that the prompt alone gives, too, whatever stands there.
        if supervised_part == "completion" and row.n_prompt is not None:
            prompt = renderings.prompts[row.n_prompt]
            if prompt.failure:
                raise NotLocatableError
            encoding, prompt_encoding = encode(
                self._tokenizer,
                [whole.text, prompt.text],
                special_tokens=False,
                written=True,
            )
            return _behind_shared_tokens(encoding, prompt_encoding, len(whole.text))

        # Of a conversation without a prompt of its own the last answer completes it.
        answers = _answers(row)
        if supervised_part in ("completion", "last"):
            answers = answers[-1:]
        answers = [i for i in answers if i not in row.unsupervised]
        return self._written(answers, row, whole, ranges)

    def _written(
        self,
        answers: Sequence[int],
        row: Conversation,
        whole: RenderedConversation,
        ranges: _MessageRanges,
    ) -> Ranges:
        """Return what an assistant wrote of some messages.

        The template's own marks of what is generated count where it has any.
        """
        # Without blocks, what an assistant wrote stands behind the generation prompt.
        assert self._renderer is not None
        if not self._renderer.has_generation_blocks(row.tools):
            if any(i not in ranges.written for i in answers):
                raise NotLocatableError
            return tuple(ranges.written[i] for i in answers)

        all_answers = _answers(row)
        if len(answers) == len(all_answers):
            return self._generated(whole.text, whole.generated)

        # Of some messages their blocks are known only if each message has one.
        if len(whole.generated) != len(all_answers):
            raise NotLocatableError
        blocks = [whole.generated[all_answers.index(i)] for i in answers]
        return self._generated(whole.text, blocks)

    def _generated(self, text: str, blocks: Sequence[tuple[int, int]]) -> Ranges:
        """Return generation blocks as transformers maps them to tokens, in characters.

        It is its ``apply_chat_template`` with ``return_assistant_tokens_mask``.
        """
        tokens = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = np.asarray(tokens["offset_mapping"]).reshape(-1, 2)
        is_generated = np.zeros(len(offsets), dtype=bool)
        for low, high in blocks:
            if low == high:  # a block that writes nothing
                continue
            first = tokens.char_to_token(low)
            last = tokens.char_to_token(high - 1)
            if first is None:
                break
            # Where the last character has no token, transformers marks all the rest.
            end = last + 1 if last else len(is_generated)
            is_generated[first:end] = True
        return char_ranges(is_generated, offsets)

    def _training(
        self,
        special_tokens: SpecialTokens,
        supervised: Ranges,
        turns: Sequence[Turn] = (),
    ) -> TrainingInput:
        """Return what is known of the row's training."""
        return TrainingInput(
            special_tokens,
            turns=tuple(sorted(turns, key=lambda turn: turn.start)),
            supervised=supervised,
            max_length=self.settings.max_length,
            truncation=self.settings.truncation,
        )


def _answers(row: Conversation) -> list[int]:
    """Return the numbers of an assistant's messages."""
    return [i for i, message in enumerate(row.messages) if message["role"] == ASSISTANT]


def _response_start(row: Conversation, ranges: _MessageRanges, length: int) -> int:
    """Return where the last assistant's message begins; the text's end without one."""
    for i in reversed(_answers(row)):
        if i in ranges.content:
            return ranges.content[i][0]
    return length


def char_ranges(mask: np.ndarray, offsets: np.ndarray) -> Ranges:
    """Return the characters of the tokens of a mask, as ranges that do not touch.

    Parameters
    ----------
    mask
        Shape ``(T,)``, bool.
    offsets
        Shape ``(T, 2)``: characters of each token.
    """
    ranges: list[tuple[int, int]] = []
    for first, end in runs(mask):
        run_offsets = offsets[first:end]  # (tokens of the run, 2)
        shows_text = run_offsets[:, 0] < run_offsets[:, 1]
        if not shows_text.any():
            continue

        low = int(run_offsets[shows_text, 0].min())
        high = int(run_offsets[shows_text, 1].max())
        # Two runs may share a character, whose bytes are in several tokens.
        if ranges and low <= ranges[-1][1]:
            low, _ = ranges.pop()
        ranges.append((low, high))
    return tuple(ranges)


def _behind_shared_tokens(whole: Encoding, prompt: Encoding, length: int) -> Ranges:
    """Return the text from the first token that the prompt alone has otherwise.

    Parameters
    ----------
    whole, prompt
        The whole text, with its characters of each token, and the prompt alone.
    length
        Characters of the whole text.
    """
    # A token that begins in the prompt and ends behind it is none of the prompt's.
    n_shared = len(commonprefix([whole.ids.tolist(), prompt.ids.tolist()]))
    if n_shared == len(whole):
        return ()

    assert whole.written is not None
    start = int(whole.written[n_shared, 0])
    return ((start, length),) if start < length else ()


def _content_in(text: str, start: int, end: int, content: str) -> tuple[int, int]:
    """Return where a message's content stands between two places.

    All between them counts where the template changes the content.
    """
    # Most templates strip white space around a content.
    stripped = content.strip()
    low = text.find(stripped, start, end) if stripped else -1
    if low < 0:
        return start, end
    return low, low + len(stripped)
