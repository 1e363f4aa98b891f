"""Settings of a run: their names, defaults, bounds and where each comes from.

The command line gives them as texts, ``ptpc.steps=100``, which :func:`parse` reads.
Python gives them as ``TrainingSettings(ptpc=Ptpc(steps=100))`` or as
``{"ptpc.steps": 100}``; :func:`assignments` turns both into these texts.

A new setting is a field with :func:`paper` or :func:`ours` and a docstring, which
``spark-train methods`` shows. In a group ``Ptpc``, a field ``steps`` is the setting
``ptpc.steps``; outside groups, every method reads it. A new group is a field of
:class:`TrainingSettings`, too, and stands in the ``reads`` of its methods
(``training_methods/``) or in ``groups`` of ``privacy.py``. An underscore at the end of
a field is no part of its name, so ``lambda_`` is ``lambda``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from spark_audit.arguments import check_arguments, wrong_value
from spark_audit.errors import InputError, choose

T = TypeVar("T")

# Kinds of values, with their bounds.
Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1e30)]  # beyond, AdamW itself overflows
Sigma = Annotated[float, Field(ge=1e-30, le=1e30)]  # float32 holds the draws
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Unit = Annotated[float, Field(ge=0, le=1)]


class SettingGroup(BaseModel):
    """Settings that belong together; a method that takes the group reads them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, values: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse an unknown name or a bad value in one line; called by pydantic.

        Raises
        ------
        ArgumentError
            Names the nearest setting.
        InputError
            Names the setting and its value.
        """
        if isinstance(values, Mapping):
            check_arguments(cls.__name__, values, [*cls.model_fields])
        try:
            return validate(values)
        except ValidationError as error:
            # One problem is enough.
            first = error.errors()[0]
            leaf = ".".join(str(part).rstrip("_") for part in first["loc"])
            message = str(first["msg"])
            reason = message[:1].lower() + message[1:]
            raise InputError(
                f"{cls._prefix()}{leaf} is {first['input']!r}: {reason}", where="--set"
            ) from None

    @classmethod
    def _prefix(cls) -> str:
        """Return what stands before the names of its settings, such as ``ptpc.``."""
        return f"{cls.__name__.lower()}."


def paper(default: T, source: str = "paper") -> T:
    """Declare a setting whose default is the paper's.

    Parameters
    ----------
    source
        Where the default comes from, as ``spark-train methods`` shows it.
    """
    return Field(default, json_schema_extra={"source": source})


def ours(default: T) -> T:
    """Declare a setting whose default is ours."""
    return paper(default, "ours")


class Loss(SettingGroup):
    """Which tokens the task loss covers."""

    scope: Literal["response", "full"] = paper("response")
    """Tokens of the task loss; full trains identifiers in prompts too: the positive
    control of an audit."""


class Lora(SettingGroup):
    """The adapter on q, k, v and o."""

    r: Count = paper(16)
    """Rank."""
    alpha: Positive = paper(32)
    """Scale: alpha / r."""


class Replay(SettingGroup):
    """Replay of earlier tasks, and its distillation."""

    enabled: bool = paper(True)
    """Off: no replay while a task is learned."""
    ratio: Annotated[float, Field(gt=0, lt=1)] = paper(0.5)
    """Share of replayed rows in a batch."""
    lambda_: Weight = paper(1.0)
    """Weight of the replay loss."""
    memory: Whole = ours(0)
    """Earlier rows in memory, evenly over tasks; 0: all."""
    top_k: Count = ours(64)
    """Tokens of the teacher's distributions."""
    temperature: Positive = paper(2.0)
    """Divides the logits of both."""
    t_squared: bool = ours(False)
    """Multiply the distillation by T squared."""
    weighting: Literal["count", "mean"] = paper("count")
    """Of replayed positions: all alike (count, the paper's), alike within responses and
    within distilled ones (mean: ours)."""


class Sensitivity(SettingGroup):
    """The sensitivity score that splits replayed positions."""

    alpha: Unit = paper(0.5)
    """Weight of a token's NLL relative to how much it distinguishes tasks."""
    tau: Unit = paper(0.6)
    """Positions above are distilled, responses below are trained on."""


class Ptpc(SettingGroup):
    """Post-task privacy correction."""

    steps: Count = paper(200)
    """Steps after each task."""
    lr: Rate = paper(1e-5)
    """Learning rate."""
    schedule: Literal["constant", "cosine"] = ours("constant")
    """Of the learning rate; the paper has cosine, without naming the phase."""
    batch_size: Count = ours(2)
    """Current rows per step."""
    old_batch_size: Count = ours(1)
    """Replayed rows per step."""
    draw: Literal["mixed", "pii", "all"] = ours("mixed")
    """Current rows: with identifiers (pii), any (all), in turns (mixed)."""
    lambda_pii: Weight = paper(8.0)
    """Weight of both terms on identifiers (those that rules find; annotated ones beside
    them, such as names: ours)."""
    alpha_ul: Weight = paper(2.0)
    """Weight of unlikelihood within them."""
    lambda_anchor: Weight = paper(1.5)
    """Weight of the current anchor."""
    lambda_old: Weight = paper(1.0)
    """Weight of the old anchor."""
    ul: bool = paper(True)
    """Unlikelihood of identifiers."""
    dkl: bool = paper(True)
    """KL from the teacher without the identifier."""
    anchor: bool = paper(True)
    """KL on other positions of current rows."""
    old_anchor: bool = paper(True)
    """KL on other positions of replayed rows."""


