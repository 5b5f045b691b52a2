"""The saturation curve: what it recovers, against scipy's own fit, and when it says that it cannot tell."""

import numpy as np
import pytest
from scipy.optimize import curve_fit

from grpolab.report.statistics.curves import fit_saturation
from grpolab.report.statistics.intervals import TooFewError

COMPUTE = np.arange(13) * 100.0


def curve(compute, asymptote, exponent, midpoint, start=0.3):
    with np.errstate(divide="ignore"):
        return start + (asymptote - start) / (1 + (midpoint / compute) ** exponent)


@pytest.mark.parametrize("truth", [(0.8, 1.5, 300), (0.6, 3.0, 500), (0.1, 2.0, 300)])
def test_exact_curves_give_back_their_parameters(truth):
    fit = fit_saturation(COMPUTE, curve(COMPUTE, *truth))
    assert (fit.start, fit.asymptote, fit.exponent, fit.midpoint) == pytest.approx((0.3, *truth), rel=1e-4)
    assert all(fit.identified.values())
    assert fit.at([250.0, 5000.0]) == pytest.approx(curve(np.array([250.0, 5000.0]), *truth), rel=1e-4)


def test_noisy_curves_agree_with_an_unbounded_fit():
    noise = np.append(0, np.random.default_rng(0).normal(0, 0.01, 12))
    score = curve(COMPUTE, 0.8, 1.5, 300) + noise
    (asymptote, exponent, midpoint), _ = curve_fit(curve, COMPUTE[1:], score[1:], p0=(0.7, 1, 200))
    fit = fit_saturation(COMPUTE, score)
    assert (fit.asymptote, fit.exponent, fit.midpoint) == pytest.approx((asymptote, exponent, midpoint), rel=1e-3)


def test_what_a_curve_does_not_identify_is_said():
    rising = fit_saturation(COMPUTE, 0.3 + 1e-4 * COMPUTE + 0.01 * np.cos(COMPUTE))  # no sign of an end
    assert not rising.identified["asymptote"]
    assert not rising.identified["midpoint"]
    flat = fit_saturation(COMPUTE, 0.3 + 0.01 * np.cos(COMPUTE))
    assert not flat.identified["exponent"]
    through_all = fit_saturation(COMPUTE[:4], curve(COMPUTE[:4], 0.8, 1.5, 200))
    assert not any(through_all.identified.values())


def test_too_few_evaluations_are_refused():
    with pytest.raises(TooFewError, match="needs three evaluations after the start, has 2"):
        fit_saturation(COMPUTE[:3], COMPUTE[:3])
