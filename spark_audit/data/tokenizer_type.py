"""The type of a transformers tokenizer, declared without an import of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """A fast tokenizer of transformers, with the members that this package uses."""

    @property
    def bos_token(self) -> str | None:
        """Return the token in front of a text, if there is one."""

    @property
    def bos_token_id(self) -> int | None:
        """Return the id of the BOS token, if there is one."""

    @property
    def eos_token(self) -> str | None:
        """Return the token behind a text, if there is one."""

    @property
    def eos_token_id(self) -> int | None:
        """Return the id of the EOS token, if there is one."""

    @property
    def special_tokens_map(self) -> Mapping[str, str]:
        """Return the special tokens, by role."""

    @property
    def backend_tokenizer(self) -> Any:
        """Return the untyped tokenizer of the library `tokenizers`."""

    def __call__(self, text: str | Sequence[str], **options: object) -> Any:
        """Tokenise one text or several texts."""

    def __len__(self) -> int:
        """Return the size of the vocabulary, added tokens included."""

    def get_added_vocab(self) -> dict[str, int]:
        """Return the added tokens, with their ids."""

    def get_chat_template(
        self, chat_template: str | None = None, tools: Sequence[object] | None = None
    ) -> str:
        """Return the chat template with this name, or the one for these tools."""

    def decode(self, token_ids: Sequence[int], **options: object) -> str:
        """Return the text of token ids."""
