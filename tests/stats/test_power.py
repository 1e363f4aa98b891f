import numpy as np
import pytest
from scipy import integrate, stats

from spark_audit.stats.estimate import Bound, Estimate, Power
from spark_audit.stats.power import (
    NOT_DETECTED,
    clusters_needed,
    mde,
    smallest,
    with_mde,
)
from spark_audit.stats.sign_flips import sign_flip


def power_of(effect: float, clusters: int, level: float) -> float:
    """Power of the two-sided t test at se 1, by integrating over the chi density."""
    df = clusters - 1
    critical = stats.t.ppf(0.5 + level / 2, df)

    def density(s: float) -> float:
        share_beyond = stats.norm.sf(critical * s - effect)
        share_beyond += stats.norm.cdf(-critical * s - effect)
        return float(stats.chi.pdf(s * np.sqrt(df), df) * np.sqrt(df) * share_beyond)

    return float(integrate.quad(density, 0, 6, points=[0.5, 1, 1.5], limit=400)[0])


class TestMde:
    @pytest.mark.parametrize("clusters", [2, 3, 5, 10, 51])
    @pytest.mark.parametrize("level", [0.95, 0.9])
    def test_has_exactly_this_power(self, clusters, level):
        effect = mde(1.0, clusters=clusters, level=level)
        assert power_of(effect, clusters, level) == pytest.approx(0.8, abs=1e-7)


class TestClustersNeeded:
    SD = 0.2 * np.sqrt(51)

    @pytest.mark.parametrize(
        ("effect", "normal"), [(0.5, 65), (0.3, 178), (0.2, 401), (0.1, 1602)]
    )
    def test_an_error_of_a_fifth_at_51_clusters_has_its_smallest_effect(
        self, effect, normal
    ):
        exact = clusters_needed(self.SD, effect)
        assert normal <= exact <= normal + 3
        assert mde(self.SD / np.sqrt(exact), clusters=exact) <= effect
        fewer = exact - 1
        assert mde(self.SD / np.sqrt(fewer), clusters=fewer) > effect

    @pytest.mark.parametrize("effect", [0.8, 1.0, 1.3, 2.0, 3.0])
    def test_few_clusters_are_the_fewest_that_students_t_asks_for(self, effect):
        """One cluster less has less than 80% power, by integrating, as many have it."""
        count = clusters_needed(1.0, effect)
        assert power_of(effect * np.sqrt(count), count, 0.95) >= 0.8 - 1e-7
        if count > 2:
            fewer = count - 1
            assert power_of(effect * np.sqrt(fewer), fewer, 0.95) < 0.8

    def test_never_fewer_than_two(self):
        assert clusters_needed(1.0, 1e6) == 2


class TestWithMde:
    ESTIMATE = Estimate(
        0.3, low=-0.1, high=0.7, interval="jackknife-t", se=0.2, n=261, clusters=51
    )

    def test_an_estimate_gets_its_smallest_effect(self):
        filled = with_mde(self.ESTIMATE)
        assert filled.mde == mde(0.2, clusters=51)
        assert filled.note == ""

    def test_says_what_an_interval_over_the_null_means(self):
        assert with_mde(self.ESTIMATE, null=0.0).note == NOT_DETECTED
        assert with_mde(self.ESTIMATE, null=-0.2).note == ""
        noted = self.ESTIMATE.noting("first")
        assert with_mde(noted, null=0.0).note == f"first; {NOT_DETECTED}"

    @pytest.mark.parametrize(
        "estimate",
        [Estimate.missing("no data"), Estimate(0.0, n=5, clusters=5, note="no spread")],
    )
    def test_leaves_an_estimate_without_an_error_alone(self, estimate):
        assert with_mde(estimate, null=0.0) == estimate

    def test_of_few_clusters_it_is_the_exact_one_of_as_many(self):
        few = self.ESTIMATE.__class__(0.3, low=-1, high=1, se=0.2, n=5, clusters=3)
        effect = with_mde(few).mde / 0.2
        assert power_of(effect, 3, 0.95) == pytest.approx(0.8, abs=1e-7)


@pytest.mark.parametrize(("clusters", "level"), [(8, 0.05), (10, 0.0125)])
def test_a_sign_flip_of_few_clusters_finds_its_effect_in_four_of_five(clusters, level):
    """By its own p over all patterns, of draws that no one else has seen."""
    least = 2.0 ** (1 - clusters)
    test = Power(test="sign-flip", se=1.0, df=clusters - 1, n=clusters, least_p=least)
    # The standard error of a mean of so many clusters is 1.
    effect = smallest(test, level)
    draws = np.random.default_rng(11).standard_normal((400, clusters))
    means = draws * np.sqrt(clusters) + effect
    share_found = np.mean([sign_flip(mean, seed=0) <= level for mean in means])
    assert share_found == pytest.approx(0.8, abs=0.06)


def test_hits_are_found_in_four_of_five_by_the_binomial_s_own_tail():
    """Of ten, three hits have a p below 0.05, and two of exactly 0.05 have not."""
    test = Power(test="hits", n=10, ps=[0.4, 0.05, 0.02, 0.001], largest_effect=100.0)
    rate = smallest(test, 0.05) / 100
    assert stats.binom.sf(2, 10, rate) == pytest.approx(0.8)
    # At a stricter level the fourth is needed.
    rate = smallest(test, 0.01) / 100
    assert stats.binom.sf(3, 10, rate) == pytest.approx(0.8)


def test_a_number_of_tests_is_above_0():
    for n_tests in (0.0, -1.0):
        with pytest.raises(ValueError, match="^n_tests "):
            Power(test="t", se=1.0, n_tests=n_tests)
        with pytest.raises(ValueError, match="^n_tests "):
            Bound(test="t", value=1.0, se=1.0, n_tests=n_tests)