class Ewc(SettingGroup):
    """Elastic weight consolidation."""

    lambda_: Weight = paper(100.0)
    """Weight of half the sum of F times drift^2 (form: ours)."""


class Gem(SettingGroup):
    """Gradient episodic memory."""

    memory: Count = ours(32)
    """Rows kept of each task, all read at every later step."""
    margin: Weight = ours(0.5)
    """Least value of the dual variables, as mammoth's."""


class Olora(SettingGroup):
    """Orthogonal adapters."""

    lambda_1: Weight = ours(0.5)
    """Weight of orthogonality, as its authors' scripts."""


class Pecl(SettingGroup):
    """PeCL: scalars of SPARK's reproduction, forms of our own."""

    noise_scale: Weight = paper(0.01)
    """Sigma on embeddings, at a Score of 1 (form: ours)."""
    uniform: bool = ours(False)
    """The same sigma for every token, as the paper prints it; off: times its Score."""
    memreg_scale: Weight = paper(0.01)
    """Weight of drift times importance (form: ours)."""
    lambda_max: Positive = paper(10.0)
    """Largest importance, whose mean is 1 (form: ours)."""
    lambda_unlearn: Weight = paper(1.0)
    """Weight of unlikelihood (form: ours)."""
    theta: Unit = paper(0.6)
    """Tokens with a higher Score are unlearned."""


class Dp(SettingGroup):
    """DP-SGD: gradients of single examples are clipped, their sum gets noise."""

    noise_multiplier: Weight = ours(1.0)
    """Sigma of the noise over max_grad_norm."""
    max_grad_norm: Positive = ours(1.0)
    """Largest gradient norm of one example."""
    target_epsilon: Weight = ours(0.0)
    """Largest epsilon of a task, gives the noise; 0: noise_multiplier gives it."""
    delta: Annotated[float, Field(ge=0, lt=1)] = ours(0.0)
    """Of epsilon; 0: 1/N of the N train rows."""


class Fn(SettingGroup):
    """Frozen noise on input embeddings."""

    sigma: Sigma = ours(0.01)
    """Standard deviation, in units of the embeddings."""


class TrainingSettings(SettingGroup):
    """All settings of a run; those that are not given have their defaults.

    Examples
    --------
    >>> settings = TrainingSettings(epochs=1, ptpc=Ptpc(steps=100))
    >>> settings.ptpc.steps, settings.lr
    (100, 0.0005)
    >>> try:
    ...     TrainingSettings(epoch=1)
    ... except TypeError as error:
    ...     print(error)
    TrainingSettings() has no argument 'epoch'; did you mean 'epochs'?
    """

    epochs: Count = paper(3)
    """Passes over a task's rows."""
    lr: Rate = paper(5e-4)
    """Peak of the cosine schedule of each task."""
    batch_size: Count = paper(32)
    """Rows per step, including replayed ones."""
    max_length: Whole = ours(0)
    """Tokens per row, including EOS; 0: the model's context."""
    clip: Positive = ours(1.0)
    """Largest gradient norm."""
    seed: Whole = ours(0)
    """Seed of the adapter, order and draws."""
    save_every: Count = ours(50)
    """Steps between two saved states."""
    micro_tokens: Whole = ours(0)
    """Padded tokens per forward pass; 0: 2,048 on CPU, 16,384 elsewhere."""
    eval_rows: Whole = ours(0)
    """Test rows of a task that are answered after each stage; 0: all."""
    loss: Loss = Loss()
    lora: Lora = Lora()
    replay: Replay = Replay()
    sensitivity: Sensitivity = Sensitivity()
    ptpc: Ptpc = Ptpc()
    ewc: Ewc = Ewc()
    gem: Gem = Gem()
    olora: Olora = Olora()
    pecl: Pecl = Pecl()
    dp: Dp = Dp()
    fn: Fn = Fn()

    @classmethod
    def _prefix(cls) -> str:
        """Return an empty prefix: its settings belong to no group."""
        return ""

    def flat(self, groups: Iterable[str] | None = None) -> dict[str, object]:
        """Return settings by name: all of them, or those of some groups and of none.

        Parameters
        ----------
        groups
            Names of groups (``replay``), or of single settings (``replay.ratio``);
            None: all groups.
        """
        chosen = SETTING_GROUPS if groups is None else tuple(groups)
        settings: dict[str, object] = {}
        for name, value, _ in _leaves(self):
            group, dot, _ = name.partition(".")
            if not dot or name in chosen or group in chosen:
                settings[name] = value
        return settings


GivenSettings: TypeAlias = TrainingSettings | Mapping[str, bool | float | str]
"""Settings as Python code gives them; a mapping has names such as ``ptpc.steps``."""

