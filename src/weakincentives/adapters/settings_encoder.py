"""`SettingsEncoder` adds `ModelSettings` to requests; it is the part of a codec for settings."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from ..evaluation.errors import PromptEvaluationError
from ..model_settings import ModelSettings, unsupported
from .provider_errors import error_from_request
from .schema_dialects import JsonObject
from .server_profile import ServerProfile

__all__ = ["SettingsEncoder"]

_FOR_TOOLS = ("tool_choice", "parallel_tool_calls")
_IN_EVERY_API = {"extra", "timeout"}


class SettingsEncoder(ABC):
    """Encodes the settings that an API supports.

    `setting_fields` has the request's field for each setting, with dots between levels.
    """

    setting_fields: ClassVar[Mapping[str, str]]
    provider: str
    profile: ServerProfile

    @classmethod
    def supported_settings(cls, profile: ServerProfile) -> Mapping[str, str]:
        """Returns the fields for the settings that the server supports."""
        return {
            name: field
            for name, field in cls.setting_fields.items()
            if name not in profile.unsupported_settings and field not in profile.rejected_fields
        }

    @classmethod
    def check_settings(cls, settings: ModelSettings, profile: ServerProfile, by: str) -> None:
        """Raises `ValueError` for settings that `by`, an adapter, cannot send to the server."""
        known = {*cls.supported_settings(profile), *_IN_EVERY_API}
        names = [name for name in settings.given - known if getattr(settings, name) is not None]
        if names:
            remedy = "remove it, or pass the server's own field in ModelSettings(extra=…)"
            raise unsupported(names, by, remedy)

    def add_settings(
        self, body: JsonObject, settings: ModelSettings, tools: Collection[str]
    ) -> JsonObject:
        """Returns the body with the settings, without those for tools if there are none.

        Raises `PromptEvaluationError` if `tool_choice` is not one of the `tools`.
        """
        ours, theirs = body.get("tools"), settings.extra.get("tools")
        body = dict(body)
        for name in self.supported_settings(self.profile):
            if name in settings.given and (ours or theirs or name not in _FOR_TOOLS):
                value = getattr(settings, name)
                for field, encoded in self.encode_setting(name, value, tools).items():
                    _put(body, field.split("."), encoded)
        body = _merged(body, settings.extra)
        if ours and isinstance(theirs, list | tuple):
            body["tools"] = [*theirs, *ours]
        return body

    def encode_setting(self, name: str, value: object, tools: Collection[str]) -> JsonObject:
        """Returns the values of the fields for one setting; `None` removes a field."""
        if name == "stop" and isinstance(value, tuple):
            value = [*value] or None
        elif name == "tool_choice" and isinstance(value, str):
            value = self._encode_choice(value, tools)
        return {self.supported_settings(self.profile)[name]: value}

    def _encode_choice(self, choice: str, tools: Collection[str]) -> object:
        if choice in ("auto", "none", "required"):
            return self.encode_choice(choice)
        if choice not in tools:
            names = ", ".join(tools) or "none"
            message = f"tool_choice {choice!r} is not a tool of this request, which has: {names}"
            raise error_from_request(self.provider, "client_error", message)
        return self.encode_named_choice(choice)

    def encode_choice(self, choice: str) -> object:
        """Encodes `"auto"`, `"none"` or `"required"`."""
        return choice

    @abstractmethod
    def encode_named_choice(self, name: str) -> JsonObject:
        """Encodes that the model must call the tool `name`."""

    def name_setting(self, error: PromptEvaluationError, settings: ModelSettings) -> None:
        """Adds to the provider's error which of the settings it is about, if it says so."""
        if error.code != "bad_request":
            return
        patterns = {
            (name, field): rf"\b({name}|{'|'.join(field.split('.'))})\b"
            for name, field in self.supported_settings(self.profile).items()
            if getattr(settings, name) is not None
        }
        for key in settings.extra:  # in quotes or first, because it can be any word
            patterns[f"extra[{key!r}]", key] = rf"""['"`]{re.escape(key)}\b|^{re.escape(key)}\b"""
        for (name, field), pattern in patterns.items():
            if re.search(pattern, error.message):
                error.param = field
                error.remedy = f"the model does not accept this value of ModelSettings.{name}"
                return


def _put(body: JsonObject, keys: list[str], value: object) -> None:
    """Sets one field in a body that is not shared; `None` removes it."""
    key, *rest = keys
    if rest:
        inner = body.get(key)
        inner = dict(inner) if isinstance(inner, dict) else {}
        _put(inner, rest, value)
        value = inner or None
    if value is None:
        body.pop(key, None)
    else:
        body[key] = value


def _merged(body: JsonObject, extra: Mapping[str, object]) -> JsonObject:
    """Returns the body with further fields at every depth; `None` removes a field."""
    result = dict(body)
    for key, value in extra.items():
        inner = result.get(key)
        if isinstance(value, Mapping):
            result[key] = _merged(inner if isinstance(inner, dict) else {}, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
