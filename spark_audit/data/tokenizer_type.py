"""What is asked of a tokenizer of transformers, which is not imported for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """A fast tokenizer of transformers, as far as data and manifests use it."""

    @property
    def bos_token(self) -> str | None:
        """The token in front of a text, if there is one."""

    @property
    def bos_token_id(self) -> int | None:
        """Its id."""

    @property
    def eos_token(self) -> str | None:
        """The token behind a text, if there is one."""

    @property
    def eos_token_id(self) -> int | None:
        """Its id."""

    @property
    def special_tokens_map(self) -> Mapping[str, str]:
        """Special tokens by their roles."""

    @property
    def backend_tokenizer(self) -> Any:
        """The tokenizer of the library `tokenizers`, which has no types."""

    def __call__(self, text: str | Sequence[str], **options: object) -> Any:
        """Tokenise a text, or several."""

    def __len__(self) -> int:
        """Tokens of the vocabulary, added ones among them."""

    def get_added_vocab(self) -> dict[str, int]:
        """Return the tokens that were added, with their ids."""

    def get_chat_template(
        self, chat_template: str | None = None, tools: Sequence[object] | None = None
    ) -> str:
        """Return the chat template by its name, or the one for these tools."""

    def decode(self, token_ids: Sequence[int], **options: object) -> str:
        """Return the text of token ids."""
