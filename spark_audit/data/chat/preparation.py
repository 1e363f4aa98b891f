"""A conversation as a trainer prepares it: exact text, exact tokens, which had loss.

The rules are those of TRL's SFTTrainer: messages go through the chat template and get
no further special tokens; other text gets EOS and the special tokens that the tokenizer
adds; a completion begins where the ids of the prompt alone and of the whole part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass
class _Places:
    """Where the messages of a conversation stand in its text.

    ``whole`` are the ranges of messages with what the template writes around them,
    ``written`` those of what an assistant generates, ``content`` of their contents.
    """

    whole: dict[int, tuple[int, int]] = field(default_factory=dict)
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
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer | None,
        settings: Settings,
    ) -> None:
        self._tokenizer, self._renderer, self.settings = tokenizer, renderer, settings
        # Names of tokens with which a turn may end.
        self._marks = tuple(
            sorted((token for token in tokenizer.get_added_vocab() if token), key=len)
        )

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
        eos = self._tokenizer.eos_token or ""
        completion = row.completion
        if not completion.endswith(eos):
            completion += eos
        check_one_bos(self._tokenizer, [row.prompt + completion])
        text = row.prompt + completion
        supervised: Ranges = ((0, len(text)),)
        kind = self.settings.supervised or row.supervised
        if kind != "all":
            whole, alone = encode(self._tokenizer, [text, row.prompt], written=True)
            supervised = _from_divergence(whole, alone.ids.tolist(), len(text))
        training = self._training("added", supervised)
        return Prepared(row.prompt, completion, training)

    def _conversation(self, row: Conversation, place: str) -> Prepared:
        whole, before, prompts = self._renderings(row, place)
        text = whole.text
        if not text:
            raise InputError("the chat template writes nothing", where=place)
        places = self._places(row, text, before, prompts)
        kind = self.settings.supervised or row.supervised
        supervised = self._supervised(kind, row, whole, places, prompts)

        turns = [
            Turn(*places.content[i], str(row.messages[i]["role"]))
            for i in sorted(places.content)
            if places.content[i][0] < places.content[i][1]
        ]
        border = self._response_start(row, places, len(text))
        not_located = tuple(
            i for i in range(len(row.messages)) if i not in places.whole
        )
        scaffold = np.ones(len(text), dtype=bool)
        for turn in turns:
            scaffold[turn.start : turn.end] = False
        if not_located:
            scaffold[:] = False  # what the template wrote is not known
        return Prepared(
            text[:border],
            text[border:],
            self._training("in_text", supervised, turns),
            template=tuple(runs(scaffold)),
            not_located=not_located,
        )

    def _renderings(
        self, row: Conversation, place: str
    ) -> tuple[
        RenderedConversation, list[RenderedConversation], list[RenderedConversation]
    ]:
        """The whole, each beginning of it, and each with a generation prompt."""
        assert self._renderer is not None
        n = len(row.messages)

        def wanted(end: int, *, prompt: bool) -> Wanted:
            return Wanted(row.messages[:end], row.tools, row.variables, prompt)

        asked = [wanted(n, prompt=False)]
        asked += [wanted(end, prompt=False) for end in range(1, n)]
        asked += [wanted(end, prompt=True) for end in range(1, n + 1)]
        whole, *rest = self._renderer.render(asked, place)
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
        empty = RenderedConversation("")
        # By how many messages come before.
        before = [empty, *rest[: n - 1], whole]
        prompts = [empty, *rest[n - 1 :]]
        return whole, before, prompts

    def _places(
        self,
        row: Conversation,
        text: str,
        before: Sequence[RenderedConversation],
        prompts: Sequence[RenderedConversation],
    ) -> _Places:
        found = _Places()
        for i, message in enumerate(row.messages):
            ahead, behind = before[i], before[i + 1]
            starts = not ahead.failure and text.startswith(ahead.text)
            ends = not behind.failure and text.startswith(behind.text)
            if not starts or not ends or len(behind.text) < len(ahead.text):
                continue
            low, high = len(ahead.text), len(behind.text)
            found.whole[i] = low, high
            header_end = low
            if message["role"] == ASSISTANT and i > 0:
                prompt = prompts[i]
                is_prefix = not prompt.failure and text.startswith(prompt.text)
                if is_prefix and low <= len(prompt.text) <= high:
                    header_end = len(prompt.text)
                    found.written[i] = (
                        header_end,
                        self._written_end(text, header_end, high),
                    )
            content = text_of(message)
            if content.strip() or message.keys() - _PLAIN_KEYS:
                found.content[i] = _content_in(text, header_end, high, content)
            else:
                found.content[i] = header_end, header_end
        return found

    def _written_end(self, text: str, start: int, end: int) -> int:
        """Where an assistant's turn ends: behind its last token, without a line end."""
        bare = text[start:end].rstrip()
        if bare.endswith(self._marks):
            return start + len(bare)
        return end

    def _supervised(
        self,
        kind: Supervised,
        row: Conversation,
        whole: RenderedConversation,
        places: _Places,
        prompts: Sequence[RenderedConversation],
    ) -> Ranges:
        text = whole.text
        if kind == "all":
            return ((0, len(text)),)

        answers = [i for i, m in enumerate(row.messages) if m["role"] == ASSISTANT]
        if kind == "completion" and row.n_prompt is not None:
            prompt = prompts[row.n_prompt]
            if prompt.failure:
                raise NotLocatableError
            (encoding, alone) = encode(
                self._tokenizer, [text, prompt.text], special_tokens=False, written=True
            )
            return _from_divergence(encoding, alone.ids.tolist(), len(text))
        if kind in ("completion", "last"):
            answers = answers[-1:]
        answers = [i for i in answers if i not in row.unsupervised]
        return self._written(answers, row, whole, places)

    def _written(
        self,
        answers: Sequence[int],
        row: Conversation,
        whole: RenderedConversation,
        places: _Places,
    ) -> Ranges:
        """What an assistant wrote, of some messages; by the template's own marks."""
        assert self._renderer is not None
        all_answers = [i for i, m in enumerate(row.messages) if m["role"] == ASSISTANT]
        if self._renderer.has_generation_blocks(row.tools):
            ranges = self._as_tokens(whole)
            if len(answers) == len(all_answers):
                return ranges
            if len(whole.generated) == len(all_answers):
                chosen = [whole.generated[all_answers.index(i)] for i in answers]
                return self._as_tokens(RenderedConversation(whole.text, tuple(chosen)))
            raise NotLocatableError
        if any(i not in places.written for i in answers):
            raise NotLocatableError
        return tuple(places.written[i] for i in answers)

    def _as_tokens(self, whole: RenderedConversation) -> Ranges:
        """Generation blocks as transformers maps them to tokens, in characters."""
        with_offsets = self._tokenizer(
            whole.text, add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = with_offsets["offset_mapping"]
        mask = np.zeros(len(offsets), dtype=bool)
        for low, high in whole.generated:
            if low == high:
                continue
            first = with_offsets.char_to_token(low)
            last = with_offsets.char_to_token(high - 1)
            if first is None:
                break
            mask[first : (last + 1) if last else len(mask)] = True
        return char_ranges(mask, np.asarray(offsets).reshape(-1, 2))

    def _response_start(self, row: Conversation, places: _Places, length: int) -> int:
        """Where the last assistant's message begins; the text's end without one."""
        for i in reversed(range(len(row.messages))):
            if row.messages[i]["role"] == ASSISTANT and i in places.content:
                return places.content[i][0]
        return length

    def _training(
        self,
        special_tokens: SpecialTokens,
        supervised: Ranges,
        turns: Sequence[Turn] = (),
    ) -> TrainingInput:
        return TrainingInput(
            special_tokens,
            turns=tuple(sorted(turns, key=lambda turn: turn.start)),
            supervised=supervised,
            max_length=self.settings.max_length,
            truncation=self.settings.truncation,
        )


def char_ranges(mask: np.ndarray, offsets: np.ndarray) -> Ranges:
    """Return the characters of the tokens of a mask.

    Parameters
    ----------
    mask
        Shape ``(T,)``, bool.
    offsets
        Shape ``(T, 2)``: characters of each token.
    """
    found: list[tuple[int, int]] = []
    for first, end in runs(mask):
        places = offsets[first:end]
        places = places[places[:, 0] < places[:, 1]]
        if len(places):
            low, high = int(places[:, 0].min()), int(places[:, 1].max())
            if found and low <= found[-1][1]:
                low = found.pop()[0]
            found.append((low, high))
    return tuple(found)


def _from_divergence(whole: Encoding, alone: list[int], length: int) -> Ranges:
    """From the first token that the prompt alone has otherwise, to the end."""
    ids = whole.ids.tolist()
    n_shared = 0
    for ours, theirs in zip(ids, alone, strict=False):
        if ours != theirs:
            break
        n_shared += 1
    assert whole.written is not None
    if n_shared == len(ids):
        return ()
    start = int(whole.written[n_shared, 0])
    return ((start, length),) if start < length else ()


def _content_in(text: str, start: int, end: int, content: str) -> tuple[int, int]:
    """Where a message's content stands between two places; all of it if not as such."""
    bare = content.strip()
    at = text.find(bare, start, end) if bare else -1
    if at < 0:
        return start, end
    return at, at + len(bare)
