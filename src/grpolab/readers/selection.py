"""Which samples train, for every reader: what frameworks say in other words or units becomes our settings here."""

from __future__ import annotations

from collections.abc import Iterator

from grpolab.readers.given import Options

# Setting -> the values that leave no token out in some framework.
ALL_TOKENS = {"top_k": (0, -1, 100_000_000), "top_p": (1,), "min_p": (0,)}
METRIC, BATCHES, NO_LIMIT = "filter_groups.metric", "filter_groups.max_batches", 1_000_000
SHARE, WEIGHT = "reward.overlong_buffer", "reward.weights.overlong"
OVERLONG = ("overlong_tokens", "overlong_weight", "overlong_end")


def settle(values: Options) -> Options:
    """Return settings without those that switch nothing on, and the words of readers (`overlong_..`) as settings.

    A limit of batches below 1 is none. `keep_sampling_mask` is a list: the rules whose tokens the trainer is handed.
    """
    left = {name: it for name, it in values.items() if name not in ALL_TOKENS or it not in (None, *ALL_TOKENS[name])}
    if left.keys() & {*left.pop("keep_sampling_mask", ())}:
        left["keep_sampling_mask"] = True
    if not left.get("mask_truncated_completions", True):
        del left["mask_truncated_completions"]
    if left.get(BATCHES, 1) < 1:
        left[BATCHES] = NO_LIMIT
    passed = (*OVERLONG, *((METRIC, BATCHES) if left.get("num_generations") == 1 else ()))
    return {name: value for name, value in left.items() if name not in passed} | _share(values)[0]


def _share(values: Options) -> tuple[Options, str]:
    """Return DAPO's penalty for the last tokens before `overlong_end` as a share of the longest answer, or why not."""
    if "overlong_tokens" not in values:
        return {}, ""
    tokens, weight, end, longest = (values.get(word) for word in (*OVERLONG, "max_completion_length"))
    if not isinstance(tokens, int | float) or not isinstance(weight, int | float):
        return {}, f"a penalty of {weight} over {tokens} tokens: the file alone does not say both"
    if not isinstance(longest, int | float) or end not in (None, longest):
        ends = "" if end is None else f" before {end}"
        return {}, f"a penalty over {tokens} tokens{ends}: here they are the last of the longest answer, of {longest}"
    if not 0 < tokens <= longest:
        return {}, f"a penalty over {tokens} tokens of {longest}: it must be more than 0, at most all"
    return {SHARE: tokens / longest, WEIGHT: weight}, ""


def explain(values: Options) -> Iterator[str]:
    """Yield a sentence for each of these settings, before `settle`, that is not quite what the framework has."""
    settled = settle(values)
    if settled.get(BATCHES) == NO_LIMIT:
        yield f"{BATCHES}={NO_LIMIT} stands for no limit"
    if METRIC in values and METRIC not in settled:
        yield f"{METRIC}={values[METRIC]}: a group of one differs in nothing; none is left out here"
    if why := _share(values)[1]:
        yield f"{why}; no answer is punished"
    if WEIGHT in settled:
        yield (
            f"{WEIGHT}={settled[WEIGHT]:g}: beside a reward whose scale the file does not say; `correct` weighs 1 here,"
            " 2 would be a reward of 1 or -1"
        )
