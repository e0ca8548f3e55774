"""Masks what looks like a secret in a log, which may hold anything that a tool read or wrote."""

import re

__all__ = ["mask_secrets"]

_MASK = "***"
_NAMES = (
    *("api_key", "api-key", "apiKey", "apikey", "access_key", "private_key", "secret", "password"),
    *("passwd", "passphrase", "credential", "authorization", "cookie", "token", "jwt"),
)
_SECRET_NAME = re.compile("|".join(_NAMES).replace("token", "token(?!s)"), re.IGNORECASE)
# After such a name, in JSON, headers and shell scripts: what leads to the value, and the value.
_TO_VALUE = r"""(?!s\b)[\w-]*\\?["']?\s*[:=]\s*\\?["']?(?:(?:[Bb]earer|[Bb]asic)\s+)?"""
_VALUE = r"""(?!\d+\b)[^\s"',;&\\]{6,}"""


def _shapes() -> dict[str, str]:
    """Returns patterns of secrets by the text with which each begins; group 1 stays readable."""
    spellings = {spell(name) for name in _NAMES for spell in (str, str.upper, str.title)}
    keys = {
        r"[\w-]{16,}": ("sk-", "sk_", "pk_", "rk_", "glpat-", "AIza"),
        r"\w{20,}": ("ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "hf_"),
        r"[\w-]{10,}": ("xoxb-", "xoxp-", "xapp-"),
        r"[0-9A-Z]{16}": ("AKIA",),
        r"[\w-]{10,}\.[\w-]{10,}\.[\w-]+": ("eyJ",),
        r"[\w.~+/-]{16,}=*": ("Bearer ", "bearer ", "Basic "),
    }
    return {
        **{name: f"({name}{_TO_VALUE}){_VALUE}" for name in sorted(spellings)},
        **{start: f"({start}){rest}" for rest, starts in keys.items() for start in starts},
        "://": r"(://[^\s/:@]*:)[^\s/@]+(?=@)",
        "-----BEGIN": r"(-----BEGIN[ A-Z]*PRIVATE KEY-----).*?(?:-----END[ A-Z]*KEY-----|\Z)",
    }


# Python searches a hundred times faster for a pattern that begins with a literal.
_SECRETS = {start: re.compile(pattern, re.DOTALL) for start, pattern in _shapes().items()}


def mask_secrets(text: str, name: str = "") -> str:
    """Replaces what looks like a secret in `text` by `***`; `name` is the field that has it.

    It knows passwords, tokens and keys by the names before them, and the keys of common services by
    their shapes. It can miss others.
    """
    if name and _SECRET_NAME.search(name):
        return _MASK
    for start, secret in _SECRETS.items():
        if start in text:
            text = secret.sub(rf"\1{_MASK}", text)
    return text
