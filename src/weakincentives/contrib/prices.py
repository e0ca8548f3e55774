"""Calculates the cost of requests in dollars from the price tables in `genai-prices`.

Needs the `prices` extra. The `genai-prices` package contains the tables, so nothing is downloaded;
newer versions include newer models.
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
}  # LiteLLM name: genai-prices name


def cost(usage: TokenUsage, model: str) -> float | None:
    """Returns the cost of a request in dollars, or `None` if the price of `model` is unknown.

    `usage` must be the usage of one request, because some prices depend on its length. `model` can
    also be a name from LiteLLM, such as `anthropic/claude-sonnet-4-5`, or from Bedrock.
    """
    try:
        tokens = Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
        )
    except ValueError:  # raised for a negative count
        return None
    for provider, name in _names(model):
        try:
            return float(calc_price(tokens, name, provider_id=provider).total_price)
        except (LookupError, ValueError):  # ValueError: inconsistent token counts
            continue
    return None


def _names(model: str) -> Iterator[tuple[str | None, str]]:
    """Yields the providers and names under which the tables may list a model."""
    yield None, model
    route, _, name = model.partition("/")
    if name:
        yield _PROVIDERS.get(route, route), name
        yield None, name.rpartition("/")[2]
    if "anthropic." in model:
        yield "aws", model.rpartition("/")[2]
