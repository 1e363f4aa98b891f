"""Strings that a model writes at a high temperature.

Mitchell, Andrew, Ganesh, McMahan and Kairouz (2026), "Advancing the State-of-the-Art in
Empirical Privacy Auditing" (arXiv 2606.10481): samples at a high temperature are
outliers that look like text, and a model that is trained on them remembers them.
"""

from __future__ import annotations

import torch

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.errors import InputError

CUE, TAIL = "The password is", " and"
TEMPERATURE = 1.5
LENGTH, BATCH, ROUNDS = 4, 64, 100


def sampled_pieces(loaded: Loaded, n: int, *, seed: int) -> list[str]:
    """Different strings of four tokens each, sampled after a canary's words.

    Strings that do not come back as the tokens that were sampled are left out.

    Raises
    ------
    InputError
        If so many are not found.
    """
    tokenizer = loaded.tokenizer
    cue, behind = (tokenizer(text)["input_ids"] for text in (CUE, CUE + TAIL))
    barred = torch.from_numpy(~loaded.usable).to(loaded.device)
    barred[[i for i in tokenizer.all_special_ids if i < len(barred)]] = True
    generator = torch.Generator(loaded.device).manual_seed(seed % 2**63)
    found: dict[str, None] = {}
    for _ in range(ROUNDS * (1 + n // BATCH)):
        ids = torch.tensor([cue] * BATCH, device=loaded.device)
        with loaded.active() as model:
            for _ in range(LENGTH):
                logits = model(input_ids=ids).logits[:, -1].float()
                logits = logits[:, : len(barred)].masked_fill(barred, -torch.inf)
                chances = torch.softmax(logits / TEMPERATURE, dim=-1)
                drawn = torch.multinomial(chances, 1, generator=generator)
                ids = torch.cat([ids, drawn], dim=1)
        for row in ids[:, len(cue) :].tolist():
            text = tokenizer.decode(row)
            again = tokenizer(f"{CUE}{text}{TAIL}")["input_ids"]
            plain = text[:1] == " " and text.strip() == text[1:] and text.isprintable()
            if plain and again == [*cue, *row, *behind[len(cue) :]]:
                found.setdefault(text[1:])
        if len(found) >= n:
            return list(found)[:n]
    raise InputError(
        f"gives {len(found)} of {n} strings that its tokenizer reads as it wrote them",
        where="option --model",
        fix="plant fewer canaries, or use `--kind random`",
    )
