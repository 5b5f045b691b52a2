r"""Tasks with generated data: digits to add or to sort, letters to count.

| task | prompt -> answer |
| --- | --- |
| `Addition` | `12+34=` -> `46` |
| `WrittenAddition` | `47+85=` -> `7+5=12;4+8=12+1=13;132`: every place from the right, then the sum |
| `Sorting` | `3141592653>` -> `1123345569` |
| `FillerSorting` | `314159>` -> `~~113459`, after any number of fillers |
| `CharCount` | `How many n are there in word n-i-n-e?` -> `n = n`, `i != n`, ..., `\boxed{2}` |

The data of a task are always the same: they depend on its settings and not on the run's seed.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from grpolab import seeds
from grpolab.tasks.base import EVALUATION_PROMPTS, TRAINING_PROMPTS, Example

EVALUATION_SHARE = 4  # one pair in four of `addition` is held out
FILLER = "~"
BOX = "\\boxed"


class OneAnswerTask:
    """A task in which every prompt has exactly one right completion, which is also the demonstration."""

    unique_answer = True

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct` if the completion is the answer, `format` if it has an answer's shape."""
        return {"correct": float(completion == example.answer), "format": float(self.has_shape(completion))}

    def has_shape(self, completion: str) -> bool:
        """Return True if a text could be the answer of some prompt."""
        return completion.isdecimal()


