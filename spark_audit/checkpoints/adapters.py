"""Adapters: which of them are opened, O-LoRA's way of LoRA, one base and those on it.

Some of PEFT's types and fields open a second model or a file, import a package, or put
a string of the file into a regular expression. So a type is listed here when its code
was read (PEFT 0.21), with the fields that shape what it computes and a check for each;
fields that matter before or during training only are left at PEFT's own values;
whatever else is set is refused.

On the base adapters are attached strictly, and switched. Nothing is merged: merging in
half precision shifts logits, and a merged base could not be shared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import regex
import torch
from pydantic import ConfigDict, Field, ValidationError, create_model

from spark_audit.checkpoints import weight_files
from spark_audit.checkpoints.derived import Rounded, swapped
from spark_audit.checkpoints.loaded import entry_device, max_positions, offload_hook
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint


LARGEST = 10**6
_LAYERS = 1000
_PATTERNS = 1024
_LETTERS = 2000
_SECONDS = 2.0
_FAILURES = (TimeoutError, re.error, regex.error, RecursionError, OverflowError)
# Words of PEFT's that are no regular expression.
_ALL_LINEAR = "all-linear"
PROBE_LENGTH = 12
# Initialisations that leave the base's weights as they are: every tensor is read from
# the file, so they change nothing.
LEAVES_BASE = ("gaussian", "orthogonal", "eva")
OTHER_BASE = "give the model that it was trained on by --base"
NOT_TRAINED = "check that this is the folder that training saved last"
_SAVED = "give the adapter_config.json that was saved with these weights"


_Count = Annotated[int, Field(ge=1, le=LARGEST)]
_Scale = Annotated[float, Field(gt=0, le=LARGEST)]
_Rate = Annotated[float, Field(ge=0, le=1)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Index = Annotated[int, Field(ge=0, le=2**31)]
_Name = Annotated[str, Field(pattern=r"\A[\w.-]{1,200}\Z")]
_Key = Annotated[str, Field(pattern=r"\A\^?(\.\*)?[\w.\\-]{1,200}\$?\Z")]
_Names = Annotated[list[_Name], Field(max_length=_LAYERS)]
_Indices = Annotated[list[_Index], Field(max_length=_LAYERS)]
_Tokens = Annotated[list[_Index], Field(max_length=LARGEST)]
_Targets = Annotated[str, Field(min_length=1, max_length=_LETTERS)] | list[str]
_Start = Annotated[
    str,
    Field(pattern=rf"\A({'|'.join(LEAVES_BASE)}|pissa(_niter_\d{{1,2}})?|olora)\Z"),
]
# Of forks there are tasks of other names; these are none of language modelling.
_Task = Annotated[
    str, Field(pattern=r"\A(?!(SEQ_CLS|TOKEN_CLS|QUESTION_ANS|FEATURE_EXTRACTION)\Z)")
]
_Few = Field(max_length=_PATTERNS)

_WITH_MODULES = ("LORA", "IA3", "LOHA", "LOKR", "VERA")
OPENED = (*_WITH_MODULES, "OSF", "PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")
"""Types that are opened; with ``modules_to_save`` only the first ones are."""

_OPENED_VALUES: tuple[tuple[Any, str], ...] = (
    (_Targets, "target_modules exclude_modules feedforward_modules"),
    (_Names, "modules_to_save target_parameters"),
    (_Count, "r num_virtual_tokens token_dim num_attention_heads"),
    (_Scale, "alpha lora_alpha d_initial"),
    (_Rate, "lora_dropout rank_dropout module_dropout vera_dropout"),
    (_Index, "projection_prng_key"),
    (bool, "fan_in_fan_out use_rslora use_dora lora_bias ensure_weight_tying"),
    (bool, "use_effective_conv2d decompose_both rank_dropout_scale"),
    (bool, "save_projection"),
    (bool | _Start, "init_lora_weights"),
    (Literal["none", "all", "lora_only", "vera_only"], "bias"),
    (Annotated[int, Field(ge=0, le=LARGEST)] | _Indices, "layers_to_transform"),
    (_Name | _Names, "layers_pattern"),
    (Annotated[dict[_Key, _Count | _Share], _Few], "rank_pattern"),
    (Annotated[dict[_Key, _Scale], _Few], "alpha_pattern"),
    (_Tokens | dict[_Name, _Tokens], "trainable_token_indices"),
    (Literal[-1] | _Count, "decompose_factor"),
    (_Count | _Share, "effective_rank"),
    (Literal[1], "num_transformer_submodules"),
    (Annotated[int, Field(ge=1, le=_LAYERS)], "num_layers"),
    (_Task, "task_type"),
)
_Opened: Any = create_model(
    "_Opened",
    __config__=ConfigDict(strict=True, regex_engine="python-re"),
    **dict[str, Any](
        (name, (kind, None)) for kind, names in _OPENED_VALUES for name in names.split()
    ),
)
"""The fields that are opened, with their values."""

# In turn: of forks and old versions; names, which nobody follows, and what loading
# sets by itself; how training began, or an encoder that only training runs.
WITHOUT_EFFECT = frozenset(
    """
    r_sum save_loranew
    auto_mapping base_model_name_or_path inference_mode megatron_core peft_type
    peft_version revision
    encoder_dropout encoder_hidden_size encoder_num_layers
    encoder_reparameterization_type eva_config init_ia3_weights init_weights
    loftq_config prefix_projection prompt_tuning_init prompt_tuning_init_text
    tokenizer_kwargs tokenizer_name_or_path
    """.split()
)


def adapter_config(raw: Mapping[str, Any]) -> Any:
    """PEFT's configuration object for the content of adapter_config.json.

    Raises
    ------
    CheckpointError
        For a type that is not opened, a task that is no causal language modelling, or a
        field that is set and neither opened nor without effect.
    """
    import peft
    import peft.mapping

    types: Any = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING
    kind = str(raw.get("peft_type"))
    merge = "merge it where it was trained, and give the merged folder"
    if kind not in OPENED:
        what = f"adapters of the type {shown(kind)!r} are not opened (only "
        raise CheckpointError(f"{what}{', '.join(OPENED)})", fix=merge)
    cls = types[kind]
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    kept = {}
    for name, value in raw.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        without = name == "modules_to_save" and kind not in _WITH_MODULES
        if name in defaults and name in _Opened.model_fields and not without:
            kept[name] = value
        elif value not in (False, "", [], {}, defaults.get(name)):
            what = f"sets {shown(name)}, which is not opened, or unknown to PEFT "
            what = f"adapter_config.json {what}{peft.__version__}"
            raise CheckpointError(what, fix=merge)
    try:
        _Opened.model_validate(kept)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        # A number may be said; anything else is somebody's text.
        said = f" {kept[name]}" if type(kept[name]) in (int, float, bool) else ""
        what = f"gives {name} a value{said} that is not opened"
        raise CheckpointError(f"adapter_config.json {what}", fix=_SAVED) from error
    if kept.get("init_lora_weights") in LEAVES_BASE:
        kept["init_lora_weights"] = True
    kept |= {"inference_mode": True, "task_type": "CAUSAL_LM"}
    with foreign("adapter_config.json is refused by PEFT"):
        return cls(**cls.check_kwargs(**kept))


def prepared(
    raw: dict[str, Any], state: weight_files.State
) -> tuple[dict[str, Any], weight_files.State, list[str]]:
    """Configuration and tensors as they are attached, with notes.

    Raises
    ------
    CheckpointError
        If a tensor is empty or holds other than floating-point numbers, the
        configuration has a field that is not opened, or O-LoRA's parts do not fit;
        also for NaN and for LoRA without effect.
    """
    weight_files.check_floats(state)
    adapter_config(raw)
    raw, state, notes = fold_olora(raw, state)
    weight_files.check_filled(state)
    weight_files.check_finite(state)
    of_b = re.compile(r"\.lora_(embedding_)?B(\.weight)?$")
    parts = [state[key] for key in state if of_b.search(key)]
    if parts and not any(map(torch.count_nonzero, parts)):
        what = "every lora_B is zero: the adapter is untrained, and equals its base"
        raise CheckpointError(what, fix=NOT_TRAINED)
    if raw.get("peft_type") == "VERA" and raw.get("save_projection") is False:
        note = "VeRA without its projections: they are drawn again from its key, which "
        notes.append(f"{note}another version of torch or PEFT may do otherwise")
    return raw, state, notes


def changes_base(raw: Mapping[str, Any]) -> bool:
    """Whether attaching the adapter changes the base's own weights.

    Such an adapter gets a base of its own, never the shared one.
    """
    start = raw.get("init_lora_weights", True)
    replaced = isinstance(start, str) and start.lower() not in LEAVES_BASE
    return replaced or raw.get("bias") not in (None, "none")


def fold_olora(
    raw: dict[str, Any], state: weight_files.State
) -> tuple[dict[str, Any], weight_files.State, list[str]]:
    """O-LoRA's adapters as plain LoRA: new parts joined to old ones, rank from shapes.

    O-LoRA concatenates the low-rank parts of all tasks and keeps the configuration's
    ``r`` and ``lora_alpha``; its scale is ``lora_alpha / r`` at any width. An adapter
    of width m r is therefore loaded as rank m r with alpha m ``lora_alpha``. Parts that
    were saved apart (``loranew_A``, ``loranew_B``) are added. O-LoRA, and TRACE's copy
    of it, write the width of the joined parts down (``r_sum``): with another one, the
    configuration is not that of these weights. Without one, whole multiples are taken
    as O-LoRA's and a note says so; ``r = 1`` is not, for any width is a multiple of it.

    Returns
    -------
    tuple
        Configuration, tensors and notes; the given ones where nothing is to be done.
    """
    if str(raw.get("peft_type")) != "LORA":
        return raw, state, []
    folded, notes = dict(state), []
    for key in (new := [key for key in state if ".loranew_" in key]):
        old = key.replace(".loranew_", ".lora_")
        parts = [folded.pop(name) for name in (old, key) if name in folded]
        with foreign(f"tensor {shown(key)} does not fit {shown(old)}"):
            folded[old] = torch.cat(parts, dim=0 if ".loranew_A" in key else 1)
    if new:
        notes = [f"O-LoRA: {len(new)} loranew tensors added to the earlier ones"]
    found, rank = _widths(folded), raw.get("r") or 8
    if len(found) == 1 and not found & {0, rank} and not raw.get("rank_pattern"):
        raw, note = _widened(raw, found.pop(), _widths(state))
        notes.append(note)
    return raw, folded, notes


def _widened(
    raw: dict[str, Any], width: int, earlier: set[int]
) -> tuple[dict[str, Any], str]:
    """The configuration at the width of all parts, and a note; ``earlier`` widths."""
    rank, alpha = raw.get("r") or 8, raw.get("lora_alpha", 8)
    written, why = raw.get("r_sum"), "from its r_sum"
    joined = [*earlier] == [written] and width - min(earlier) in (0, rank)
    if written is None:
        why = "only by its width, as it has no r_sum: if it is "
        why += "not of O-LoRA, give its adapter_config.json"
        joined = rank > 1
    if not joined or width % rank or alpha is None or raw.get("use_dora"):
        what = f"lora_A has rank {width}, adapter_config.json says r={raw.get('r')}"
        raise CheckpointError(what, fix=f"{_SAVED} (that of O-LoRA says r_sum, too)")
    times = width // rank
    # rsLoRA scales by the square root of the rank.
    alpha *= math.sqrt(times) if raw.get("use_rslora") else times
    return {**raw, "r": width, "lora_alpha": alpha}, (
        f"O-LoRA: rank {width} = {times} x {rank}, loaded with alpha {alpha:g} (the "
        f"scale stays alpha/r of the configuration, {why})"
    )


def _widths(state: weight_files.State) -> set[int]:
    return {state[k].shape[:1].numel() for k in state if k.endswith(".lora_A.weight")}


def resolve(config: Any, modules: Sequence[str]) -> None:
    """Put names of the base's modules where PEFT would match patterns of the file.

    A regular expression can take longer than the universe lasts; matched here, under a
    clock, PEFT sees none. Names that no module ends with are left out.

    Raises
    ------
    CheckpointError
        If an expression is malformed, takes too long, or matches nothing.
    """
    paths = [name.split(".") for name in modules]
    known = {".".join(path[i:]) for path in paths for i in range(len(path))}
    for field in ("target_modules", "exclude_modules", "feedforward_modules"):
        value = getattr(config, field, None)
        if value and not isinstance(value, str) and field != "feedforward_modules":
            setattr(config, field, set(value) & known or set(list(value)[:1]))
        if not isinstance(value, str) or value == _ALL_LINEAR:
            continue
        what, end = "matches no module of the base", time.monotonic() + _SECONDS
        try:
            re.compile(value)  # PEFT's language: the other one has recursion
            match = regex.compile(value).fullmatch
            found = set()
            for name in modules:
                if match(name, timeout=max(end - time.monotonic(), 1e-3)):
                    found.add(name)
        except _FAILURES as error:
            found, what = set(), f"cannot be matched ({type(error).__name__})"
        if not found and field != "exclude_modules":
            what = f"what {field} gives {what} ({shown(value, 80)})"
            fix = "list the modules' names"
            raise CheckpointError(f"adapter_config.json: {what}", fix=fix)
        setattr(config, field, found)


# --- on a base ------------------------------------------------------------------------


class AdapterHost:
    """A base module and its adapters; exactly one of them, or none, is on at a time.

    Parameters
    ----------
    model
        The base, in evaluation mode.
    runs
        Whether it computes, as none does on the meta device: then it is seen to work.
    """

    def __init__(self, model: Any, *, runs: bool = True) -> None:
        self.model = model
        self.ids: torch.Tensor | None = None
        self.peft: Any = None
        self.released = False
        # Before any adapter is among them.
        self.parameters = model.num_parameters()
        # The first is the model itself, which has no name.
        _, *self._modules = dict(model.named_modules())
        if runs:
            self._probe()

    def _probe(self) -> None:
        """Run the module on two rows of tokens that differ in the last one.

        Raises
        ------
        CheckpointError
            If it reads ahead, or as :func:`logits`.
        """
        rows = len(self.model.get_input_embeddings().weight)
        n = min(PROBE_LENGTH, max_positions(self.model.config) or PROBE_LENGTH)
        row = torch.linspace(0, rows - 1, n).long()
        other = row.clone()
        other[-1] = row[0] if row[0] != row[-1] else rows // 2
        self.ids = torch.stack([row, other])
        self._plain = plain = logits(self.model, self.ids)
        if not torch.allclose(plain[0, :-1], plain[1, :-1], rtol=1e-2, atol=1e-2):
            what = "the model reads ahead: a later token changes earlier predictions"
            raise CheckpointError(what, fix="give a causal language model")

    def attach(self, item: Checkpoint) -> tuple[str, dict[str, Any], list[str]]:
        """Attach an adapter; return its name here, its configuration, and notes.

        Where it changes the base's own weights, nothing else may use this host.

        Raises
        ------
        CheckpointError
            As :func:`prepared`, if a tensor is missing, unexpected or of another shape,
            or the adapter changes nothing.
        """
        from peft import PeftModelForCausalLM, set_peft_model_state_dict

        raw, state, notes = prepared(item.config, item.read())
        # Of fixed width: no name is part of another's, nor of a module's.
        name = f"adapter{0 if self.peft is None else len(self.peft.peft_config):04d}"
        meta, replaced = self.ids is None, changes_base(raw)
        # How the base is replaced takes its weights; shapes do not.
        start = {"init_lora_weights": True} if meta and replaced else {}
        config = adapter_config({**raw, **start})
        resolve(config, self._modules)
        unfit = f"the adapter does not fit the base {item.on.source}"
        with (
            foreign(unfit, fix=OTHER_BASE),
            torch.random.fork_rng(devices=[]),
            torch.device("meta") if meta else contextlib.nullcontext(),
        ):
            if self.peft is None:
                self.peft = PeftModelForCausalLM(
                    self.model, config, adapter_name=name, low_cpu_mem_usage=meta
                )
                if config.is_prompt_learning:
                    _align(self.peft)
            else:
                self.peft.add_adapter(name, config, low_cpu_mem_usage=meta)
        self.peft.eval().requires_grad_(False)
        notes += self._leave_copies(name, state)
        weight_files.refuse_differences(
            {key: tensor.shape for key, tensor in state.items()},
            {key: tensor.shape for key, tensor in self._tensors(name).items()},
            tensor=f"does not fit the base {item.on.source}: adapter tensor",
            fix=f"{OTHER_BASE}, with the adapter_config.json of these weights, or "
            "merge adapter and base where they were trained, and give the result",
        )
        if self.ids is not None:
            materialise(self.peft, name)
            with foreign("PEFT cannot load the adapter"):
                set_peft_model_state_dict(self.peft, state, adapter_name=name)
            for key, tensor in self._tensors(name).items():
                if not torch.equal(tensor, state[key].to(tensor)):
                    what = f"adapter tensor {key} was not taken over by PEFT"
                    raise CheckpointError(what)
            self._check_effect(name, self.ids, replaced)
        return name, raw, notes

    def _tensors(self, name: str) -> weight_files.State:
        """What PEFT would save of an adapter."""
        from peft import get_peft_model_state_dict

        options: Any = {"adapter_name": name, "save_embedding_layers": False}
        return dict(get_peft_model_state_dict(self.peft, **options))

    def _leave_copies(self, name: str, state: weight_files.State) -> list[str]:
        """Leave out copies of the base's embeddings, which PEFT may save; notes."""
        own, notes = {}, []
        for path, parameter in self.peft.get_base_model().named_parameters():
            own[path.replace(".base_layer.", ".")] = parameter
        for key in sorted(state.keys() - self._tensors(name)):
            of_base = key.removeprefix(weight_files.PREFIX).replace(".base_layer.", ".")
            there: Any = own.get(of_base)
            fits = there is not None and there.shape == state[key].shape
            if fits and (there.is_meta or torch.equal(there, state[key].to(there))):
                del state[key]
                notes.append(f"{of_base}: a copy of the base's, unused")
        return notes

    def _check_effect(self, name: str, ids: torch.Tensor, replaced: bool) -> None:
        with self.using(None):
            off = logits(self.model, ids)
        if not (replaced or torch.allclose(off, self._plain, rtol=1e-4, atol=1e-4)):
            what = "attaching the adapter changed the base's own weights"
            raise CheckpointError(what, fix="merge it and give the merged folder")
        with self.using(name):
            on = logits(self.peft, ids, whose="the model with the adapter")
        if torch.equal(on, self._plain):
            what = "the adapter changes nothing: the model's output is its base's"
            raise CheckpointError(what, fix=NOT_TRAINED)

    @contextlib.contextmanager
    def using(
        self,
        name: str | None,
        *,
        noise: torch.Tensor | None = None,
        weights: Callable[[], Rounded] | None = None,
    ) -> Iterator[None]:
        """Exactly this adapter on, or none: then ``model`` is as without any.

        Parameters
        ----------
        noise
            What is added to input embeddings.
        weights
            What makes those in the place of the module's own, called with all else as
            it will be.
        """
        if self.released:
            msg = "this checkpoint was released when the next one was loaded"
            raise RuntimeError(msg)
        with contextlib.ExitStack() as stack:
            if name is not None:
                self.peft.set_adapter(name, inference_mode=True)
            elif self.peft is not None:
                stack.enter_context(self.peft.disable_adapter())
            if noise is not None:
                stack.enter_context(input_noise(self.model, noise))
            if weights is not None:
                stack.enter_context(swapped(weights()))
            yield

    def release(self) -> None:
        """Free the module, whoever still holds a checkpoint that was opened on it."""
        self.released = True
        for layer in self.model.modules():
            hook = offload_hook(layer)
            if getattr(hook, "weights_map", None) is not None:
                hook.weights_map = None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def _align(peft: Any) -> None:
    """Leave a prompt's virtual tokens out of the logits.

    PEFT puts them in front of the input, and its logits are longer by them; whoever
    scores wants one row per token that was fed, or the positions in a tensor
    ``logits_to_keep``.
    """
    inner = peft.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        config, keep = peft.active_peft_config, kwargs.get("logits_to_keep")
        longer = str(config.peft_type.value) != "PREFIX_TUNING"
        n = int(config.num_virtual_tokens) if longer else 0
        if n and keep is not None:
            # Positions that are counted from the end stay where they are.
            kwargs["logits_to_keep"] = torch.where(keep < 0, keep, keep + n)
        output = inner(*args, **kwargs)
        if n and keep is None:
            output.logits = output.logits[:, n:]
        return output

    peft.forward = forward


