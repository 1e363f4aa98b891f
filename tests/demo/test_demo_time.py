"""How long the demo takes is told beforehand, from what a step takes here."""

import pytest

from spark_audit import demo_time


@pytest.mark.parametrize(("step", "factor"), [(0.02, 1), (0.06, 3)])
def test_a_machine_with_slower_steps_is_told_a_longer_time(step, factor, monkeypatch):
    monkeypatch.setattr(demo_time, "seconds_per_step", lambda: step)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    shortest, longest = demo_time.expected_minutes(2)
    monkeypatch.setattr(demo_time, "seconds_per_step", lambda: 0.02)
    assert shortest < longest
    assert (shortest, longest) == pytest.approx(
        [factor * minutes for minutes in demo_time.expected_minutes(2)]
    )


def test_processes_without_a_core_of_their_own_gain_nothing(monkeypatch):
    monkeypatch.setattr(demo_time, "seconds_per_step", lambda: 0.02)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert demo_time.expected_minutes(2) == demo_time.expected_minutes(1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert demo_time.expected_minutes(2) < demo_time.expected_minutes(1)


def test_a_step_is_timed_and_leaves_the_random_numbers_as_they_were():
    import torch

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert 0 < demo_time.seconds_per_step() < 60
    assert torch.equal(torch.rand(4), expected)


def test_a_range_in_words_covers_the_range():
    assert demo_time.time_in_words(0.2, 0.7) == "1 to 2 minutes"
    assert demo_time.time_in_words(2.7, 5.4) == "2 to 6 minutes"
