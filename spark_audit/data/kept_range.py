"""Choose the tokens of a text that is too long for a model: those that are scored."""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.data.encoding import Encoding
from spark_audit.errors import InputError


def kept_range(
    encoding: Encoding,
    *,
    max_length: int | None,
    response_start: int,
    spans: Sequence[tuple[int, int]] = (),
) -> tuple[int, int]:
    """Return the range of tokens that is scored of a text that may be too long.

    The response is kept, and the prompt is cut from its start. If the cut falls inside
    a PII span, it moves to the end of the span. If the response alone is too long, its
    end is cut; if this cut falls inside a span, it moves back to the start of the span.
    So spans are kept or cut as a whole, with two exceptions: a span that reaches from
    the prompt into the response, and a span at the start of the response that alone is
    too long.

    Leading special tokens are always read (see ``Encoding.model_input``). Special
    tokens behind the text (an EOS) are left out.

    Parameters
    ----------
    max_length
        Tokens that fit, special tokens included; ``None``: no limit.
    response_start
        First character of the response.
    spans
        Token ranges of the PII spans.

    Returns
    -------
    tuple
        ``(token_start, token_end)`` in the full tokenisation, end exclusive.

    Raises
    ------
    InputError
        If no token of the text fits.
    """
    text_end = encoding.text_token_end
    if max_length is None or text_end <= max_length:
        return 0, text_end

    n_text_tokens = max_length - encoding.n_leading_special
    if n_text_tokens < 1:
        raise InputError(
            f"a context of {max_length} tokens has no room for any text",
            fix="give a larger one by --max-length, or leave the row out",
        )

    # First case: the response alone is too long, so its end is cut.
    response_token = encoding.first_token_past(response_start)
    if text_end - response_token > n_text_tokens:
        end = response_token + n_text_tokens
        for span_start, span_end in sorted(spans, reverse=True):
            if response_token < span_start < end < span_end:
                end = span_start
        return response_token, end

    # Second case: the response fits, so the prompt is cut from its start. Without a
    # special token in front, the first kept token has no prediction, so a span must not
    # begin with it.
    n_unpredicted = 1 if encoding.n_leading_special == 0 else 0
    start = text_end - n_text_tokens
    for span_start, span_end in sorted(spans):
        if span_start < start + n_unpredicted and start < span_end:
            start = min(span_end, response_token)
    return start, text_end