@contextlib.contextmanager
def input_noise(
    model: Any, noise: torch.Tensor, *, by_token: bool = True
) -> Iterator[None]:
    """Add noise to *input* embeddings.

    Parameters
    ----------
    noise
        One row a token, shape ``(V, H)``; else one a position, ``(B, T, H)``. It comes
        behind hooks that are there already. Tied output heads do not see it: it is
        added to what the embedding gives, not to its weights. The sum is taken in
        float32 or wider and rounded once.
    """

    def add(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        # Only the rows that are asked for: a large vocabulary's noise is gigabytes.
        rows = noise[args[0].to(noise.device)] if by_token else noise
        rows = rows.to(output.device)
        wide = torch.promote_types(output.dtype, rows.dtype)
        return (output.to(wide) + rows).to(output.dtype)

    with model.get_input_embeddings().register_forward_hook(add):
        yield


def logits(model: Any, ids: torch.Tensor, *, whose: str = "the model") -> torch.Tensor:
    """Shape ``(2, n, V)`` float32: what a model says on the probe.

    Raises
    ------
    CheckpointError
        If it cannot be run on token ids alone, or gives NaN or infinity.
    """
    device = entry_device(model)
    with foreign("the model cannot be run"), torch.inference_mode():
        out: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    if not bool(torch.isfinite(out).all()):
        narrow = out.dtype != torch.float32
        fix = "its dtype may be too narrow: try --dtype float32" if narrow else None
        raise CheckpointError(f"{whose} gives NaN or infinite logits", fix=fix)
    return out.float().clone()


def materialise(model: Any, adapter: str) -> None:
    """Give an adapter memory where the layers that it is on compute.

    PEFT puts it where their weights are, which is nowhere while they are on disk: these
    layers compute in one place. The numbers are anybody's until the adapter's are
    filled in.
    """
    hooks = [hook for layer in model.modules() if (hook := offload_hook(layer))]
    device = next((one.execution_device for one in hooks if one.offload), "cpu")
    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.is_meta and adapter in (name, *path.split(".")):
                empty = torch.empty_like(parameter, device=device)
                layer._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
