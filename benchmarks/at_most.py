"""How often more is there than "at most", of audits of known truth that found nothing.

``OMP_NUM_THREADS=1 python benchmarks/at_most.py`` simulates 2,000 audits for each of
seven true effects, from none to twice the smallest detectable one, of every attack, by
dose where a dose is tested, in a report of one test and of 38. Each audit is tested as
the command tests it, and what could still be there follows from the same
:class:`~spark_audit.stats.estimate.Bound`. The figures are in ``at_most.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import scipy
from command_line import benchmark_parser, positive_number, run_benchmark, whole_number
from exact_limits import limits

from spark_audit.audits.extract.rates import limits_p, rate_difference
from spark_audit.audits.twins.rank_tests import LEAST_P_OF_DRAWS
from spark_audit.stats.at_most import at_most, exposure_at_most, rate_side, t_bound
from spark_audit.stats.canary_ranks import exposure_bits, exposure_mde, null_mean
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.intervals import rate_estimate
from spark_audit.stats.memory_contrast import Memory, Sides, memory
from spark_audit.stats.power import smallest
from spark_audit.stats.sign_flips import sign_flips

STEPS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""True effects, as shares of the smallest detectable one."""
TESTS_OF_REPORTS = (1, 38)
MOST_ABOVE = 0.05
"""Of audits that found nothing, the share whose true effect may be above "at most"."""
MIN_AUDITS_OF_STEP = 100
"""Audits that found nothing at one effect, to be shown by themselves."""

Audits: TypeAlias = tuple[np.ndarray, np.ndarray, float]
"""Whether each audit found a leak, what it says could still be there, and the truth."""

Simulation: TypeAlias = Callable[[np.random.Generator, int, float], Iterator[Audits]]
"""Audits of each of :data:`STEPS`, by generator, their number and Holm's level."""


def shifts(detectable: float, most: float = math.inf) -> list[float]:
    """Return the true effects of the steps, none above what there can be."""
    return [min(step * detectable, most) for step in STEPS]


def matched(
    n_trained: int, n_held_out: int, *, skew: float = 0.0, spread: bool = False
) -> Simulation:
    """Simulate memory: the change of trained identifiers beyond that of held-out ones.

    Parameters
    ----------
    skew
        Sigma of lognormal changes of clusters; 0: normal ones.
    spread
        Whether one cluster in five holds all the memory, five times the mean of it.
    """

    def simulate(
        rng: np.random.Generator, audits: int, level: float
    ) -> Iterator[Audits]:
        n_clusters = n_trained + n_held_out
        trained = np.arange(n_clusters) < n_trained  # (clusters,), bool
        effects = shifts(_detectable_memory(trained, skew, level))
        by_step: list[list[tuple[bool, float]]] = [[] for _ in STEPS]

        for _ in range(audits):
            tokens = rng.integers(2, 12, n_clusters).astype(float)
            change = _noise(rng, n_clusters, skew) * tokens  # (clusters,), nats
            sides = _sides(trained, tokens)

            # How much of the mean memory each cluster has.
            share = np.ones(n_clusters)
            if spread:
                share = np.where(rng.random(n_clusters) < 0.2, 5.0, 0.0)
            without_memory = memory(change, sides)

            for audited, effect in zip(by_step, effects, strict=True):
                # What is the same for all clusters moves the difference by as much.
                estimate = without_memory
                shift = effect
                if spread:
                    remembered = change - effect * tokens * share * trained
                    estimate = memory(remembered, sides)
                    shift = 0.0
                audited.append(_tested_memory(estimate, shift, level))

        for audited, effect in zip(by_step, effects, strict=True):
            yield _columns(audited, effect)

    return simulate


def _tested_memory(estimate: Memory, shift: float, level: float) -> tuple[bool, float]:
    """Return whether memory is claimed, and how much could be there, in nats.

    Parameters
    ----------
    shift
        By how much more the trained identifiers became likelier.
    """
    difference = estimate.difference
    value = (difference.value or 0.0) - shift
    low = (difference.low or 0.0) - shift
    t = abs(value) / (difference.se or math.inf)
    p = 2 * float(scipy.special.stdtr(estimate.freedom, -t))

    (bound,) = t_bound(value, low, df=estimate.freedom, direction=-1)
    return p < level and value < 0, -at_most(bound, level)


