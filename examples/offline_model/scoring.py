"""Scores texts against a query, with BM25 from `bm25s` over lightly stemmed words.

This module does not know what a text is (a summary, a tool, a sentence) or how its score is used.
"""

import logging
import re
from collections.abc import Sequence
from itertools import pairwise

import bm25s
from bm25s.stopwords import STOPWORDS_EN_PLUS

# bm25s itself sets DEBUG and logs a line for every index
logging.getLogger("bm25s").setLevel(logging.WARNING)

_ASKING = (
    "tell explain describe give show please mean means happen happens many much exactly question "
    "answer would must"
)
_STOP = frozenset([*STOPWORDS_EN_PLUS, *_ASKING.split(), "could", "may", "might"])
_RUN = re.compile(r"\w+")
_PART = re.compile(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+")
_ENDINGS = (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
_SHORTEST_STEM = 3


def stem(word: str) -> str:
    """Removes a common English ending: `closes`, `closed` and `closing` are all `clos`."""
    for ending, replacement in _ENDINGS:
        cut = word.removesuffix(ending)
        if _SHORTEST_STEM <= len(cut) < len(word) and not word.endswith("ss"):
            doubled = ending in {"ing", "ed"} and cut[-1] == cut[-2] and cut[-1] not in "lsz"
            return (cut[:-1] if doubled else cut) + replacement
    return word


def words(text: str) -> list[str]:
    """Returns the stems of the telling words; `read_section` gives its parts and itself."""
    stems: list[str] = []
    for run in _RUN.findall(text):
        parts = [part.lower() for part in _PART.findall(run)]
        stems += [stem(part) for part in parts if part not in _STOP]
        if len(parts) > 1:
            stems.append("".join(parts))
    return stems


def key_terms(text: str) -> list[str]:
    """Returns the telling words as they are written, each once: the terms of a search."""
    runs = [run for run in _RUN.findall(text) if run.lower() not in _STOP and len(run) > 1]
    return list(dict.fromkeys(runs))


def coverage(query: str, text: str) -> float:
    """Returns the fraction of the query's telling words that the text contains."""
    wanted = set(words(query))
    return len(wanted & set(words(text))) / max(len(wanted), 1)


def _terms(text: str) -> list[str]:
    """Returns the telling words and their pairs, so that adjacent words score higher."""
    stems = words(text)
    return stems + [f"{left} {right}" for left, right in pairwise(stems)]


def rank(query: str, texts: Sequence[str]) -> list[float]:
    """Returns a score for each text: 1 for the best, 0 if it shares no telling word."""
    terms, corpus = list(dict.fromkeys(_terms(query))), [_terms(text) for text in texts]
    if not terms or not any(corpus):
        return [0.0] * len(texts)
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    scores = [float(score) for score in index.get_scores(terms)]
    top = max(scores)
    return [round(score / top, 4) for score in scores] if top else scores
