"""Five letters, reversed: `abdca=` -> `acdba`."""

from itertools import product

from grpolab.tasks import Example


class Reversed:
    """All 1,024 words of five letters, mixed; every eighth is held out."""

    alphabet, unique_answer = "abcd=", True  # one right answer: the exact expected accuracy can be computed

    def examples(self, split, items):
        """Return the first `items` held-out examples, or all to train on."""
        words = ["".join(letters) for letters in product("abcd", repeat=5)]
        words = [words[n * 389 % 1024] for n in range(1024) if (n % 8 == 0) == (split == "evaluation")]
        return [Example(f"{word}=", word[::-1]) for word in (words[:items] if split == "evaluation" else words)]

    def demonstration(self, example, uniforms_U):
        """Return a target of the warm start."""
        return example.answer

    def score(self, example, completion):
        """Return the parts of the reward; `correct` must be among them."""
        return {"correct": float(completion == example.answer)}
