import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_audit.stats.bootstrap import cluster_sums, draw_weights, median_replicates
from spark_audit.stats.sign_flips import max_t


class TestClusterSums:
    @given(st.lists(st.tuples(st.integers(0, 6), st.integers(-9, 9)), min_size=1))
    def test_sums_equal_those_of_a_loop(self, rows):
        codes = [c for c, _ in rows]
        values = np.array([[v, 2.0 * v] for _, v in rows])
        expected = np.zeros((8, 2))
        for code, value in zip(codes, values, strict=True):
            expected[code] += value
        np.testing.assert_array_equal(cluster_sums(values, codes, 8), expected)
        np.testing.assert_array_equal(
            cluster_sums(values[:, 0], codes), expected[: max(codes) + 1, 0]
        )

    def test_float32_is_summed_in_float64(self):
        values = np.array([2.0**24, 1.0, 1.0], dtype=np.float32)
        assert cluster_sums(values, [0, 0, 0])[0] == 2**24 + 2


class TestWeights:
    def test_memory_blocks_change_nothing(self, monkeypatch):
        def everything() -> list[np.ndarray]:
            rng = np.random.default_rng(0)
            weights = draw_weights(13, replicates=101, seed=1)
            values = rng.normal(size=40)
            codes = rng.integers(0, 13, 40)
            table = rng.normal(size=(24, 3))
            return [
                weights.drawn,
                weights.totals(table[:13]),
                median_replicates(weights, values, codes),
                max_t(table, seed=2, replicates=199),
                max_t(table[:9], seed=2),
            ]

        replicates_at_once = everything()
        monkeypatch.setattr("spark_audit.stats.bootstrap._REPLICATES_CHUNK", 39)
        for replicates, replicates_in_blocks in zip(
            replicates_at_once, everything(), strict=True
        ):
            np.testing.assert_allclose(
                replicates, replicates_in_blocks, rtol=1e-13, equal_nan=True
            )


class TestMedianReplicates:
    @given(
        st.lists(
            st.tuples(st.integers(0, 3), st.floats(-100, 100, width=32)), min_size=1
        ),
        st.integers(0, 10**6),
    )
    def test_equals_numpy_on_the_expanded_resample(self, rows, seed):
        codes = np.array([c for c, _ in rows])
        values = np.array([v for _, v in rows])
        weights = draw_weights(4, replicates=6, seed=seed)
        medians = median_replicates(weights, values, codes)
        for weight, median in zip(weights.drawn, medians, strict=True):
            expanded = np.repeat(values, weight[codes])
            if len(expanded):
                assert median == np.median(expanded)
            else:
                assert np.isnan(median)

    def test_medians_of_no_values_are_nan(self):
        weights = draw_weights(2, replicates=3, seed=0)
        medians = median_replicates(weights, [], np.array([], dtype=int))
        assert np.isnan(medians).all()
