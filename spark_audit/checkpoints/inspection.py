"""What a checkpoint is and whether it would load, without an audit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from spark_audit.checkpoints.adapters import AdapterHost
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers, same_path, with_base
from spark_audit.checkpoints.locate import printable, read_json
from spark_audit.checkpoints.models import head_rows, read_architecture
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import Opening
from spark_audit.checkpoints.sidecar import NOISE_ADDED
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.tokenizer import (
    has_tokenizer,
    read_tokenizer,
    remarks,
    tokenizer_of,
    tokenizer_sha256,
    usable_rows,
)
from spark_audit.errors import CheckpointError, SparkError, at, shown

NOT_VERIFIABLE = "base not verifiable: full weights name no base"

SMALL_BYTES = 1 << 26
"""Of weights that looking at a checkpoint opens: in seconds, and below 1 GB."""


@dataclass
class Inspection:
    """What ``spark-audit inspect`` prints.

    ``problems`` holds what would make opening, or an audit beside the base that was
    given, fail; it is empty when nothing would. ``opened`` is whether that was tried,
    or follows from headers.
    """

    source: str
    format: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    opened: bool = False


def inspect_checkpoint(
    source: str, loading: Loading | None = None, **options: Any
) -> Inspection:
    """What a checkpoint is and whether it would load.

    What is small is opened, on the CPU, as an audit opens it. Of what is larger
    headers are read, and an adapter's numbers: NaN in a base, or an adapter that
    changes nothing, show on opening only.

    Full weights say nowhere which base they come from. Where one is given they are
    compared with it: opening does not ask, an audit would be of two different models.

    Parameters
    ----------
    loading, options
        As for :func:`spark_audit.checkpoints.open.open_checkpoint`.
    """
    loading, seen = replace(loading or Loading(), **options), Inspection(source)
    seen.source = printable(source)
    try:
        with quiet(), at(source):
            made = read_headers(source, loading)
            seen.source, seen.format = made.source, made.format
            seen.stages, seen.notes = made.stages, made.notes
            seen.facts |= _facts(made)
            _look(made, seen)
    except SparkError as error:
        seen.problems = (str(error),)
    return seen


def _look(made: Checkpoint, seen: Inspection) -> None:
    """Add facts and notes as they come, and open what is small."""
    loading, facts = made.loading, seen.facts
    made = with_base(made)
    base = made.on
    model, architecture = base.skeleton(), base.architecture
    facts["context"] = str(architecture.max_positions or "not stated")
    if model is None:
        facts["weights checked"] = "no (own code or quantised)"
        rows = getattr(architecture.text, "vocab_size", 0)
    else:
        facts["architecture"] = type(model).__name__
        facts["parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
        rows = head_rows(model)
    *_, notes = made.put_on(None if model is None else AdapterHost(model))
    if NOISE_ADDED in notes:
        embeddings = model.get_input_embeddings().weight
        facts["frozen noise"] = f"on input embeddings, {len(embeddings)} rows"
    facts["memory"] = base.check_room(model)
    tokenizer, digest, more = tokenizer_of(made, {})
    usable = usable_rows(tokenizer, rows)
    more += remarks(architecture, model, tokenizer, usable)
    seen.notes += (*notes, *more)
    facts["vocabulary"] = f"{int(usable.sum())} tokens in {rows} rows"
    facts["tokenizer_sha256"] = digest
    if made.weights and loading.base and not same_path(loading.base, made.where):
        seen.notes += (NOT_VERIFIABLE,)
        seen.notes += (_compared(made, tokenizer),)
    size = base.full.size + (made.adapter.size if made.adapter else 0)
    # What is quantised may open on a GPU only, which others may be using.
    if size <= SMALL_BYTES and not architecture.quantised:
        plain = replace(loading, device="cpu", device_map=None, include_base=False)
        for _ in Opening([Spec("opened", (made.where,))], plain).each():
            pass
        seen.opened = True


def _facts(made: Checkpoint) -> dict[str, str]:
    """What the headers say, in the order it is printed."""
    facts: dict[str, str] = {}
    if made.adapter is not None:
        config = made.adapter.config
        facts["adapter"] = shown(config.get("peft_type"))
        for key in ("r", "lora_alpha", "use_dora", "use_rslora", "num_virtual_tokens"):
            if config.get(key):
                facts[key] = shown(config[key])
        if targets := config.get("target_modules"):
            listed = targets if isinstance(targets, list) else [targets]
            facts["target_modules"] = ", ".join(sorted(map(shown, listed))[:8])
    if made.weights is None and made.base is not None:
        facts["base"] = printable(made.base)
    names = [path.name for part in made.parts for path in part.files]
    size = sum(part.size for part in made.parts) / 1e6
    facts["files"] = f"{', '.join(names[:4])} ({size:.1f} MB)"
    return facts


def _compared(item: Checkpoint, tokenizer: Any) -> str:
    """Refuse full weights that were not trained from the base that was given.

    Whether they were is written down nowhere: architecture, vocabulary, shapes and the
    tokenizers are compared, each as the configuration says (weights that do not fit
    their own are refused when they are put together).

    Parameters
    ----------
    tokenizer
        That of the checkpoint; compared where the base brings one.

    Returns
    -------
    str
        What is the same, in words.

    Raises
    ------
    CheckpointError
        With everything that differs.
    """
    assert item.base is not None
    trusted = item.loading.trust_remote_code
    with at(item.base):
        folder = item.loading.locate(item.base)
        folder = folder if folder.is_dir() else folder.parent
        if not (folder / "config.json").exists():
            raise CheckpointError(
                "the base has no config.json to compare with",
                fix="give the folder of the whole model by --base",
            )
        config = read_json(folder / "config.json")
        both = item.architecture, read_architecture(folder, config, trusted)
        tokenizers = [tokenizer]
        if has_tokenizer(folder):
            tokenizers.append(read_tokenizer(folder, trust_remote_code=trusted)[0])
    facts = {
        "architecture": [
            one.cls.__name__
            if one.cls is not None
            else shown((said.get("architectures") or ["own code"])[0])
            for one, said in zip(both, (item.full.config, config), strict=True)
        ],
        "vocabulary": [f"{getattr(one.text, 'vocab_size', 0)} rows" for one in both],
    }
    # Another architecture or vocabulary has other tensors anyhow.
    more, alike = "", all(here == there for here, there in facts.values())
    if len(tokenizers) > 1:
        facts["tokenizer"] = [
            f"{len(one)} tokens, {tokenizer_sha256(one)[:12]}" for one in tokenizers
        ]
    if alike and all(one.cls is not None for one in both):
        ours, theirs = (
            {name: str(list(t.shape)) for name, t in one.empty().state_dict().items()}
            for one in both
        )
        names = ours.keys() | theirs.keys()
        odd = sorted(name for name in names if ours.get(name) != theirs.get(name))
        facts[f"shape of {odd[0]}" if odd else "shapes"] = [
            one.get(odd[0], "none") if odd else "" for one in (ours, theirs)
        ]
        more = f" and of {len(odd) - 1} tensors more" if len(odd) > 1 else ""
    name = printable(item.base)
    differs = [
        f"{what} ({here} here, {there} in {name})"
        for what, (here, there) in facts.items()
        if here != there
    ]
    if differs:
        raise CheckpointError(
            f"was not trained from the base: {', '.join(differs)}{more}",
            fix="give the one that it was trained from by --base",
        )
    *first, last = facts
    return f"{', '.join(first)} and {last} are those of {name}"
