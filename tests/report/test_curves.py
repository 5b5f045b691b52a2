"""Time to a threshold, against the textbook example."""

import numpy as np
import pytest
from statsmodels.duration.survfunc import SurvfuncRight

from grpolab.report.statistics.curves import kaplan_meier, time_to_threshold
from grpolab.report.statistics.intervals import TooFewError

# Freireich et al. (1963): weeks in remission on 6-MP (0: still in remission), in every textbook.
MERCAPTOPURINE = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]

RELAPSED = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], dtype=bool)


def test_kaplan_meier_is_the_textbook_example():
    curve = kaplan_meier(MERCAPTOPURINE, RELAPSED)
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    found = dict(zip(curve.time_X, curve.share_X, strict=True))
    assert {week: round(found[week], 3) for week in published} == published
    assert (curve.median, curve.n, curve.censored) == (23, 21, 12)
    # The interval on the log(-log) scale, from statsmodels' Greenwood errors.
    other = SurvfuncRight(MERCAPTOPURINE, RELAPSED.astype(int))
    at = np.searchsorted(curve.time_X, other.surv_times)
    scale = 1.96 * other.surv_prob_se / (other.surv_prob * np.log(other.surv_prob))
    assert np.allclose(curve.low_X[at], other.surv_prob ** np.exp(-scale), atol=1e-4)
    assert np.allclose(curve.high_X[at], other.surv_prob ** np.exp(scale), atol=1e-4)


def test_a_run_that_never_reaches_the_threshold_is_censored_at_its_end():
    steps = [0, 10, 20, 30]
    assert time_to_threshold(steps, [0.1, 0.6, 0.4, 0.7], 0.5) == (10, True)
    assert time_to_threshold(steps, [0.1, 0.2, 0.4, 0.4], 0.5) == (30, False)
    assert kaplan_meier([10, 30, 30], [True, False, False]).median == np.inf
    with pytest.raises(TooFewError, match="at least two runs, has 1"):
        kaplan_meier([10], [True])


COMPUTE = np.arange(13) * 100.0
