"""A task in Python: the largest of six digits, `483012=` -> `8`."""

from grpolab.tasks import Example


class Largest:
    """Six digits in a scrambled order; every twentieth prompt is held out."""

    alphabet, unique_answer = "0123456789=", True  # one right answer: the exact expected accuracy can be computed

    def examples(self, split, items):
        """Return the first `items` held-out examples, or all to train on."""
        texts = [f"{(n * 48271) % 999_983:06d}" for n in range(40_000) if (n % 20 == 0) == (split == "evaluation")]
        return [Example(f"{text}=", max(text)) for text in (texts[:items] if split == "evaluation" else texts)]

    def demonstration(self, example, uniforms_U):
        """Return a target of the warm start."""
        return example.answer

    def score(self, example, completion):
        """Return the parts of the reward; `correct` must be among them."""
        return {"correct": float(completion == example.answer)}
