"""Scores texts against a query: BM25 of `bm25s` over lightly stemmed words.

Nothing here knows what a text is (a summary, a tool, a sentence) or what follows from its score.
"""

import logging
import re
from collections.abc import Sequence
from itertools import pairwise

import bm25s
from bm25s.stopwords import STOPWORDS_EN_PLUS

# bm25s itself sets DEBUG and says a line for every index
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
    """The word without a common English ending: `closes`, `closed` and `closing` are all `clos`."""
    for ending, put in _ENDINGS:
        cut = word.removesuffix(ending)
        if _SHORTEST_STEM <= len(cut) < len(word) and not word.endswith("ss"):
            doubled = ending in {"ing", "ed"} and cut[-1] == cut[-2] and cut[-1] not in "lsz"
            return (cut[:-1] if doubled else cut) + put
    return word


def words(text: str) -> list[str]:
    """Stems of the telling words; `read_section` gives its parts and itself."""
    found: list[str] = []
    for run in _RUN.findall(text):
        parts = [part.lower() for part in _PART.findall(run)]
        found += [stem(part) for part in parts if part not in _STOP]
        if len(parts) > 1:
            found.append("".join(parts))
    return found


def key_terms(text: str) -> list[str]:
    """The telling words as they were written, each once: what one would type to search."""
    return list(
        dict.fromkeys(
            run for run in _RUN.findall(text) if run.lower() not in _STOP and len(run) > 1
        )
    )


def coverage(query: str, text: str) -> float:
    """The part of the query's telling words that the text has."""
    asked = set(words(query))
    return len(asked & set(words(text))) / max(len(asked), 1)


def _terms(text: str) -> list[str]:
    """The telling words and their neighbouring pairs, so that words found together count for more."""
    found = words(text)
    return found + [f"{left} {right}" for left, right in pairwise(found)]


def rank(query: str, texts: Sequence[str]) -> list[float]:
    """One score per text, in order, the best being 1; 0 where no telling word is shared."""
    asked, corpus = list(dict.fromkeys(_terms(query))), [_terms(text) for text in texts]
    if not asked or not any(corpus):
        return [0.0] * len(texts)
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    scores = [float(score) for score in index.get_scores(asked)]
    top = max(scores)
    return [round(score / top, 4) for score in scores] if top else scores
