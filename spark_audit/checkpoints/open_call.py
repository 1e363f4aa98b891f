"""Open all checkpoints of a call, one module at a time, or refuse them.

Opening has two rounds. First, :class:`OpenCheckpoints` describes every checkpoint of a
call from headers, on the meta device, where tensors have shapes but no numbers. It
refuses any that does not fit. Then it loads them, one module at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints import derived, weight_files
from spark_audit.checkpoints.adapters import AdapterHost
from spark_audit.checkpoints.attached_checkpoint import (
    AttachedCheckpoint,
    derivation_of,
)
from spark_audit.checkpoints.base_check import check_base
from spark_audit.checkpoints.call_headers import (
    group_by_module,
    read_call,
    same_path,
    with_named_base,
)
from spark_audit.checkpoints.checkpoint import (
    Checkpoint,
    Origin,
    module_facts,
    served_by,
)
from spark_audit.checkpoints.grown_vocabulary import growth_since
from spark_audit.checkpoints.noise_file import frozen_noise
from spark_audit.checkpoints.open_base import (
    base_from_files,
    can_share,
    check_no_adapter_on_memory,
    with_open_base,
)
from spark_audit.checkpoints.specs import Loading, Spec, names_server
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.tokenizer import TokenizerRead, read_tokenizer
from spark_audit.checkpoints.tokenizer_choice import choose_tokenizer
from spark_audit.checkpoints.training_facts import training_of
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.errors import InputError, at
from spark_audit.names import BASE, RELEARN, CheckpointName

if TYPE_CHECKING:
    from peft import PeftConfig

    from spark_audit.checkpoints.server import Server


class OpenCheckpoints:
    """The checkpoints of a call, by the modules they share; one is loaded at a time.

    All are checked from their headers before the first is loaded. A module is a set of
    full weights in memory; the checkpoints that share it are a group:

    - first the base with its adapters, which are attached to one module and switched.
      The base is opened if there are adapters, or with ``include_base``; full weights
      that do not fit it are then refused
      (:func:`~spark_audit.checkpoints.base_check.check_base`). Adapters of another PEFT
      type, or that change the base's weights, get a base module of their own.
    - then each checkpoint of full weights. Its module is released before the next is
      loaded, and its checkpoints cannot be activated any more.

    Replicates of one spec are named ``name[1]``, ``name[2]`` ... With ``quantize``
    (``int8``, ``int4``, ``nf4``) each checkpoint but the base is followed by a derived
    one with rounded weights, ``name+int8``. With ``relearning`` each, the base too, is
    followed by itself after that training, ``name+relearn``.

    Attributes
    ----------
    groups
        Names of the opened checkpoints, those of one module together, in the order in
        which they are opened; derived ones follow the one that they are made of.
    checkpoints
        How each given checkpoint is put together, replicates one by one, and the base
        first where there is one; without derived ones.
    files_and_folders
        Everything that these checkpoints are read from, but not a tokenizer that the
        user gave.
    described
        What headers tell of each opened checkpoint, derived ones too, in the order of
        ``groups``. They are without weights, and without ``model_id`` if that is only
        known after loading.

    Parameters
    ----------
    specs
        Checkpoints in files, or on a server.
    loading
        How they are opened.
    numbers
        Whether full weights are searched for NaN and infinite numbers at once, before
        any is loaded.
    relearning
        A short training; it is done when a checkpoint derived by it is first scored.
    opened
        Checkpoints that are open already. One named ``base`` is the base of the others.

    Raises
    ------
    CheckpointError
        As :func:`~spark_audit.checkpoints.open.open_checkpoint`, also when adapters
        name different bases: what headers tell is known before any is loaded.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        loading: Loading,
        *,
        numbers: bool = True,
        relearning: derived.Relearning | None = None,
        opened: Sequence[Checkpoint] = (),
    ) -> None:
        for rounding in loading.quantize:
            derived.check_rounding(rounding)

        # The local copy of a served checkpoint is opened in its place.
        self._server: Server | None = None
        if names_server(specs, loading):
            from spark_audit.checkpoints.server import served

            self._server, specs = served(specs, loading, relearn=bool(relearning))
        # Adapters in files are put on the module of a base that is open.
        open_base, opened = base_from_files(opened)
        if open_base is not None:
            loading = with_open_base(loading, open_base)
        loading = with_named_base(specs, loading)
        self._given_host = None if open_base is None else open_base.host

        self._loading = loading
        self._relearning = relearning

        # The module that is loaded now.
        self._host: AdapterHost | None = None
        # The base: without weights for comparisons, and on its module for its adapters.
        self._base: Checkpoint | None = None
        self._base_on_host: Checkpoint | None = None
        # Checkpoints of one call mostly share a tokenizer, which takes seconds to read.
        self._read_tokenizer: Callable[[Path], TokenizerRead] = cache(
            partial(read_tokenizer, trust_remote_code=loading.trust_remote_code)
        )

        self.described: list[Checkpoint] = []
        self.groups: list[list[str]] = []
        with quiet():
            self.checkpoints = read_call(specs, loading)
            self.files_and_folders = _files_and_folders(self.checkpoints)
            check_no_adapter_on_memory(opened, self.checkpoints)
            self._modules = _in_order_of_opening(self.checkpoints, opened)
            self._describe_all()

            # The first group is the base alone if it is open, or has no adapter on it.
            is_base_first = self.groups[:1] == [[BASE]]
            if loading.include_base or (opened and is_base_first):
                for description in self.described[1:]:
                    check_base(description, self.described[0])
            if numbers:
                self._check_numbers()
        self._check_names()

    def _describe_all(self) -> None:
        """Fill ``described`` and ``groups``, one group for each module."""
        for module in self._modules:
            if isinstance(module, list):
                self._describe(module)
            else:
                self._describe_open(module)

    def _describe(self, checkpoints: Sequence[StoredCheckpoint]) -> None:
        """Describe the checkpoints of one module from headers, as one more group."""
        full_weights = checkpoints[0].full_weights
        with at(full_weights.typed_path):
            host = AdapterHost(full_weights.skeleton(), runs=False)
            full_weights.check_room(host.parameters)

        descriptions = [
            loaded.without_weights() for loaded in self._open_on(host, checkpoints)
        ]
        self.described += descriptions
        self.groups.append([description.name for description in descriptions])

    def _describe_open(self, checkpoint: Checkpoint) -> None:
        """Describe a checkpoint that was given open, as a group of its own."""
        description = checkpoint.without_weights()
        self.described.append(description)
        self.groups.append([description.name])
        if description.name == BASE:
            self._base = description

    def _check_numbers(self) -> None:
        """Refuse full weights with a number that is NaN or infinite.

        This takes longer than reading headers, but still precedes hours of scoring.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.has_full_weights:
                with at(checkpoint.typed_path):
                    weight_files.check_stored(checkpoint.files)

    def _check_names(self) -> None:
        """Refuse a name twice, such as that of a derived checkpoint, ``NAME+int8``."""
        counts = Counter[str]()
        for names in self.groups:
            counts.update(names)
        for name, count in counts.items():
            if count == 1:
                continue
            problem = f"the name {name!r} is given twice"
            if CheckpointName.parse(name).derived:
                problem = f"the name {name!r} is reserved for a derived checkpoint"
            raise InputError(
                problem,
                where="--ckpt",
                fix="name the checkpoint otherwise",
            )

    def each(self) -> Iterator[Checkpoint]:
        """Load and yield every checkpoint, in the order of ``groups``."""
        for group in range(len(self._modules)):
            yield from self.open(group)

    def open(self, group: int) -> Iterator[Checkpoint]:
        """Load the module of a group, and yield the group's checkpoints.

        The module that was loaded before is released first. What was given open is
        yielded as it is.

        Parameters
        ----------
        group
            Index in ``groups``.
        """
        checkpoints = self._modules[group]
        # Two modules at once would take twice the memory.
        self.release()
        if not isinstance(checkpoints, list):
            yield checkpoints
            return

        full_weights = checkpoints[0].full_weights
        if self._given_host is not None and can_share(self._given_host, checkpoints):
            yield from self._open_on(self._given_host, checkpoints)
            return

        with quiet(), at(full_weights.typed_path):
            self._host = AdapterHost(full_weights.load())
        yield from self._open_on(self._host, checkpoints)

    def release(self) -> None:
        """Free the module that is loaded."""
        if self._host is not None:
            self._host.release()
        self._host = None

    def _open_on(
        self, host: AdapterHost, checkpoints: Sequence[StoredCheckpoint]
    ) -> Iterator[Checkpoint]:
        """Yield the checkpoints of a module, each followed by those derived from it.

        The module may be on the meta device, for their descriptions.
        """
        for checkpoint in checkpoints:
            with quiet(), at(checkpoint.typed_path):
                attached = self._put_on(host, checkpoint)

            for derived_kind in self.derived_kinds(checkpoint):
                with quiet(), at(checkpoint.typed_path):
                    loaded = self._opened(attached, derived_kind)
                yield loaded
                # Other weights are as large as the module, so only one copy is kept at
                # a time.
                del loaded

    def _put_on(
        self, host: AdapterHost, checkpoint: StoredCheckpoint
    ) -> AttachedCheckpoint:
        """Attach a checkpoint's adapter to its module, and read what belongs to it."""
        embeddings = host.model.get_input_embeddings()
        noise = frozen_noise(
            checkpoint.folder, checkpoint.files, embeddings.weight.shape
        )  # (rows, width) or None
        if noise is not None:
            noise = noise.to(checkpoint.device)

        # The adapter comes first, because it may add rows to embeddings and head.
        adapter = None
        peft_config: PeftConfig | None = None
        if checkpoint.is_adapter:
            adapter = host.attach(checkpoint)
            peft_config = host.config_of(adapter.name)

        tokenizer_read = choose_tokenizer(checkpoint, self._read_tokenizer)
        facts = module_facts(host.model, tokenizer_read.tokenizer, peft_config)

        # The base itself is opened first, and is not compared with another base.
        growth = None
        if self._base is not None:
            growth = growth_since(
                self._base,
                tokenizer_read.tokenizer,
                sha256=tokenizer_read.sha256,
                usable=facts.usable,
            )
        return AttachedCheckpoint(
            host, checkpoint, adapter, noise, tokenizer_read, facts, growth
        )

    def _is_base(self, checkpoint: StoredCheckpoint) -> bool:
        """Return whether a checkpoint is the base of the call itself.

        The base's folder may be audited under another name, too.
        """
        if checkpoint.name == BASE:
            return True
        if checkpoint.is_adapter or not checkpoint.base:
            return False
        return same_path(checkpoint.base, checkpoint.typed_path)

    def derived_kinds(self, checkpoint: StoredCheckpoint) -> list[str]:
        """Return the ways in which a checkpoint is opened, one after the other.

        ``""`` stands for the checkpoint as it is, ``int8``, ``int4`` and ``nf4`` for
        rounded weights, ``relearn`` for the short training.
        """
        kinds = [""]
        if not self._is_base(checkpoint):
            kinds += self._loading.quantize
        if self._relearning is not None:
            kinds.append(RELEARN)
        return kinds

    def _opened(self, attached: AttachedCheckpoint, derived_kind: str) -> Checkpoint:
        """Return a checkpoint on its module, as it is or with other weights.

        Parameters
        ----------
        derived_kind
            As :meth:`derived_kinds` gives it.
        """
        host = attached.host
        checkpoint = attached.checkpoint
        adapter = attached.adapter
        full_weights = checkpoint.full_weights
        facts = attached.facts
        growth = attached.growth

        # Everything except weights and token ids that affects a score.
        computed = {
            "dtype": attached.dtype,
            "attention": attached.attention,
            "eos": repr(full_weights.eos(host.model)),
        }
        notes = attached.notes()

        # Scoring switches the module to this checkpoint by calling it.
        name_of_adapter_on = attached.adapter_name
        weights = None
        if derived_kind:
            derivation = derivation_of(attached, derived_kind, self._relearning)
            computed[derivation.field] = derivation.value
            notes.append(derivation.note)
            weights = cache(derivation.make)
            # An adapter that is merged into these weights is not switched on again.
            if not derivation.keeps_adapter:
                name_of_adapter_on = None
        activate = partial(
            host.using, name_of_adapter_on, noise=attached.noise, weights=weights
        )

        adapter_config = None if adapter is None else adapter.config
        hashes = checkpoint.hashes(adapter_config, **computed)
        # Full weights do not say from which base they were trained.
        has_unknown_base = checkpoint.has_full_weights and not self._is_base(checkpoint)
        # Rounded weights, or those trained on afterwards, are not the run's own.
        training = None if derived_kind else training_of(checkpoint.folder)
        on_base = self._base_on_host
        if on_base is not None and not on_base.is_on(host):
            on_base = None

        loaded = Checkpoint(
            name=str(CheckpointName(checkpoint.name, derived=derived_kind)),
            source=checkpoint.source,
            format=checkpoint.format,
            base=None if checkpoint.has_full_weights else full_weights.source,
            base_sha256=None if has_unknown_base else full_weights.sha256,
            model=host.model if name_of_adapter_on is None else host.peft,
            tokenizer=attached.tokenizer_read.tokenizer,
            architecture=facts.architecture,
            usable=facts.usable if growth is None else growth.shared_with_base,
            max_positions=facts.max_positions,
            dtype=attached.dtype,
            device=checkpoint.device,
            weights_sha256=hashes.weights_sha256,
            tokenizer_sha256=attached.tokenizer_read.sha256,
            model_id="" if attached.is_packed else hashes.model_id,
            parameters=None if full_weights.quantised else host.parameters,
            notes=tuple(notes),
            quantised_from=checkpoint.name if "rounded" in computed else None,
            relearned_from=checkpoint.name if "relearned" in computed else None,
            training=training,
            grown_from=None if growth is None else growth.base_tokenizer_sha256,
            added=None if growth is None else growth.added,
            repeats_layers=bool((adapter_config or {}).get("layer_replication")),
            on_base=on_base,
            origin=Origin(checkpoint.typed_path, checkpoint.loading, host),
            activate=activate,
        )
        loaded = self._as_served(loaded, checkpoint)
        if checkpoint.name == BASE and not derived_kind:
            # Without weights, because it outlives its module for comparisons.
            self._base = loaded.without_weights()
            self._base_on_host = loaded
        return loaded

    def _as_served(
        self, loaded: Checkpoint, checkpoint: StoredCheckpoint
    ) -> Checkpoint:
        """Return the local copy of a served checkpoint as what the server scores."""
        if self._server is None or self._server.name != checkpoint.name:
            return loaded

        from spark_audit.checkpoints.server import NOTE

        return served_by(loaded, self._server, note=NOTE)


def _in_order_of_opening(
    checkpoints: Sequence[StoredCheckpoint], opened: Sequence[Checkpoint]
) -> list[list[StoredCheckpoint] | Checkpoint]:
    """Return what is opened one after the other, the base first.

    Returns
    -------
    list
        The checkpoints in files that share a module, as a list; or a checkpoint that
        was given open.
    """
    open_bases = [checkpoint for checkpoint in opened if checkpoint.name == BASE]
    open_others = [checkpoint for checkpoint in opened if checkpoint.name != BASE]
    return [*open_bases, *group_by_module(checkpoints), *open_others]


def _files_and_folders(checkpoints: Sequence[StoredCheckpoint]) -> set[Path]:
    """Return every file and folder that checkpoints and their bases are read from."""
    paths: set[Path] = set()
    for checkpoint in checkpoints:
        for source in (checkpoint, checkpoint.full_weights):
            paths |= {source.folder, source.config_folder, *source.files}
    return paths
