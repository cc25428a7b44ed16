"""The clock: what is thrown away, how long is long enough, what is reported."""

import pytest

from evaluator.measure.timing import FEW, Effort, time_programs

EFFORT = Effort(sample_s=0.02, samples=5, total_s=0.1, longest_s=1.0)


class Machine:
    """Programs of a given time on a clock of its own; the first run also loads the program."""

    def __init__(self, program_s, loading_s=0.0, noise=()):
        self.now, self.program_s, self.loading_s, self.noise = 0.0, program_s, loading_s, list(noise)
        self.counts = []

    def __call__(self):
        return self.now

    def run(self, count):
        self.counts.append(count)
        factor = self.noise.pop(0) if self.noise else 1.0
        self.now += count * self.program_s * factor + (self.loading_s if len(self.counts) == 1 else 0.0)


def test_short_programs_are_repeated_until_a_sample_is_long_enough():
    machine = Machine(1e-6, loading_s=3.0)
    timing = time_programs(machine.run, EFFORT, machine)
    assert timing.time_s == pytest.approx(1e-6)
    assert timing.programs * 1e-6 >= EFFORT.sample_s
    assert machine.counts[0] == 1 and timing.samples == EFFORT.samples
    assert sum(machine.counts) < 12 * timing.programs


def test_where_others_take_turns_the_fastest_of_more_and_shorter_samples_counts():
    machine = Machine(1e-6, noise=[1, 1, 1, 1, 1] + [3.0] * 18 + [1.0] + [3.0] * 10)
    shared = EFFORT.shared()
    assert (shared.sample_s, shared.samples) == (EFFORT.sample_s / 10, 4 * EFFORT.samples)
    timing = time_programs(machine.run, shared, machine)
    assert timing.time_s == pytest.approx(1e-6) and timing.spread_s == pytest.approx(2e-6)


def test_long_programs_run_a_few_times():
    machine = Machine(0.4)
    timing = time_programs(machine.run, EFFORT, machine)
    assert (timing.programs, timing.samples) == (1, FEW)
    assert machine.counts == [1] * (2 + FEW)


def test_middling_programs_are_sampled_until_their_time_is_enough():
    machine = Machine(0.021)
    assert time_programs(machine.run, EFFORT, machine).samples == 5
    machine = Machine(0.021)
    longer = Effort(sample_s=0.02, samples=5, total_s=0.2, longest_s=1.0)
    assert time_programs(machine.run, longer, machine).samples == 10


def test_the_median_and_its_deviation_do_not_mind_a_disturbance():
    machine = Machine(0.05, noise=[1, 1, 1.0, 9.0, 1.02, 0.98, 1.0])
    timing = time_programs(machine.run, Effort(0.02, 5, 0.1, 1.0), machine)
    assert timing.time_s == pytest.approx(0.05, rel=0.03)
    assert 0 < timing.spread_s < 0.03 * timing.time_s
    assert timing.samples == 3  # 11 of them are five times 0.1 s
