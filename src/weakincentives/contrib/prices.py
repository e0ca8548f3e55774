"""What requests cost in dollars, by the tables of `genai-prices`.

Needs the extra `prices`. The tables come with the package, so nothing is fetched; a newer version
of it knows newer models.
"""

from collections.abc import Iterator

from ..errors import missing_extra
from ..limits import TokenUsage

try:
    from genai_prices import Usage, calc_price
except ImportError as error:
    raise missing_extra(__name__, "genai-prices", "prices") from error

__all__ = ["cost"]

_PROVIDERS = {
    "bedrock": "aws",
    "gemini": "google",
    "vertex_ai": "google",
}  # LiteLLM's names, theirs


def cost(usage: TokenUsage, model: str) -> float | None:
    """Returns what a request cost in dollars; `None` if the price of `model` is unknown.

    `usage` is that of one request, since some prices depend on its length. `model` may be a name of
    LiteLLM's, such as `anthropic/claude-sonnet-4-5`, or of Bedrock's.
    """
    try:
        tokens = Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
        )
    except ValueError:  # for a negative count
        return None
    for provider, name in _names(model):
        try:
            return float(calc_price(tokens, name, provider_id=provider).total_price)
        except (LookupError, ValueError):  # the latter for tokens that do not add up
            continue
    return None


def _names(model: str) -> Iterator[tuple[str | None, str]]:
    """Yields the providers and names under which the tables may know a model."""
    yield None, model
    route, _, name = model.partition("/")
    if name:
        yield _PROVIDERS.get(route, route), name
        yield None, name.rpartition("/")[2]
    if "anthropic." in model:
        yield "aws", model.rpartition("/")[2]
