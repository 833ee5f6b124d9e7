"""Intervals where a task has several outcomes (orderings, epochs): they are not independent, so tasks are resampled."""

from collections.abc import Sequence

from events.errors import BadInput
from events.late import np
from runtime.statistics import Interval


def clustered_difference(
    differences: Sequence[Sequence[float]], *, seed: int = 0, resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Mean of paired differences, with a percentile bootstrap interval that resamples whole tasks.

    Args:
        differences: for each task, second minus first of every outcome pair it has.
        seed: of the resampling; the same seed gives the same interval.
        resamples: how many bootstrap samples.
        level: coverage, in (0, 1).

    Raises:
        BadInput: no task has an outcome, or a level that is none.
    """
    clusters = [cluster for cluster in differences if cluster]
    if not clusters or not 0 < level < 1:
        raise BadInput("a bootstrap needs at least one outcome and a level between 0 and 1")
    sums = np.array([sum(cluster) for cluster in clusters], dtype=np.float64)
    sizes = np.array([len(cluster) for cluster in clusters], dtype=np.float64)
    draws = np.random.default_rng(seed)
    means = np.empty(resamples, dtype=np.float64)
    for i in range(resamples):
        picked = draws.integers(0, len(clusters), len(clusters))
        means[i] = sums[picked].sum() / sizes[picked].sum()
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate=float(sums.sum() / sizes.sum()), low=float(low), high=float(high))