class Addition(OneAnswerTask):
    """Every pair of numbers with `digits` digits, once; a fixed random quarter of them is held out for evaluation."""

    alphabet = "0123456789+="

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def examples(self, split: str, items: int) -> list[Example]:
        """Return pairs of the split; fewer where fewer exist."""
        low, high = 10 ** (self.digits - 1), 10**self.digits
        span = high - low
        order = seeds.permutation(0, f"addition/{self.digits}", 0, span * span).tolist()
        held_out = len(order) // EVALUATION_SHARE
        indices = order[:held_out][:items] if split == "evaluation" else order[held_out:]
        pairs = ((low + index // span, low + index % span) for index in indices)
        return [Example(f"{a}+{b}=", str(a + b)) for a, b in pairs]


class WrittenAddition(OneAnswerTask):
    """Random pairs of numbers with `digits` digits, without leading zeros; the splits share none.

    Each step adds one decimal place: the sum of two digits, then the sum with the carry, both in two digits, of which
    the first is the next carry. The whole text is judged. If only the final sum were judged, texts with wrong steps
    could be right too, and expected accuracy could only be estimated.
    """

    alphabet = "0123456789+=;"

    def __init__(self, digits: int) -> None:
        self.digits = digits
        place = "[0-9][+][0-9]=[0-9]{2}"
        self.shape = re.compile(f"{place};(?:{place}[+][0-9]=[0-9]{{2}};){{{digits - 1}}}[0-9]+")

    def examples(self, split: str, items: int) -> list[Example]:
        cut = self.digits
        texts = [text for text in digits_of_split(split, 2 * cut) if "0" not in (text[0], text[cut])]
        if split == "evaluation":
            texts = texts[:items]
        return [Example(f"{text[:cut]}+{text[cut:]}=", written_sum(text[:cut], text[cut:])) for text in texts]

    def has_shape(self, completion: str) -> bool:
        """Return True if the text has one step per decimal place, then digits."""
        return self.shape.fullmatch(completion) is not None


def written_sum(first: str, second: str) -> str:
    """Return the steps of adding two numbers of equally many digits, and their sum."""
    steps, carry = "", 0
    for place, (a, b) in enumerate(zip(reversed(first), reversed(second), strict=True)):
        total = int(a) + int(b)
        carried = f"+{carry}={total + carry:02}" if place else ""  # nothing is carried into the last place
        steps += f"{a}+{b}={total:02}{carried};"
        carry = (total + carry) // 10
    return f"{steps}{int(first) + int(second)}"


class Sorting(OneAnswerTask):
    """Random digit strings; the splits share none."""

    alphabet = "0123456789>"

    def __init__(self, length: int) -> None:
        self.length = length

    def examples(self, split: str, items: int) -> list[Example]:
        strings = digits_of_split(split, self.length)
        texts = strings[:items] if split == "evaluation" else strings
        return [Example(f"{digits}>", "".join(sorted(digits))) for digits in texts]

    def has_shape(self, completion: str) -> bool:
        """Return True if the text is digits, as many as in the prompt."""
        return completion.isdecimal() and len(completion) == self.length


class FillerSorting(Sorting):
    """Sorting, where the answer may begin with filler tokens, so that the policy chooses its length.

    The more fillers a warm-start target has, the more often it is wrong. So the initial policy's long answers are worse
    than its short ones, and length normalisation has an effect (Dr. GRPO, 2503.20783).
    """

    alphabet = "0123456789>" + FILLER
    unique_answer = False

    def __init__(self, length: int, max_fillers: int, corruption_base: float, corruption_per_filler: float) -> None:
        super().__init__(length)
        self.max_fillers = max_fillers
        self.corruption_base, self.corruption_per_filler = corruption_base, corruption_per_filler

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return a uniform number of fillers, then the digits: sorted, or wrong with the task's probability."""
        fillers = int(uniforms_U[0] * (self.max_fillers + 1))
        digits = example.answer
        if uniforms_U[1] < self.corruption_base + self.corruption_per_filler * fillers:
            digits = "".join(digits[index] for index in np.argsort(uniforms_U[2 : 2 + self.length]))
        return FILLER * fillers + digits

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score the digits after the fillers, as `Sorting` does."""
        return super().score(example, completion.lstrip(FILLER))


def digits_of_split(split: str, length: int) -> tuple[str, ...]:
    """Return the split's strings of `length` random digits; the splits share none."""
    strings = random_digits(min(TRAINING_PROMPTS + EVALUATION_PROMPTS, 10**length), length)
    held_out = len(strings) * EVALUATION_PROMPTS // (TRAINING_PROMPTS + EVALUATION_PROMPTS)
    return strings[:held_out] if split == "evaluation" else strings[held_out:]


@lru_cache(maxsize=4)
def random_digits(count: int, length: int) -> tuple[str, ...]:
    """Return `count` different strings of digits."""
    strings: dict[str, None] = {}
    attempt = 0
    while len(strings) < count:
        places = np.arange(count)[:, None], np.arange(length)
        rows = seeds.counter_hash(0, f"digits/{length}", attempt, *places) % np.uint64(10)
        strings.update(dict.fromkeys("".join(map(str, row)) for row in rows.tolist()))
        attempt += 1
    return tuple(strings)[:count]


class CharCount:
    """Count a letter in a random word; the splits share no prompt.

    Prompt, reward and supervised start with steps follow verl's recipe `char_count` (Apache-2.0). As there, word length
    and count are uniform. The steps are those of the recipe's README, without the sentence that its script adds.
    """

    alphabet = string.ascii_lowercase + string.digits + "H -?=!\\{}\n"
    unique_answer = False  # only the count is judged, so the steps may differ

    def __init__(self, min_length: int, max_length: int, chat: bool) -> None:
        self.min_length, self.max_length = min_length, max_length
        self.chat = chat

    def examples(self, split: str, items: int) -> list[Example]:
        every = questions(TRAINING_PROMPTS + EVALUATION_PROMPTS, self.min_length, self.max_length)
        return list(every[:EVALUATION_PROMPTS][:items] if split == "evaluation" else every[EVALUATION_PROMPTS:])

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Compare every letter with the counted one, then give the count."""
        _, _, letter, *_, word = example.prompt.removesuffix("?").split()
        steps = [f"{other} {'=' if other == letter else '!='} {letter}" for other in word.split("-")]
        return "\n".join([*steps, f"{BOX}{{{example.answer}}}"])

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct` if the last box holds the count, `format` if it holds a number."""
        _, box, rest = completion.rpartition(BOX)
        inside, closed, _ = rest.removeprefix("{").partition("}")
        count = inside if box and rest.startswith("{") and closed else ""
        return {"correct": float(count == example.answer), "format": float(count.isdecimal())}


@lru_cache(maxsize=4)
def questions(count: int, min_length: int, max_length: int) -> tuple[Example, ...]:
    """Return `count` different questions about words."""
    count_of: dict[str, str] = {}
    attempt, draws = 0, 3 + 2 * max_length
    while len(count_of) < count:
        purpose = f"char_count/{min_length}-{max_length}"
        for u in seeds.uniforms(0, purpose, attempt, np.arange(count)[:, None], np.arange(draws)):
            length = min_length + int(u[0] * (max_length - min_length + 1))
            times = 1 + int(u[1] * length)
            letter = string.ascii_lowercase[int(u[2] * 26)]
            others = string.ascii_lowercase.replace(letter, "")
            letters = [letter] * times + [others[int(draw * 25)] for draw in u[3 : 3 + length - times]]
            word = "-".join(letters[place] for place in np.argsort(u[-length:]))
            count_of[f"How many {letter} are there in word {word}?"] = str(times)
        attempt += 1
    return tuple(Example(prompt, answer) for prompt, answer in count_of.items())[:count]
