"""Attach adapters to a base strictly, and switch between them.

Adapters are never merged: a merge in half precision shifts logits, and a merged base
could not be shared.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spark_audit.checkpoints import tables, tensor_checks
from spark_audit.checkpoints.adapter_config import (
    NOT_TRAINED,
    adapter_config,
    changes_base,
    prepared,
    stable_fields,
)
from spark_audit.checkpoints.adapter_modules import resolve
from spark_audit.checkpoints.checkpoint import entry_device, max_positions, offload_hook
from spark_audit.checkpoints.derived import ReplacedWeights, replaced_weights
from spark_audit.checkpoints.layer_names import front_of_decoder, named_as_in_base
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

    from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint

PROBE_LENGTH = 12
"""Tokens on which a module is run to see that it, and each adapter, has an effect."""
ATTACHED_PER_FORM = 2
"""Adapters of one form that are attached on the meta device. What fits once may not fit
a second time on the same module, and what fits twice fits again."""
OTHER_BASE = "give the model that it was trained on by --base"
GATHER_PARTS = (
    "if it is the part of one process, save it whole: "
    "accelerator.unwrap_model(model).save_pretrained(FOLDER, "
    "state_dict=accelerator.get_state_dict(model)); else give the model that it was "
    "trained on by --base"
)


@dataclass(frozen=True)
class AttachedAdapter:
    """An adapter on its host.

    Attributes
    ----------
    name
        Name by which the host switches it.
    config
        Its configuration as it was attached.
    notes
        Notes for readers of the report.
    """

    name: str
    config: dict[str, object]
    notes: list[str]


class AdapterHost:
    """A base module with its adapters, of which one or none is on at a time.

    Attributes
    ----------
    probe_ids
        Tokens of the probe, shape ``(2, n)``; ``None`` on the meta device, where
        nothing is computed.
    peft
        PEFT's model around the base, once an adapter was attached.
    parameters
        Number of parameters of the base.

    Parameters
    ----------
    model
        The base, in evaluation mode.
    runs
        Whether the base computes, which is tested; on the meta device it does not.
    """

    def __init__(self, model: PreTrainedModel, *, runs: bool = True) -> None:
        self.model = model
        self.probe_ids: torch.Tensor | None = None
        self.peft: Any = None
        self.released = False
        # Form of an adapter -> names of those that were attached on the meta device.
        self._names_of_form: dict[str, list[str]] = {}

        # Counted and listed before any adapter adds to them.
        self.parameters = model.num_parameters()
        modules = dict(model.named_modules())
        self._module_names = [name for name in modules if name]
        self._decoder_front = front_of_decoder(modules, model.get_input_embeddings())
        if runs:
            self._probe()

    @property
    def is_on_meta(self) -> bool:
        """Return whether the base is on the meta device, where nothing is computed."""
        return self.probe_ids is None

    def _probe(self) -> None:
        """Run the module on two rows of tokens that differ only in the last one.

        Raises
        ------
        CheckpointError
            If the module reads ahead, or as for :func:`logits`.
        """
        n_rows = len(self.model.get_input_embeddings().weight)
        length = min(PROBE_LENGTH, max_positions(self.model.config) or PROBE_LENGTH)
        ids = torch.linspace(0, n_rows - 1, length).long()  # (n,)
        changed = ids.clone()
        changed[-1] = ids[0] if ids[0] != ids[-1] else n_rows // 2
        self.probe_ids = torch.stack([ids, changed])  # (2, n)
        self._base_logits = logits(self.model, self.probe_ids)  # (2, n, V)

        # A causal model gives equal logits before the token that differs.
        before_change = self._base_logits[:, :-1]
        if not torch.allclose(before_change[0], before_change[1], rtol=1e-2, atol=1e-2):
            problem = "the model reads ahead: a later token changes earlier predictions"
            raise CheckpointError(problem, fix="give a causal language model")

    def config_of(self, name: str) -> PeftConfig:
        """Return PEFT's configuration of an attached adapter."""
        config: PeftConfig = self.peft.peft_config[name]
        return config

    def attach(self, checkpoint: StoredCheckpoint) -> AttachedAdapter:
        """Attach an adapter, and check that it changes the result of the base.

        If it changes the base's own weights, this host must not be shared. Numbers are
        checked for each adapter. On the meta device, where a module has only shapes,
        adapters of one form (:func:`form_of`) share the places of the first two.

        Raises
        ------
        CheckpointError
            As :func:`~spark_audit.checkpoints.adapter_config.prepared`, if a tensor is
            missing, unexpected or of another shape, or the adapter changes nothing.
        """
        adapter = prepared(checkpoint.config, checkpoint.read())
        named = named_as_in_base(
            adapter.config,
            adapter.state,
            modules=self._module_names,
            decoder_front=self._decoder_front,
        )
        config = named.config
        notes = [*adapter.notes, *named.notes]
        own_tables = {
            named.new_keys.get(key, key): note
            for key, note in checkpoint.own_tables.items()
        }

        form = form_of(config, named.state)
        attached_names = self._names_of_form.get(form, [])
        if not own_tables and len(attached_names) == ATTACHED_PER_FORM:
            return AttachedAdapter(attached_names[-1], config, notes)

        # Names have a fixed width, so that none is a part of another or of a module's
        # name.
        n_attached = 0 if self.peft is None else len(self.peft.peft_config)
        name = f"adapter{n_attached:04d}"
        base_source = checkpoint.full_weights.source
        unfit = f"the adapter does not fit the base {base_source}"

        # First the base gets its new rows, and then the adapter gets its place on it.
        with foreign(unfit, fix=OTHER_BASE), self._creating_parameters():
            tables.add_rows(self.model, named.state, own_tables)
        self._inject(name, config, unfit)
        needed = self._tensors(name)
        # Whether other tensors belong to the base can depend on their numbers.
        is_adapter_alone = named.state.keys() == needed.keys() and not own_tables
        notes += tables.move_into_base(self.peft, named.state, needed, own_tables)
        with foreign(unfit, fix=OTHER_BASE):
            state = self._converted(name, named.state)
        self._refuse_differences(name, state, base_source)

        if self.probe_ids is not None:
            self._fill(name, state)
            replaces_base = changes_base(config) or bool(own_tables)
            self._check_effect(name, self.probe_ids, replaces_base=replaces_base)
        elif is_adapter_alone:
            self._names_of_form[form] = [*attached_names, name]
        return AttachedAdapter(name, config, notes)

    @contextlib.contextmanager
    def _creating_parameters(self) -> Iterator[None]:
        """Create parameters on the meta device if the module is there.

        PEFT draws random numbers for them, which must not change those of the caller.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            if self.is_on_meta:
                stack.enter_context(torch.device("meta"))
            yield

    def _inject(self, name: str, raw_config: dict[str, object], unfit: str) -> None:
        """Put an adapter with this configuration on the module, without its numbers."""
        from peft import PeftModelForCausalLM

        if self.is_on_meta and changes_base(raw_config):
            # PiSSA and the like would need weights, while this step needs only shapes.
            raw_config = {**raw_config, "init_lora_weights": True}
        config = adapter_config(raw_config)
        resolve(config, self._module_names, self.model)

        # Repeated layers are copied, which PEFT cannot do for empty ones.
        is_empty = self.is_on_meta and not raw_config.get("layer_replication")
        with foreign(unfit, fix=OTHER_BASE), self._creating_parameters():
            if self.peft is None:
                self.peft = PeftModelForCausalLM(
                    self.model, config, adapter_name=name, low_cpu_mem_usage=is_empty
                )
                if config.is_prompt_learning:
                    _remove_virtual_tokens(self.peft)
            else:
                self.peft.add_adapter(name, config, low_cpu_mem_usage=self.is_on_meta)
        self.peft.eval().requires_grad_(False)

    def _tensors(self, name: str) -> tensor_checks.State:
        """Return the tensors of an adapter that PEFT would save."""
        from peft import get_peft_model_state_dict

        # PEFT's types do not allow a bool for the embeddings.
        read_state: Any = get_peft_model_state_dict
        state = read_state(self.peft, adapter_name=name, save_embedding_layers=False)
        return dict(state)

    def _converted(self, name: str, state: tensor_checks.State) -> tensor_checks.State:
        """Return the tensors under the names of this version of transformers.

        Up to version 4 each expert was a module of its own. PEFT joins the LoRA of
        experts as transformers joins their weights.
        """
        from peft.utils import transformers_weight_conversion as conversion

        convert: Any = conversion.convert_peft_adapter_state_dict_for_transformers
        config = self.config_of(name)
        return dict(convert(self.peft, config, state, adapter_name=name))

    def _refuse_differences(
        self, name: str, state: tensor_checks.State, base_source: str
    ) -> None:
        """Refuse a file with other tensors than the adapter has on this base.

        Raises
        ------
        CheckpointError
            Names the tensor, and what to give instead.
        """
        file_shapes = {key: tensor.shape for key, tensor in state.items()}
        needed_shapes = {
            key: tensor.shape for key, tensor in self._tensors(name).items()
        }
        remedy = (
            f"{OTHER_BASE}, with the adapter_config.json of these weights, or "
            "merge adapter and base where they were trained, and give the result"
        )
        if is_part(file_shapes, needed_shapes):
            remedy = GATHER_PARTS
        tensor_checks.refuse_differences(
            file_shapes,
            needed_shapes,
            noun=f"does not fit the base {base_source}: adapter tensor",
            fix=remedy,
        )

    def _fill(self, name: str, state: tensor_checks.State) -> None:
        """Fill an adapter with the numbers of its file; check that none is missing."""
        from peft import set_peft_model_state_dict

        materialise(self.peft, name)
        with foreign("PEFT cannot load the adapter"):
            set_peft_model_state_dict(self.peft, state, adapter_name=name)
        for key, tensor in self._tensors(name).items():
            if not torch.equal(tensor, state[key].to(tensor)):
                raise CheckpointError(f"PEFT has not loaded the adapter's tensor {key}")

    def _check_effect(
        self, name: str, ids: torch.Tensor, *, replaces_base: bool
    ) -> None:
        """Refuse an adapter that changes nothing, or that changes the shared base."""
        if not replaces_base:
            with self.using(None):
                logits_off = logits(self.model, ids)  # (2, n, V)
            if not torch.allclose(logits_off, self._base_logits, rtol=1e-4, atol=1e-4):
                problem = "attaching the adapter changed the base's own weights"
                raise CheckpointError(
                    problem, fix="merge it and give the merged folder"
                )

        with self.using(name):
            logits_on = logits(self.peft, ids, whose="the model with the adapter")
        # The adapter may bring a larger vocabulary.
        n_common = min(logits_on.shape[-1], self._base_logits.shape[-1])
        if torch.equal(logits_on[..., :n_common], self._base_logits[..., :n_common]):
            problem = "the adapter changes nothing: the model's output is its base's"
            raise CheckpointError(problem, fix=NOT_TRAINED)

    @contextlib.contextmanager
    def using(
        self,
        name: str | None,
        *,
        noise: torch.Tensor | None = None,
        weights: Callable[[], ReplacedWeights] | None = None,
    ) -> Iterator[None]:
        """Switch on exactly this adapter, or none: then ``model`` is the plain base.

        Parameters
        ----------
        noise
            Added to input embeddings, shape ``(rows, width)``.
        weights
            Returns weights to use in place of the module's own. It is called when
            everything else is switched.

        Raises
        ------
        RuntimeError
            If the module was freed.
        """
        if self.released:
            message = "this checkpoint was released when the next one was loaded"
            raise RuntimeError(message)

        with contextlib.ExitStack() as stack:
            if name is not None:
                self.peft.set_adapter(name, inference_mode=True)
            elif self.peft is not None:
                stack.enter_context(self.peft.disable_adapter())
            if noise is not None:
                stack.enter_context(input_noise(self.model, noise))
            if weights is not None:
                stack.enter_context(replaced_weights(weights()))
            yield

    def release(self) -> None:
        """Free the module, even if opened checkpoints still refer to it."""
        self.released = True
        for layer in self.model.modules():
            hook = offload_hook(layer)
            if hook is not None and getattr(hook, "weights_map", None) is not None:
                hook.weights_map = None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def form_of(config: Mapping[str, object], state: tensor_checks.State) -> str:
    """Return what decides whether an adapter's tensors fit a base, apart from numbers.

    It is the adapter's configuration, with the name, shape and dtype of each tensor.

    Parameters
    ----------
    config, state
        The content of adapter_config.json, and the tensors, by the base's names.
    """
    tensors = [
        [name, [*tensor.shape], str(tensor.dtype)]
        for name, tensor in sorted(state.items())
    ]
    return json.dumps([stable_fields(config), tensors], sort_keys=True)


def is_part(
    file_shapes: Mapping[str, Sequence[int]],
    needed_shapes: Mapping[str, Sequence[int]],
) -> bool:
    """Return whether a file holds one process's part of a distributed adapter.

    Parameters
    ----------
    file_shapes, needed_shapes
        Shapes by name, of the file and of the whole adapter. A part has only some of
        the tensors, or an even slice of each along one dimension.
    """
    if not file_shapes or not file_shapes.keys() <= needed_shapes.keys():
        return False

    lacks_tensors = len(file_shapes) < len(needed_shapes)
    is_sliced = False
    for name, file_shape in file_shapes.items():
        needed_shape = needed_shapes[name]
        if tuple(file_shape) == tuple(needed_shape):
            continue
        if not _is_even_slice(file_shape, needed_shape):
            return False
        is_sliced = True
    return is_sliced or lacks_tensors


def _is_even_slice(shape: Sequence[int], whole_shape: Sequence[int]) -> bool:
    """Return whether a shape is an even part of another along one dimension."""
    if len(shape) != len(whole_shape):
        return False

    sizes = [
        (size, whole_size)
        for size, whole_size in zip(shape, whole_shape, strict=True)
        if size != whole_size
    ]
    if len(sizes) != 1:
        return False
    ((size, whole_size),) = sizes
    return size > 0 and whole_size % size == 0


def _remove_virtual_tokens(peft: Any) -> None:
    """Remove a prompt's virtual tokens from the logits.

    PEFT puts them in front of the input, which makes its logits longer. Scoring needs
    one row per given token, or the positions in a tensor ``logits_to_keep``.
    """
    peft_forward = peft.forward

    @functools.wraps(peft_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        config = peft.active_peft_config
        positions = kwargs.get("logits_to_keep")  # (positions,) or None
        # A prefix goes into the cache and has no logits.
        n_virtual = 0
        if str(config.peft_type.value) != "PREFIX_TUNING":
            n_virtual = int(config.num_virtual_tokens)
        if n_virtual and positions is not None:
            # Positions counted from the end stay the same.
            kwargs["logits_to_keep"] = torch.where(
                positions < 0, positions, positions + n_virtual
            )

        output = peft_forward(*args, **kwargs)
        if n_virtual and positions is None:
            output.logits = output.logits[:, n_virtual:]
        return output

    peft.forward = forward


@contextlib.contextmanager
def input_noise(
    model: PreTrainedModel, noise: torch.Tensor, *, by_token: bool = True
) -> Iterator[None]:
    """Add noise to *input* embeddings.

    Parameters
    ----------
    noise
        One row per token, shape ``(V, H)``, or one per position, ``(B, T, H)``. It is
        added to the result of the embedding, after existing hooks, and not to its
        weights, so that tied output heads do not get it. The sum is taken in float32 or
        wider, and rounded once.
    """

    def add(
        module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        """Add the noise to an embedding's output ``(B, T, H)``, as a forward hook."""
        rows = noise
        if by_token:
            # Only the needed rows: the noise of a large vocabulary takes gigabytes.
            rows = noise[args[0].to(noise.device)]  # (B, T, H)
        rows = rows.to(output.device)
        wide = torch.promote_types(output.dtype, rows.dtype)
        return (output.to(wide) + rows).to(output.dtype)

    with model.get_input_embeddings().register_forward_hook(add):
        yield


