"""Statistics for a handful of seeds: pure functions on arrays, each with its source and what it refuses.

Dimension letters: S seeds, T tasks, A arms, X points, L levels, R replicates. Arms share warm start, prompts and noise
with their seed, so differences are taken seed by seed.

Where a gap is an honest answer (a band with one seed, a rate without runs), the result is NaN. Where a number would say
more than the data do, TooFewError is raised; its text is the sentence for the report.
"""

from grpolab.report.statistics.intervals import LEAST_FOR_BOOTSTRAP as LEAST_FOR_BOOTSTRAP
from grpolab.report.statistics.intervals import Interval as Interval
from grpolab.report.statistics.intervals import TooFewError as TooFewError
from grpolab.report.statistics.intervals import bootstrap as bootstrap
from grpolab.report.statistics.intervals import iqm as iqm
from grpolab.report.statistics.intervals import optimality_gap as optimality_gap
from grpolab.report.statistics.intervals import performance_profile as performance_profile
from grpolab.report.statistics.intervals import probability_of_improvement as probability_of_improvement
from grpolab.report.statistics.intervals import resample as resample
from grpolab.report.statistics.intervals import sd_interval as sd_interval
from grpolab.report.statistics.intervals import share_band as share_band
from grpolab.report.statistics.intervals import share_interval as share_interval
from grpolab.report.statistics.intervals import t_band as t_band
from grpolab.report.statistics.intervals import t_interval as t_interval
from grpolab.report.statistics.intervals import worst_mean as worst_mean
from grpolab.report.statistics.power import MOST_NEEDED as MOST_NEEDED
from grpolab.report.statistics.power import PARAMETERS as PARAMETERS
from grpolab.report.statistics.power import POWER as POWER
from grpolab.report.statistics.power import LogRank as LogRank
from grpolab.report.statistics.power import Saturation as Saturation
from grpolab.report.statistics.power import Survival as Survival
from grpolab.report.statistics.power import detectable_difference as detectable_difference
from grpolab.report.statistics.power import detectable_rate_difference as detectable_rate_difference
from grpolab.report.statistics.power import equivalence_power as equivalence_power
from grpolab.report.statistics.power import fit_saturation as fit_saturation
from grpolab.report.statistics.power import kaplan_meier as kaplan_meier
from grpolab.report.statistics.power import log_rank as log_rank
from grpolab.report.statistics.power import paired_t_power as paired_t_power
from grpolab.report.statistics.power import rate_seeds_to_decide as rate_seeds_to_decide
from grpolab.report.statistics.power import seeds_to_decide as seeds_to_decide
from grpolab.report.statistics.power import time_to_threshold as time_to_threshold
from grpolab.report.statistics.power import trend_seeds_to_decide as trend_seeds_to_decide
from grpolab.report.statistics.tests import Difference as Difference
from grpolab.report.statistics.tests import equivalence as equivalence
from grpolab.report.statistics.tests import fisher as fisher
from grpolab.report.statistics.tests import holm as holm
from grpolab.report.statistics.tests import jonckheere_trend as jonckheere_trend
from grpolab.report.statistics.tests import page_trend as page_trend
from grpolab.report.statistics.tests import paired_difference as paired_difference
from grpolab.report.statistics.tests import rank_trend as rank_trend
from grpolab.report.statistics.tests import rate_difference as rate_difference
from grpolab.report.statistics.tests import welch_difference as welch_difference
from grpolab.report.statistics.tests import welch_error as welch_error
from grpolab.report.statistics.tests import wilson as wilson
