"""Prepare a conversation as a trainer does: exact text, tokens and loss.

The rules are those of TRL's SFTTrainer. Messages go through the chat template and get
no further special tokens. Other text gets EOS and the special tokens that the tokenizer
adds. A completion begins where the ids of the prompt alone and of the whole text
differ.

``supervised`` is the part with loss: an option or a format names it (``Supervised``),
and here it becomes ranges of characters. A further named part goes into ``formats.py``
and into :meth:`Preparer._supervised_ranges`. A message is known by its number in the
conversation, from 0.
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
    RenderRequest,
)
from spark_audit.data.encoding import Encoding, check_one_bos, encode, true_runs
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
"""Keys of a message of which a template writes only the content."""


@dataclass(frozen=True)
class Settings:
    """Settings of the training run.

    Attributes
    ----------
    supervised
        The part with loss; ``None``: the part that the usual trainer of the format
        takes.
    max_length, truncation
        Most tokens of a row, and the side that is cut off.
    """

    supervised: Supervised | None = None
    max_length: int | None = None
    truncation: Truncation = "end"


@dataclass(frozen=True)
class Prepared:
    """A prepared row of chat data, ready to become an example.

    Attributes
    ----------
    prompt, response
        The two parts of the text. The response begins with the last assistant message.
    training_input
        The tokenisation, and the part with loss.
    template
        Character ranges that the chat template writes.
    not_located
        Numbers of messages whose position in the text is unknown.
    """

    prompt: str
    response: str
    training_input: TrainingInput
    template: Ranges = ()
    not_located: tuple[int, ...] = ()


class NotLocatableError(Exception):
    """The loss is unknown because an assistant message cannot be located."""


@dataclass(frozen=True)
class _Renderings:
    """Renderings of a conversation and of its beginnings.

    Attributes
    ----------
    whole
        The rendering of all messages.
    beginnings
        Renderings of the first ``n`` messages, by ``n`` from 0; the last is the whole.
    prompts
        The same renderings with a generation prompt at the end, as a model continues
        them.
    """

    whole: RenderedConversation
    beginnings: list[RenderedConversation]
    prompts: list[RenderedConversation]

    def is_beginning(self, rendering: RenderedConversation) -> bool:
        """Return whether the whole text begins with this rendering."""
        return not rendering.failure and self.whole.text.startswith(rendering.text)


@dataclass
class _MessageRanges:
    """Ranges of the messages in the text, by message number.

    A message that could not be located has no entry.

    Attributes
    ----------
    with_template
        The message and what the template writes around it.
    written
        The text that an assistant generates: the message and the token that ends its
        turn.
    content
        The content alone; an empty content has an empty range.
    """

    with_template: dict[int, tuple[int, int]] = field(default_factory=dict)
    written: dict[int, tuple[int, int]] = field(default_factory=dict)
    content: dict[int, tuple[int, int]] = field(default_factory=dict)


class Preparer:
    """A preparer of conversations for one tokenizer and one trainer.

    Parameters
    ----------
    tokenizer
        The tokenizer of the training run.
    renderer
        Renders the chat template; ``None`` if no row holds messages.
    settings
        Settings of the training run.
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

        # Any of the added tokens may end an assistant's turn.
        added_tokens = [token for token in tokenizer.get_added_vocab() if token]
        self._turn_ends = tuple(added_tokens)

    def prepare(self, conversation: Conversation, place: str) -> Prepared:
        """Return a conversation as the trainer prepares it.

        Raises
        ------
        InputError
            If the template fails, or text begins with a second BOS.
        NotLocatableError
            If the part with loss is unknown.
        """
        if conversation.messages:
            return self._prepare_messages(conversation, place)
        return self._prepare_text(conversation)

    def _prepare_text(self, conversation: Conversation) -> Prepared:
        """Prepare a row of plain text: add EOS and the tokenizer's special tokens."""
        # EOS is added once, as in TRL.
        eos = self._tokenizer.eos_token or ""
        completion = conversation.completion
        if not completion.endswith(eos):
            completion += eos
        text = conversation.prompt + completion
        check_one_bos(self._tokenizer, [text])

        supervised: Ranges = ((0, len(text)),)  # characters
        supervised_part = self.settings.supervised or conversation.supervised
        if supervised_part != "all":
            whole, prompt = encode(
                self._tokenizer, [text, conversation.prompt], keep_full_offsets=True
            )
            supervised = _behind_shared_tokens(whole, prompt, len(text))
        training_input = self._training_input("added", supervised)
        return Prepared(conversation.prompt, completion, training_input)

    def _prepare_messages(self, conversation: Conversation, place: str) -> Prepared:
        """Prepare a row of messages: its text is the rendering of the template."""
        renderings = self._renderings(conversation, place)
        text = renderings.whole.text
        if not text:
            raise InputError(
                "the chat template writes nothing for the row",
                where=place,
                fix="leave the row out, or give the template that it was trained with",
            )

        ranges = self._message_ranges(conversation, renderings)
        supervised = self._supervised_ranges(conversation, renderings, ranges)

        # An empty message, such as a tool call alone, has no turn.
        turns = [
            Turn(*ranges.content[i], str(conversation.messages[i]["role"]))
            for i in sorted(ranges.content)
            if ranges.content[i][0] < ranges.content[i][1]
        ]
        not_located = tuple(
            i
            for i in range(len(conversation.messages))
            if i not in ranges.with_template
        )

        # Text outside of every message content belongs to the template. If a message
        # could not be located, the template's text is unknown.
        is_template = np.ones(len(text), dtype=bool)  # (characters,)
        for turn in turns:
            is_template[turn.start : turn.end] = False
        if not_located:
            is_template[:] = False

        response_start = _response_start(conversation, ranges, len(text))
        return Prepared(
            text[:response_start],
            text[response_start:],
            self._training_input("in_text", supervised, turns),
            template=tuple(true_runs(is_template)),
            not_located=not_located,
        )

    def _renderings(self, conversation: Conversation, place: str) -> _Renderings:
        """Render a conversation and all its beginnings, in one request.

        Raises
        ------
        InputError
            If the whole conversation cannot be rendered. A beginning may fail.
        """
        # A single request: the call to the process costs more than the rendering.
        assert self._renderer is not None
        n = len(conversation.messages)
        requests = [self._request(conversation, n)]  # the whole
        for n_messages in range(1, n):  # n - 1 beginnings
            requests.append(self._request(conversation, n_messages))
        for n_messages in range(1, n + 1):  # n prompts
            requests.append(
                self._request(conversation, n_messages, add_generation_prompt=True)
            )

        whole, *shorter = self._renderer.render(requests, place)
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

        no_messages = RenderedConversation("")
        return _Renderings(
            whole=whole,
            beginnings=[no_messages, *shorter[: n - 1], whole],
            prompts=[no_messages, *shorter[n - 1 :]],
        )

    def _request(
        self,
        conversation: Conversation,
        n_messages: int,
        *,
        add_generation_prompt: bool = False,
    ) -> RenderRequest:
        """Return the request to render the first messages of a conversation."""
        return RenderRequest(
            conversation.messages[:n_messages],
            conversation.tools,
            conversation.variables,
            add_generation_prompt,
        )

    def _message_ranges(
        self, conversation: Conversation, renderings: _Renderings
    ) -> _MessageRanges:
        """Return the ranges of the messages in the text.

        A message stands between the rendering of those before it and the rendering
        that ends with it, if the whole text begins with both. What an assistant writes
        begins behind the generation prompt::

            beginnings[i]      <user>Hi</s>                 ends at start
            prompts[i]         <user>Hi</s><bot>            ends at header_end
            beginnings[i + 1]  <user>Hi</s><bot>Hello</s>   ends at end
        """
        text = renderings.whole.text
        ranges = _MessageRanges()
        for i, message in enumerate(conversation.messages):
            before = renderings.beginnings[i]
            through_message = renderings.beginnings[i + 1]
            if not renderings.is_beginning(before):
                continue
            if not renderings.is_beginning(through_message):
                continue

            start = len(before.text)
            end = len(through_message.text)
            if end < start:
                continue
            ranges.with_template[i] = start, end

            header_end = start
            if message["role"] == ASSISTANT and i > 0:
                prompt = renderings.prompts[i]
                prompt_end = len(prompt.text)
                if renderings.is_beginning(prompt) and start <= prompt_end <= end:
                    header_end = prompt_end
                    written_end = self._written_end(text, header_end, end)
                    ranges.written[i] = header_end, written_end

            # A template may write more of a message than its content: tool calls belong
            # to the message, too.
            content = text_of(message)
            if content.strip() or message.keys() - _PLAIN_KEYS:
                ranges.content[i] = _content_in(text, header_end, end, content)
            else:
                ranges.content[i] = header_end, header_end
        return ranges

    def _written_end(self, text: str, start: int, end: int) -> int:
        """Return the end of an assistant's turn, behind the token that ends it.

        A line end that the template writes after that token is not generated.
        """
        without_line_end = text[start:end].rstrip()
        if without_line_end.endswith(self._turn_ends):
            return start + len(without_line_end)
        return end

    def _supervised_ranges(
        self,
        conversation: Conversation,
        renderings: _Renderings,
        ranges: _MessageRanges,
    ) -> Ranges:
        """Return the character ranges with loss.

        Raises
        ------
        NotLocatableError
            If the ranges are unknown.
        """
        whole = renderings.whole
        supervised_part = self.settings.supervised or conversation.supervised
        if supervised_part == "all":
            return ((0, len(whole.text)),)

        # TRL masks exactly the ids of the prompt alone, whatever text they stand for.
        if supervised_part == "completion" and conversation.n_prompt is not None:
            prompt = renderings.prompts[conversation.n_prompt]
            if prompt.failure:
                raise NotLocatableError
            encoding, prompt_encoding = encode(
                self._tokenizer,
                [whole.text, prompt.text],
                special_tokens=False,
                keep_full_offsets=True,
            )
            return _behind_shared_tokens(encoding, prompt_encoding, len(whole.text))

        # Without a separate prompt, the last answer is the completion.
        answers = _answers(conversation)
        if supervised_part in ("completion", "last"):
            answers = answers[-1:]
        answers = [i for i in answers if i not in conversation.unsupervised]
        return self._ranges_of_answers(answers, conversation, whole, ranges)

    def _ranges_of_answers(
        self,
        answers: Sequence[int],
        conversation: Conversation,
        whole: RenderedConversation,
        ranges: _MessageRanges,
    ) -> Ranges:
        """Return the character ranges that an assistant wrote in some messages.

        The template's generation blocks define them, if the template has any.

        Parameters
        ----------
        answers
            Numbers of the messages, in order.

        Raises
        ------
        NotLocatableError
            If one of them cannot be located.
        """
        # Without blocks, an assistant's text begins behind the generation prompt.
        assert self._renderer is not None
        if not self._renderer.has_generation_blocks(conversation.tools):
            if any(i not in ranges.written for i in answers):
                raise NotLocatableError
            return tuple(ranges.written[i] for i in answers)

        all_answers = _answers(conversation)
        if len(answers) == len(all_answers):
            return self._ranges_of_blocks(whole.text, whole.generated)

        # Blocks can be assigned to messages only if every answer has one.
        if len(whole.generated) != len(all_answers):
            raise NotLocatableError
        blocks = [whole.generated[all_answers.index(i)] for i in answers]
        return self._ranges_of_blocks(whole.text, blocks)

    def _ranges_of_blocks(self, text: str, blocks: Sequence[tuple[int, int]]) -> Ranges:
        """Return generation blocks as character ranges, cut at tokens.

        The rule is that of ``apply_chat_template`` with
        ``return_assistant_tokens_mask``, with its two quirks: a block whose first
        character has no token ends the search, and one whose last character has none
        (or is the text's first token) reaches to the end of the text.

        Parameters
        ----------
        blocks
            Character ranges that the template's generation blocks wrote.
        """
        tokens = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = np.asarray(tokens["offset_mapping"]).reshape(-1, 2)  # (T, 2)
        is_generated = np.zeros(len(offsets), dtype=bool)  # (T,)
        for start, end in blocks:
            if start == end:  # a block that writes nothing
                continue
            first = tokens.char_to_token(start)
            last = tokens.char_to_token(end - 1)
            if first is None:
                break
            token_end = last + 1 if last else len(is_generated)
            is_generated[first:token_end] = True
        return char_ranges(is_generated, offsets)

    def _training_input(
        self,
        special_tokens: SpecialTokens,
        supervised: Ranges,
        turns: Sequence[Turn] = (),
    ) -> TrainingInput:
        """Return a row's training input, with the settings of the run."""
        return TrainingInput(
            special_tokens,
            turns=tuple(sorted(turns, key=lambda turn: turn.start)),
            supervised=supervised,
            max_length=self.settings.max_length,
            truncation=self.settings.truncation,
        )


