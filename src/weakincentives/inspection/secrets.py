"""Masks apparent secrets in a log, which can contain anything that a tool read or wrote."""

import re
from itertools import pairwise

from ..redaction import MASK, SECRET_NAMES

__all__ = ["mask_secrets"]

_SECRET_NAME = re.compile("|".join(SECRET_NAMES).replace("token", "token(?!s)"), re.IGNORECASE)
# Matches the separator and value after a secret's name, in JSON, headers and shell scripts. The
# length is limited because an untrusted log could repeat the name a million times without a value.
_TO_VALUE = (
    r"""(?!s\b)[\w-]{0,64}+\\?["']?\s{0,64}+[:=]\s*+\\?["']?(?:(?:[Bb]earer|[Bb]asic)\s+)?"""
)
_VALUE = r"""(?!\d+\b)[^\s"',;&\\]{6,}"""


def _shapes() -> dict[str, str]:
    """Returns patterns for secrets, by the text that they start with; group 1 is not masked."""
    spellings = {spell(name) for name in SECRET_NAMES for spell in (str, str.upper, str.title)}
    keys = {
        r"[\w-]{16,}": ("sk-", "sk_", "pk_", "rk_", "glpat-", "AIza"),
        r"\w{20,}": ("ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "hf_"),
        r"[\w-]{10,}": ("xoxb-", "xoxp-", "xapp-"),
        r"[0-9A-Z]{16}": ("AKIA",),
        r"[\w.~+/-]{16,}=*": ("Bearer ", "bearer ", "Basic "),
    }
    return {
        **{name: f"({name}{_TO_VALUE}){_VALUE}" for name in sorted(spellings)},
        **{start: f"({start}){rest}" for rest, starts in keys.items() for start in starts},
        "://": r"(://[^\s/:@]*:)[^\s/@]+(?=@)",
        "-----BEGIN": r"(-----BEGIN[ A-Z]*PRIVATE KEY-----).*?(?:-----END[ A-Z]*KEY-----|\Z)",
    }


# Python searches a hundred times faster for a pattern that starts with a literal.
_SECRETS = {start: re.compile(pattern, re.DOTALL) for start, pattern in _shapes().items()}
_JWT_START, _JWT_PART = "eyJ", 10
_DOTTED = re.compile(rf"{_JWT_START}[\w-]*+(?:\.[\w-]++)*+")


def mask_secrets(text: str, name: str = "") -> str:
    """Replaces apparent secrets in `text` with `***`; `name` is the name of its field.

    Recognizes passwords, tokens and keys by the names that precede them, and common services' keys
    by their format. Other secrets can be missed.
    """
    if name and _SECRET_NAME.search(name):
        return MASK
    for start, secret in _SECRETS.items():
        if start in text:
            text = secret.sub(rf"\1{MASK}", text)
    return _DOTTED.sub(_mask_jwt, text) if _JWT_START in text else text


def _mask_jwt(match: re.Match[str]) -> str:
    """Masks any JSON web token in a group of words joined by dots."""
    sizes = [min(len(part), _JWT_PART) for part in match[0].split(".")]
    is_token = (_JWT_PART, _JWT_PART) in pairwise(sizes[:-1])
    return f"{_JWT_START}{MASK}" if is_token else match[0]
