"""Quantiles and probabilities of the distributions that comparisons need, in plain Python."""

from collections.abc import Callable
from functools import lru_cache
from math import comb, exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist

__all__ = ["beta_quantile", "sign_test", "t_quantile", "t_test", "wilson", "z_quantile"]

_TINY = 1e-300
_PRECISION = 1e-15
_STEPS = 500


def z_quantile(share: float) -> float:
    """Returns the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(share)


def t_test(t: float, df: float) -> float:
    """Returns the two-sided p-value of a t statistic with `df` degrees of freedom."""
    if (square := t * t) < 1:  # keeps the digits of a small t; for a large one, this would give 0
        return 1 - beta_share(square / (df + square), 0.5, df / 2)
    return beta_share(df / (df + square), df / 2, 0.5)


def t_quantile(share: float, df: float) -> float:
    """Returns the quantile of Student's t distribution, for a share between 0.5 and 1."""
    # The two-sided p-value is the share of a beta distribution, whose quantile is found exactly.
    x = beta_quantile(2 * (1 - share), df / 2, 0.5)
    return sqrt(df * (1 - x) / x) if x > 0 else inf


def beta_share(x: float, a: float, b: float) -> float:
    """Returns the regularized incomplete beta function, the share of Beta(a, b) below `x`."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta_share(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluates the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1 / max(abs(1 - (a + b) * x / (a + 1)), _TINY)
    total = d
    for m in range(1, _STEPS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + factor * d or _TINY)
            c = 1 + factor / c or _TINY
            total *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return total


@lru_cache(maxsize=1024)  # comparisons of equally many cases ask for the same quantile
def beta_quantile(share: float, a: float, b: float) -> float:
    """Returns the quantile of Beta(a, b)."""
    return _bisect(lambda x: beta_share(x, a, b) - share, 0.0, 1.0)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Returns the zero of an increasing function between `low` and `high`."""
    while (middle := (low + high) / 2) not in (low, high):
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def sign_test(up: int, down: int) -> float:
    """Returns the exact two-sided p-value of McNemar's test for the counts of changed pairs."""
    count = up + down
    tail = sum(comb(count, i) for i in range(min(up, down) + 1))
    return min(1.0, 2 * tail / (1 << count))


def wilson(successes: float, count: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Returns Wilson's interval for a rate; `None` for no observations."""
    if not count:
        return None
    z, rate = z_quantile((1 + confidence) / 2), successes / count
    square = z * z / count
    center = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * sqrt(rate * (1 - rate) / count + square / (4 * count))
    low = 0.0 if successes == 0 else center - half
    return low, 1.0 if successes == count else center + half