def _answers(conversation: Conversation) -> list[int]:
    """Return the numbers of the assistant messages."""
    return [
        i
        for i, message in enumerate(conversation.messages)
        if message["role"] == ASSISTANT
    ]


def _response_start(
    conversation: Conversation, ranges: _MessageRanges, length: int
) -> int:
    """Return the start of the last assistant message, or the text's end without one."""
    for i in reversed(_answers(conversation)):
        if i in ranges.content:
            return ranges.content[i][0]
    return length


def char_ranges(mask: np.ndarray, offsets: np.ndarray) -> Ranges:
    """Return the characters of the tokens that a mask marks, as separate ranges.

    Parameters
    ----------
    mask
        Shape ``(T,)``, bool.
    offsets
        Shape ``(T, 2)``: characters of each token.
    """
    ranges: list[tuple[int, int]] = []
    for first, end in true_runs(mask):
        run_offsets = offsets[first:end]  # (tokens of the run, 2)
        shows_text = run_offsets[:, 0] < run_offsets[:, 1]
        if not shows_text.any():
            continue

        char_start = int(run_offsets[shows_text, 0].min())
        char_end = int(run_offsets[shows_text, 1].max())
        # Runs that touch give one range, as do runs that share a character whose bytes
        # are split over several tokens.
        if ranges and char_start <= ranges[-1][1]:
            char_start, _ = ranges.pop()
        ranges.append((char_start, char_end))
    return tuple(ranges)


def _behind_shared_tokens(whole: Encoding, prompt: Encoding, length: int) -> Ranges:
    """Return the characters from the first token that differs from the prompt alone.

    Parameters
    ----------
    whole, prompt
        The whole text, with ``full_offsets``, and the prompt alone.
    length
        Characters of the whole text.

    Returns
    -------
    tuple
        One range up to the end of the text; none if the prompt is the whole text.
    """
    # A token that begins in the prompt and ends behind it does not belong to the
    # prompt.
    n_shared = len(commonprefix([whole.ids.tolist(), prompt.ids.tolist()]))
    if n_shared == len(whole):
        return ()

    assert whole.full_offsets is not None
    start = int(whole.full_offsets[n_shared, 0])
    return ((start, length),) if start < length else ()


def _content_in(text: str, start: int, end: int, content: str) -> tuple[int, int]:
    """Return the range of a message's content between two positions.

    If the template changes the content, the range is everything between them.
    """
    # Most templates strip white space around a content.
    stripped = content.strip()
    content_start = text.find(stripped, start, end) if stripped else -1
    if content_start < 0:
        return start, end
    return content_start, content_start + len(stripped)
