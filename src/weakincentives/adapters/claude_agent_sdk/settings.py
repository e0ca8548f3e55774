"""The `ModelSettings` that the CLI supports, as its options and variables."""

from ...model_settings import ModelSettings, unsupported
from ..codec import JsonObject

__all__ = ["CLI_FIELDS", "check_cli_settings", "cli_options", "cli_variables"]

CLI_FIELDS = {"max_output_tokens": "max_tokens", "reasoning": "output_config.effort"}
"""The fields of the CLI's requests for these settings."""
_EMPTY: tuple[object, ...] = (None, (), {})
_SUPPORTED = {"max_output_tokens", "reasoning", "timeout"}


def check_cli_settings(settings: ModelSettings, by: str) -> None:
    """Raises `ValueError` for settings that `by`, the adapter, cannot pass to the CLI."""
    names = [it for it in settings.given - _SUPPORTED if getattr(settings, it) not in _EMPTY]
    if names:
        raise unsupported(names, by)
    if settings.reasoning == "minimal":
        raise ValueError(f"{by} does not support reasoning 'minimal'; use 'low'")


def cli_options(settings: ModelSettings | None) -> JsonObject:
    """Returns the SDK's options for the settings."""
    if settings is None or "reasoning" not in settings.given:
        return {}
    if settings.reasoning in (None, "none"):
        thinking = {"type": "disabled"} if settings.reasoning else None
        return {"thinking": thinking, "effort": None}
    return {"thinking": {"type": "adaptive"}, "effort": settings.reasoning}


def cli_variables(settings: ModelSettings | None) -> dict[str, str]:
    """Returns the environment variables for the settings."""
    if settings is None or settings.max_output_tokens is None:
        return {}
    return {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(settings.max_output_tokens)}
