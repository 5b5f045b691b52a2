"""Where a number becomes evidence: every threshold of the doctor, in one place.

Those that follow from arithmetic say so; the others were set on development runs (seeds 0 and 1, tasks addition and
sorting; SHARPER again after a first scoring on seeds 10 and 11), never on the runs that `make doctor-check` scores.
"""

from __future__ import annotations

from grpolab.quantities import Thresholds

_STABILITY = Thresholds()  # what the report means by the same words

# --- does the policy move? ----------------------------------------------------------------------------------------
STILL_REACH = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (learner.py asserts it)
JUMP = 10.0  # the third pass's distance from 1 over the second's, which is 2 for steps of equal size

# --- gradient and step ----------------------------------------------------------------------------------------------
EQUAL_GROUPS = 0.99  # share of groups with equal rewards that leaves no signal at all
STARVED_GROUPS = 0.8  # as in report/stability.py
STARVED_PART = 0.5  # of the run that is looked at: a batch has too few groups to count one alone
TINY_ADVANTAGE = 1e-2  # size of the advantages, in centred rewards, that no normalisation by a real std gives
SMALL_FRACTION = 0.1  # of Adam's full step: a gradient of a ninth of adam_epsilon gives it (g / (g + epsilon))
WARM = 0.1  # share of the peak learning rate that a warm-up should at least have reached
FLOAT32_SPACING = 6e-8  # of a weight of size 1: a smaller step is rounded to nothing
ON_GRID = 0.999  # share of weights that are bfloat16 numbers; of float32 weights 2^-16 are
FEW_MOVED = 0.5  # share of the weights that moved, where rounding swallows updates

# --- trust region ---------------------------------------------------------------------------------------------------
CLIPPED_AT_ONCE = 0.3  # share of tokens with an advantage that are clipped from the second update on; at most about 0.5
NARROW = 0.25  # what clipping at 0.2 would have clipped, over what was clipped

# --- sampler and trainer --------------------------------------------------------------------------------------------
NOISE_DIRECTION = 0.5  # KL(old || new) by k1 over k3: 1 where old is the sampler, 0 where both are equally noisy
BFLOAT16_KL = 5e-4  # nat, k3: log-probs that are off by .03, twice what bfloat16 did to the tiny model's
SHARPER = 0.1  # how much lower the sampler's entropy is, relative, where it was cooler; reading amiss never lowers it
FLATTER = 0.25  # how much higher, where it was hotter; reading amiss raises it a little

# --- training breaks down -------------------------------------------------------------------------------------------
KL_DOMINATES = 10.0  # beta times KL, in advantages (which are about 1)
KL_HUGE = 10.0  # nat per token: a mean of exp(difference), which a few tokens make
CELL_RATIO = 5.0  # of a token with A < 0: the clip would have let a token with A > 0 go at 1.2
CELL_SHARE = 0.2  # of the updates
SPIKE = _STABILITY.spike_factor  # largest gradient norm over the median
TAIL = _STABILITY.tail  # share of a run that 'first' and 'last' mean
DROP = 0.9  # share of the score at the start that a collapsed run lost: small batches alone can cost three quarters
ENTROPY_LEFT = _STABILITY.entropy_ratio  # of the start
ENTROPY_HALVED = 0.5  # of the start: enough where a setting asks for it
ENTROPY_GROWTH = _STABILITY.entropy_explosion  # last over first
TRUNCATED = 0.5  # share of completions at the end

# --- metric ---------------------------------------------------------------------------------------------------------
ZERO_LOSS = 1e-6  # rounding of a mean of centred advantages
MISCOUNTED = 0.005  # relative difference of a share from its count