def logits(
    model: PreTrainedModel, ids: torch.Tensor, *, whose: str = "the model"
) -> torch.Tensor:
    """Return a model's logits on the probe, shape ``(2, n, V)``, float32.

    Raises
    ------
    CheckpointError
        If the model does not run on token ids alone, or gives NaN or infinity.
    """
    device = entry_device(model)
    with foreign("the model cannot be run"), torch.inference_mode():
        output: torch.Tensor = model(input_ids=ids.to(device), use_cache=False).logits
    if not bool(torch.isfinite(output).all()):
        remedy = None
        if output.dtype != torch.float32:
            remedy = "its dtype may be too narrow: try --dtype float32"
        raise CheckpointError(f"{whose} gives NaN or infinite logits", fix=remedy)
    return output.float().clone()


def materialise(model: PreTrainedModel, adapter: str) -> None:
    """Give an adapter memory on the device where its layers compute.

    PEFT puts it with their weights, which have no memory while they are on disk. The
    numbers are undefined until the adapter's own are filled in.
    """
    device: Any = "cpu"
    for layer in model.modules():
        hook = offload_hook(layer)
        if hook is not None and hook.offload:
            device = hook.execution_device
            break

    for path, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            # The adapter's name is one part of the path, or the name of the parameter.
            if parameter.is_meta and adapter in (name, *path.split(".")):
                empty = torch.empty_like(parameter, device=device)
                layer._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)