def _sides(trained: np.ndarray, tokens: np.ndarray) -> Sides:
    """Return one occurrence a cluster, all of one kind."""
    clusters = np.arange(len(trained))
    return Sides(trained, tokens, clusters, np.zeros((len(trained), 1), int))


def _noise(rng: np.random.Generator, n: int, skew: float) -> np.ndarray:
    """Return changes of clusters without memory, of mean 0, nats per token."""
    if not skew:
        return rng.normal(0, 0.5, n)
    return 0.3 * (rng.lognormal(0, skew, n) - math.exp(skew**2 / 2))


def _detectable_memory(trained: np.ndarray, skew: float, level: float) -> float:
    """Return the smallest detectable memory at the median error of a pilot."""
    rng = np.random.default_rng(1)
    pilots = []
    for _ in range(50):
        tokens = rng.integers(2, 12, len(trained)).astype(float)
        change = _noise(rng, len(trained), skew) * tokens
        estimate = memory(change, _sides(trained, tokens))
        test = Power(test="t", se=estimate.difference.se, df=estimate.freedom)
        pilots.append(smallest(test, level) or math.inf)
    return float(np.median(pilots))


def _columns(audits: list[tuple[bool, float]], effect: float) -> Audits:
    """Return audits of one effect, each whether it found a leak and "at most"."""
    is_found, ends = zip(*audits, strict=True)
    return np.array(is_found), np.array(ends), effect


def twins(clusters: int, *, tests: int = 2) -> Simulation:
    """Simulate ranks among 31 twins: a share of the identifiers moves to the front.

    The others' ranks move by chance, as much as two rankings that agree by half.
    """
    size = 32
    first = math.log2(size)

    def simulate(
        rng: np.random.Generator, audits: int, level: float
    ) -> Iterator[Audits]:
        mean_before = float(exposure_bits(np.arange(1, size + 1), size).mean())
        test = Power(
            test="sign-flip",
            se=1.7 / clusters**0.5,
            df=clusters - 1,
            n=clusters,
            least_p=max(2.0 ** (1 - clusters), LEAST_P_OF_DRAWS),
        )
        # With too few clusters nothing is detected, however strong.
        detectable = smallest(test, level / tests) or first

        for effect in shifts(detectable, 0.95 * (first - mean_before)):
            before, after = _ranks(rng, (audits, clusters), size)
            is_first = rng.random((audits, clusters)) < effect / (first - mean_before)
            base = exposure_bits(before, size)  # (audits, clusters), bits
            rise = np.where(is_first, first, exposure_bits(after, size)) - base

            # Student's t interval of each audit, and the sign flip that decides.
            mean = rise.mean(axis=1)  # (audits,)
            se = rise.std(axis=1, ddof=1) / clusters**0.5
            high = mean + scipy.stats.t.isf(0.025, clusters - 1) * se
            p = tests * sign_flips(rise.T, seed=0)

            audited = []
            for value, end, p_of in zip(mean.tolist(), high.tolist(), p, strict=True):
                (bound,) = t_bound(
                    value, end, df=clusters - 1, worst_value=first, n_tests=tests
                )
                is_found = bool(p_of < level and value > 0)
                audited.append((is_found, at_most(bound, level)))
            yield _columns(audited, effect)

    return simulate