SETTING_GROUPS = tuple(
    name for name, value in TrainingSettings() if isinstance(value, SettingGroup)
)
"""Names of all groups."""


def parse(
    assignments: Sequence[str],
    *,
    groups: Iterable[str] | None = None,
    method: str = "",
) -> TrainingSettings:
    """Parse ``name=value`` texts into settings, with defaults for the others.

    Parameters
    ----------
    groups
        Groups, or names, of the settings that the method reads beside those without
        a group. Any other setting is refused, because it would change nothing.
    method
        The method's name, for messages.

    Raises
    ------
    InputError
        Names the setting, and the known ones if it is unknown.
    """
    known_names = names(groups)
    values: dict[str, str] = {}
    values_by_group: dict[str, dict[str, str]] = {}
    for text in assignments:
        typed_name, equals, typed_value = text.partition("=")
        if not equals:
            raise InputError(f"{text!r} is not NAME=VALUE", where="--set")

        name = typed_name.strip()
        if name not in known_names:
            whose = f"of method {method!r}" if method else "of any method"
            raise InputError(
                f"{name!r} is no setting {whose}",
                where="--set",
                fix=choose(name, known_names),
            )

        group, _, leaf = name.rpartition(".")
        # `lambda` is a word of Python, so the field has an underscore.
        if leaf == "lambda":
            leaf = "lambda_"
        value = typed_value.strip()
        if group:
            values_by_group.setdefault(group, {})[leaf] = value
        else:
            values[leaf] = value

    return TrainingSettings.model_validate(values | values_by_group)


def assignments(settings: GivenSettings) -> tuple[str, ...]:
    """Return settings of Python as texts ``name=value``, without those not given.

    Values are not checked here, but by :func:`parse`.

    Raises
    ------
    ArgumentError
        If they are neither ``TrainingSettings`` nor a mapping of names to values.

    Examples
    --------
    >>> assignments(TrainingSettings(lr=1e-3, replay=Replay(lambda_=0.5, memory=10)))
    ('lr=0.001', 'replay.lambda=0.5', 'replay.memory=10')
    >>> assignments({"ptpc.ul": False})
    ('ptpc.ul=off',)
    """
    if isinstance(settings, TrainingSettings):
        given = {name: value for name, value, _ in _leaves(settings, only_given=True)}
    elif isinstance(settings, Mapping):
        given = dict(settings)
    else:
        raise wrong_value(
            "settings",
            settings,
            "neither TrainingSettings nor a mapping of names to values",
        )
    return tuple(f"{name}={shown(value)}" for name, value in given.items())


def names(groups: Iterable[str] | None = None) -> list[str]:
    """Return the names of settings without a group and of those in some groups."""
    return [*TrainingSettings().flat(groups)]


def changed_settings(settings: Mapping[str, object]) -> list[str]:
    """Return the names of the settings that differ from their defaults.

    >>> changed_settings({"lr": 0.004, "epochs": 3, "ptpc.ul": False})
    ['lr', 'ptpc.ul']
    """
    defaults = TrainingSettings().flat()
    return [name for name, value in settings.items() if value != defaults[name]]


def describe() -> list[dict[str, str]]:
    """Return name, default, meaning and source of every setting."""
    settings: list[dict[str, str]] = []
    for name, value, field in _leaves(TrainingSettings()):
        assert isinstance(field.json_schema_extra, dict)
        settings.append(
            {
                "name": name,
                "default": shown(value),
                "meaning": " ".join((field.description or "").split()),
                "source": str(field.json_schema_extra["source"]),
            }
        )
    return settings


def describe_fixed() -> list[dict[str, str]]:
    """Return what no setting changes, and whether the paper prints it.

    A reader who compares figures with the paper's must know these, too.
    """
    fixed = (
        ("optimizer", "AdamW, made anew for each phase", "paper; anew: ours"),
        ("weight decay", "0", "ours"),
        ("warm-up", "none", "ours"),
        ("schedule of a task", "half a cosine, from lr to 0", "paper"),
        ("dropout of LoRA", "0", "ours"),
        ("layers with LoRA", "q, k, v and o, unless --lora-targets is given", "paper"),
    )
    return [
        {"name": name, "value": value, "source": source}
        for name, value, source in fixed
    ]


def shown(value: object) -> str:
    """Return a setting's value as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def _leaves(
    group: SettingGroup, prefix: str = "", *, only_given: bool = False
) -> Iterable[tuple[str, object, FieldInfo]]:
    """Yield name, value and field of each setting, with those of inner groups.

    Parameters
    ----------
    prefix
        Name of the group with a dot; empty: settings without a group.
    only_given
        Leave out settings that have their defaults because nobody gave them.
    """
    for name, field in type(group).model_fields.items():
        if only_given and name not in group.model_fields_set:
            continue
        value = getattr(group, name)
        if isinstance(value, SettingGroup):
            yield from _leaves(value, f"{name}.", only_given=only_given)
        else:
            yield prefix + name.rstrip("_"), value, field
