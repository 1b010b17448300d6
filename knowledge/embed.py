"""Text to vectors without a model: hashed words and character n-grams, weighted by rarity.

Nothing is downloaded and nothing is random, so the same text has the same vector on every machine.
Words catch exact terms; character n-grams catch inflections and compounds ("misaligned", "unaligned").
Word pairs and a table of synonyms were tried on the dev queries: the first made the vectors worse, the
second did not improve hybrid retrieval, so neither is here (`python -m knowledge.evaluate`).
Feature hashing: Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", 2009.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

DIMENSION = 1024
GRAM_WEIGHT = 0.3  # of a character n-gram beside a whole word; a word has many n-grams

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    _WORD.findall(
        """a an and are as at be been but by can do does for from had has have how i if in into is it its
        me my no not of on one only or our so than that the their them then there these they this to too
        was we were what when where which while who why will with would you your"""
    )
)
_SUFFIXES = tuple(_WORD.findall("isation ization ising izing ised ized ise ize ings ing ed es s"))


def stem(word: str) -> str:
    """Cut plural, tense and -ise/-ize from a word, as far as four letters remain."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word[: -len(suffix)]
    return word


def words(text: str) -> list[str]:
    """Stemmed lower-case words of a text, in order, without stop words."""
    return [stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP]


class Embedder:
    """Embeds texts, weighting each feature by its rarity in the corpus it was made from."""

    def __init__(self, corpus: Iterable[str]) -> None:
        texts = [_features(text) for text in corpus]
        self._frequency = Counter(feature for features in texts for feature in features)
        self._count = len(texts)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [len(texts), DIMENSION], rows of Euclidean length 1 (0 for no known word)."""
        vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for feature, count in _features(text).items():
                slot, sign = _slot(feature)
                vector[slot] += sign * self._weight(feature, count)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths > 0, lengths, 1)
        return vectors

    def _weight(self, feature: str, count: int) -> float:
        """Sublinear term frequency times smoothed inverse document frequency.

        A feature that no text of the corpus has weighs nothing: it could match by collision only.
        """
        if feature not in self._frequency:
            return 0.0
        rarity = math.log((1 + self._count) / (1 + self._frequency[feature])) + 1
        return (GRAM_WEIGHT if feature.startswith("#") else 1) * (1 + math.log(count)) * rarity


def _features(text: str) -> Counter[str]:
    """Words as they are, n-grams marked by `#`, each with its count."""
    stemmed = words(text)
    features = Counter(stemmed)
    features.update(f"#{gram}" for word in stemmed for gram in _grams(word))
    return features


def _grams(word: str, shortest: int = 3, longest: int = 5) -> Iterator[str]:
    bounded = f"<{word}>"
    for size in range(shortest, longest + 1):
        for start in range(len(bounded) - size + 1):
            yield bounded[start : start + size]


def _slot(feature: str) -> tuple[int, int]:
    """Slot and sign of a feature; the sign makes collisions cancel on average."""
    digest = zlib.crc32(feature.encode())
    return digest % DIMENSION, 1 if digest & (1 << 31) else -1