def _ranks(
    rng: np.random.Generator, shape: tuple[int, int], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return two rankings that agree by half, uniform each."""
    common, before, after = rng.normal(size=(3, *shape))

    rankings = []
    for noise in (before, after):
        quantile = scipy.special.ndtr((common + noise) / 2**0.5)
        rankings.append(np.minimum((quantile * size).astype(int), size - 1) + 1)
    return rankings[0], rankings[1]


def canary(
    n: int, *, size: int = 128, tests: int = 24, mixture: bool = False
) -> Simulation:
    """Simulate exposure: memory favours ranks by a power, or holds a share whole."""
    bits = np.asarray(exposure_bits(np.arange(1, size + 1), size))
    chance = float(bits.mean())
    most = float(bits.max())

    def drawn(rng: np.random.Generator, effect: float, audits: int) -> np.ndarray:
        if mixture:
            share = effect / (most - chance)
            is_first = rng.random((audits, n)) < share
            exposures = np.where(is_first, most, rng.choice(bits, (audits, n)))
        else:
            # The strength of memory whose mean lies so far above chance.
            tilt = scipy.optimize.brentq(
                lambda t: scipy.special.softmax(t * bits) @ bits - chance - effect,
                -1.0,
                50.0,
            )
            odds = scipy.special.softmax(tilt * bits)
            exposures = rng.choice(bits, (audits, n), p=odds)
        return exposures.mean(axis=1)

    def simulate(
        rng: np.random.Generator, audits: int, level: float
    ) -> Iterator[Audits]:
        null = null_mean([size] * n)
        own_level = level / tests
        detectable = exposure_mde(n, size, significance=own_level, power=0.8)
        bar = null.quantile(1 - own_level)

        @cache
        def end(mean: float) -> float:
            return exposure_at_most(mean, n, size, significance=own_level) - chance

        for effect in shifts(detectable or most, 0.999 * (most - chance)):
            means = drawn(rng, effect, audits)
            # Rounded down, so that limits are computed once for many audits.
            ends = [end(math.floor(mean * 50) / 50) for mean in means.tolist()]
            yield means > bar, np.array(ends), effect

    return simulate


def mia(n: int, *, tests: float = 5.0) -> Simulation:
    """Simulate a score's AUC beyond that of the texts alone, and beyond chance."""

    def simulate(
        rng: np.random.Generator, audits: int, level: float
    ) -> Iterator[Audits]:
        pilot = above_texts(*rng.normal(size=(2, 50, 2 * n)))
        test = Power(
            test="t",
            se=float(np.median(pilot.se)),
            df=2 * n - 1,
            largest_effect=0.5,
            n_tests=tests,
        )
        detectable = smallest(test, level) or 0.49

        for effect in shifts(detectable, 0.49):
            score, texts = rng.normal(size=(2, audits, 2 * n))
            score[:, :n] += 2**0.5 * scipy.special.ndtri(0.5 + effect)
            excess = above_texts(score, texts)

            audited = []
            for value, high, df, p, bar in zip(*excess.columns, strict=True):
                end = 0.5
                bounds = t_bound(value, high, df=df, worst_value=1 - bar, n_tests=tests)
                if bounds:
                    # The texts tell nothing in truth; what they tell here is the bar.
                    end = at_most(bounds[0], level) + bar - 0.5
                audited.append((tests * p < level, end))
            yield _columns(audited, effect)

    return simulate


@dataclass(frozen=True)
class ManyAboveTexts:
    """The figures of many ``AboveTexts`` at once, of rows that are a cluster each.

    Shape ``(audits,)`` each: the excess, its standard error, the upper end of its
    interval, degrees of freedom, p, and the bar.
    """

    value: np.ndarray
    se: np.ndarray
    high: np.ndarray
    df: np.ndarray
    p: np.ndarray
    bar: np.ndarray

    @property
    def columns(self) -> list[list[float]]:
        """Return value, high, df, p and bar as numbers, of which a bound is made."""
        arrays = (self.value, self.high, self.df, self.p, self.bar)
        return [array.tolist() for array in arrays]


def above_texts(score: np.ndarray, texts: np.ndarray) -> ManyAboveTexts:
    """Return the excess of scores over the texts alone and over chance, by DeLong.

    Parameters
    ----------
    score, texts
        Shape ``(audits, 2 n)``, members first.
    """
    area, components = _components(score)  # (audits,), (audits, 2, n)
    area_of_texts, components_of_texts = _components(texts)
    se, df = _delong_error(components - components_of_texts)
    se_of_chance, df_of_chance = _delong_error(components)

    # Against the texts alone.

    difference = area - area_of_texts
    reach = scipy.special.stdtrit(df, 0.975) * se
    # Against chance on the logit scale; of a perfect order the exact sign test.
    is_perfect = area == 1
    area_inside = np.where(is_perfect, 0.5, area)
    slope = area_inside * (1 - area_inside)
    logit = scipy.special.logit(area_inside)
    reach_of_chance = scipy.special.stdtrit(df_of_chance, 0.975) * se_of_chance / slope
    high_of_chance = scipy.special.expit(logit + reach_of_chance) - 0.5

    p = 2 * scipy.special.stdtr(df, -abs(difference) / se)
    p_of_chance = 2 * scipy.special.stdtr(
        df_of_chance, -abs(logit) / (se_of_chance / slope)
    )

    p_of_chance = np.where(is_perfect, 2 * 0.5 ** components.shape[2], p_of_chance)
    high_of_chance = np.where(is_perfect, 0.5, high_of_chance)

    # The higher of the two bars counts, and the larger p.
    by_texts = difference <= area - 0.5
    value = np.where(by_texts, difference, area - 0.5)
    return ManyAboveTexts(
        value=value,
        se=np.where(by_texts, se, se_of_chance),
        high=np.minimum(difference + reach, high_of_chance),
        df=np.where(by_texts, df, df_of_chance),
        p=np.where(value > 0, np.maximum(p, p_of_chance), 1.0),
        bar=np.maximum(area_of_texts, 0.5),
    )


def _components(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AUCs and what each row moves them by, members and others."""
    n = scores.shape[1] // 2
    ranks = scipy.stats.rankdata(scores, axis=1)
    within = [scipy.stats.rankdata(side, axis=1) for side in np.split(scores, 2, 1)]
    above = (ranks[:, :n] - within[0]) / n
    below = 1 - (ranks[:, n:] - within[1]) / n
    area = above.mean(axis=1)
    components = np.stack([above, below], axis=1) - area[:, None, None]
    return area, components


def _delong_error(components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return standard errors and Satterthwaite's degrees of freedom.

    Parameters
    ----------
    components
        Shape ``(audits, 2, n)``, from :func:`_components`.
    """
    n = components.shape[2]
    variances = (components**2).sum(axis=2) / n / (n - 1)
    total = np.maximum(variances.sum(axis=1), 1e-12)
    squares = np.maximum((variances**2).sum(axis=1), 1e-24)
    return np.sqrt(total), total**2 / (squares / (n - 1))


def extract(n: int, m: int, *, guessed: float = 0.0) -> Simulation:
    """Simulate identifiers that come back, of n trained and m held-out ones.

    Parameters
    ----------
    guessed
        The rate at which held-out ones come back.
    """

    @cache
    def tested(k: int, held: int) -> tuple[float, float, Bound]:
        """Return p, the difference and its bound where so many come back."""
        of_trained = np.arange(n) < k  # (identifiers,), bool
        of_held_out = np.arange(m) < held
        difference = rate_difference(
            rate_estimate(of_trained, np.ones(n)),
            rate_estimate(of_held_out, np.ones(m)),
        )
        exact = scipy.stats.fisher_exact([[k, n - k], [held, m - held]]).pvalue

        sides = [
            rate_side(of_trained, np.ones(n), sign=1),
            rate_side(of_held_out, np.ones(m), sign=-1),
        ]
        value = difference.value or 0.0
        bound = Bound(
            test="rates",
            value=100 * value,
            rates=[side for side in sides if side is not None],
            worst_value=100.0,
        )
        return max(limits_p(difference), float(exact)), value, bound

    def simulate(
        rng: np.random.Generator, audits: int, level: float
    ) -> Iterator[Audits]:
        # p of 1, 2, ... trained ones next to the usual number of held-out ones.
        held = round(guessed * m)
        ps = []
        for k in range(1, n + 1):
            ps.append(tested(k, held)[0] if k / n > held / m else 1.0)
        power = Power(
            test="hits", n=n, ps=ps, largest_effect=100.0, tolerance=100 * held / m
        )
        detectable = smallest(power, level) or 50.0

        ends: dict[tuple[int, int], float] = {}
        for effect in shifts(detectable, 99.0 - 100 * guessed):
            of_trained = rng.binomial(n, guessed + effect / 100, audits).tolist()
            of_held_out = rng.binomial(m, guessed, audits).tolist()

            audited = []
            for counts in zip(of_trained, of_held_out, strict=True):
                p, value, bound = tested(*counts)
                if counts not in ends:
                    ends[counts] = at_most(bound, level)
                audited.append((p < level and value > 0, ends[counts]))
            yield _columns(audited, effect)

    return simulate


SIMULATIONS: dict[str, Simulation] = {
    "matched, 150 and 100 clusters": matched(150, 100),
    "matched, lognormal changes": matched(60, 40, skew=1.0),
    "matched, one in five remembered": matched(60, 40, spread=True),
    "matched, highest dose of 8 clusters": matched(8, 40),
    "matched, dose of 5 clusters": matched(5, 20),
    "canary, 12, all remembered alike": canary(12),
    "canary, 12, some remembered whole": canary(12, mixture=True),
    "canary, 40, all remembered alike": canary(40, tests=6),
    "canary, 40, some remembered whole": canary(40, tests=6, mixture=True),
    "canary, 12 of 512, some remembered whole": canary(
        12, size=512, tests=6, mixture=True
    ),
    "twins, 150 clusters": twins(150),
    "twins, 30 clusters": twins(30),
    "twins, highest dose of 10 clusters": twins(10),
    "mia, 250 rows a side": mia(250),
    "mia, dose of 40 rows a side": mia(40),
    "series, 60 rows a side": mia(60, tests=1.0),
    "series, 15 rows a side": mia(15, tests=1.0),
    "extract, 207 and 102, none guessed": extract(207, 102),
    "extract, 207 and 102, 5% guessed": extract(207, 102, guessed=0.05),
    "extract, 30 and 20, none guessed": extract(30, 20),
}
"""Attack and setting -> its simulation."""


@dataclass(frozen=True)
class Outcome:
    """What came of the audits of one simulation that found nothing.

    Attributes
    ----------
    nothing, above
        Audits that found nothing, and those of them with more than "at most", by step.
    ends
        Median of "at most" of the audits without an effect that found nothing, as a
        share of the smallest detectable effect.
    """

    audits: int
    nothing: list[int]
    above: list[int]
    ends: float

    @property
    def share(self) -> float:
        """The share with more than "at most", of all that found nothing."""
        return sum(self.above) / max(sum(self.nothing), 1)

    @property
    def worst(self) -> float:
        """The same of the worst effect at which enough audits found nothing."""
        return max(
            above / nothing
            for above, nothing in zip(self.above, self.nothing, strict=True)
            if nothing >= min(MIN_AUDITS_OF_STEP, self.nothing[0])
        )

    @property
    def of_all(self) -> float:
        """The share that found nothing with more there, of all audits, at its worst."""
        return max(self.above) / self.audits


def outcome(name: str, *, tests: int, audits: int, seed: int = 0) -> Outcome:
    """Simulate an attack in a report of so many tests."""
    rng = np.random.default_rng([seed, tests, *name.encode()])
    level = 0.05 / tests

    nothing: list[int] = []
    above: list[int] = []
    middle = 0.0
    detectable = math.nan

    steps = SIMULATIONS[name](rng, audits, level)
    for step, (is_found, ends, effect) in zip(STEPS, steps, strict=True):
        quiet = ends[~is_found]
        nothing.append(len(quiet))
        above.append(int((quiet < effect - 1e-9).sum()))
        if not step:
            # Of audits without a leak.
            middle = float(np.median(quiet))
        if step == 1:
            detectable = effect
    return Outcome(audits, nothing, above, middle / detectable)


def lines(audits: int, seed: int, attacks: Collection[str]) -> Iterator[str]:
    """The table, in Markdown, of all attacks or of some."""
    yield (
        "| attack | tests | found nothing | more than at most | of these (upper limit) "
        "| worst effect | of all audits | at most without a leak |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name in SIMULATIONS:
        if attacks and name.partition(",")[0] not in attacks:
            continue
        for tests in TESTS_OF_REPORTS:
            result = outcome(name, tests=tests, audits=audits, seed=seed)
            n_quiet = sum(result.nothing)
            n_above = sum(result.above)
            _, high = limits(n_above, n_quiet)

            mark = ""
            if result.share > MOST_ABOVE:
                mark = " **above 5%**"
            yield (
                f"| {name} | {tests} | {n_quiet} of {audits * len(STEPS)} | {n_above} "
                f"| {result.share:.2%} ({high:.2%}){mark} | {result.worst:.1%} "
                f"| {result.of_all:.2%} | {result.ends:.2f} |"
            )


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--audits", type=positive_number, default=2000)
    parser.add_argument("--seed", type=whole_number, default=0)
    audits = list(dict.fromkeys(name.partition(",")[0] for name in SIMULATIONS))
    parser.add_argument(
        "--attacks",
        nargs="+",
        choices=audits,
        default=(),
        metavar="AUDIT",
        help=f"some of {', '.join(audits)}; default: all",
    )
    options = parser.parse_args()
    for line in lines(options.audits, options.seed, options.attacks):
        print(line, flush=True)


if __name__ == "__main__":
    run_benchmark(main)
