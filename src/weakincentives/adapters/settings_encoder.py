"""`SettingsEncoder` adds `ModelSettings` to requests; it is the part of a codec for settings."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import ClassVar

from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.messages import apply_tool_changes
from ..model_settings import TOOL_CHOICES, ModelSettings, unsupported
from .provider_errors import error_from_request
from .schema_dialects import JsonObject
from .server_profile import ServerProfile

__all__ = ["SettingsEncoder", "name_setting"]

_FOR_TOOLS = ("tool_choice", "parallel_tool_calls")
# The codes of errors that can be about a setting.
_CODES = {"bad_request", "context_length", "not_found", "provider_failed", "server_error"}
# How servers call a setting, if not by its field alone.
_ALIASES = {
    "max_output_tokens": "max_(?:output_|completion_)?tokens|maxOutputTokens",
    "reasoning": r"reasoning[._]effort|reasoningEffort|(?:output_config\.)?effort"
    r"|(?:adaptive )?thinking(?:\.type)?",
    "tool_choice": "tool[_ ]choice",
    "parallel_tool_calls": "parallel_tool_calls|disable_parallel_tool_use",
    "stop": "stop|stop_sequences",
    "cache_ttl": r"prompt_cache_options(?:\.ttl)?|ttl",
}
# The field is quoted, or comes first, or is what a word about parameters refers to, or is followed
# by what is wrong with it.
_SUBJECT = (
    r"(?:^|['\"`]|(?:parameter|argument|supplied|setting|option)[:\s]+)(?:{0})(?![\w.])"
    r"|(?<![\w.])(?:{0})['\"`]? (?:is|are|value|must|should|does|cannot|requires?)\b"
)
_OF_OTHERS = re.compile(r"\b(?:schema|parse|prompt was|invalid prompt)\b", re.IGNORECASE)
_IN_EVERY_API = {"extra", "timeout"}


class SettingsEncoder(ABC):
    """Encodes the settings that an API supports.

    `setting_fields` has the request's field for each setting, with dots between levels, and
    `output_field` is the field that declares the output, which no setting replaces. `api_name` is
    what errors call the API.
    """

    setting_fields: ClassVar[Mapping[str, str]]
    output_field: ClassVar[str]
    api_name: ClassVar[str]
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
        names = [it for it in settings.given - known if getattr(settings, it) not in (None, ())]
        names += [f"extra[{key!r}]" for key in settings.extra.keys() & profile.rejected_fields]
        if names:
            remedy = "remove it, or pass the server's own field in ModelSettings(extra=…)"
            if profile.unsupported_settings.issuperset(names):
                remedy = f"its server's profile excludes it; {remedy}"
            elif not cls.setting_fields.keys() & names:
                remedy = f"its API, {cls.api_name}, has no such field; {remedy}"
            raise unsupported(names, by, remedy)

    def add_settings(self, body: JsonObject, request: ProviderRequest) -> JsonObject:
        """Returns the body with the settings, without those for tools if there are none.

        Raises `PromptEvaluationError` if `tool_choice` is not a tool of the request.
        """
        settings = request.settings or ModelSettings()
        tools: Collection[str] = ()
        if settings.forces_call:  # some tools can be in the conversation
            tools = apply_tool_changes(request.tools, request.transcript).keys()
        ours, theirs = body.get("tools"), settings.extra.get("tools")
        output, body = _get(body, self.output_field), dict(body)
        nearest = {name: layer for layer in settings.layers for name in layer.given}
        for layer in settings.layers:
            for name in self.supported_settings(self.profile):
                is_left_out = name in _FOR_TOOLS and not (ours or theirs)
                if nearest.get(name) is layer and not is_left_out:
                    value = getattr(layer, name)
                    for field, encoded in self.encode_setting(name, value, tools).items():
                        _put(body, field, encoded)
            body = _merged(body, layer.extra)
        if ours and isinstance(theirs, list | tuple):
            body["tools"] = [*theirs, *ours]
        if output is not None:  # otherwise the answer would not have the prompt's type
            _put(body, self.output_field, output)
        return body

    def encode_setting(self, name: str, value: object, tools: Collection[str]) -> JsonObject:
        """Returns the values of the fields for one setting; `None` removes a field."""
        if name == "stop" and isinstance(value, tuple):
            value = [*value] or None
        elif name == "tool_choice" and isinstance(value, str):
            value = self._encode_choice(value, tools)
        return {self.supported_settings(self.profile)[name]: value}

    def _encode_choice(self, choice: str, tools: Collection[str]) -> object:
        if choice in TOOL_CHOICES:
            return self.encode_choice(choice)
        if choice not in tools:
            names = ", ".join(tools) or "none"
            message = f"tool_choice {choice!r} is not a tool of this request, which has: {names}"
            remedy = "name one of these, or a tool of a section that is open"
            raise error_from_request(self.provider, "client_error", message, remedy)
        return self.encode_named_choice(choice)

    def encode_choice(self, choice: str) -> object:
        """Encodes `"auto"`, `"none"` or `"required"`."""
        return choice

    @abstractmethod
    def encode_named_choice(self, name: str) -> JsonObject:
        """Encodes that the model must call the tool `name`."""


def name_setting(
    error: PromptEvaluationError, settings: ModelSettings | None, fields: Mapping[str, str]
) -> None:
    """If an error is about one of the settings, gives it the code `"setting"` and names it.

    The field that the server names as invalid decides, and otherwise the words of its message.
    `fields` has the request's field for each setting.
    """
    if settings is None or error.code not in _CODES:
        return
    names = {name: field for name, field in fields.items() if getattr(settings, name) is not None}
    places: dict[str, str] = {f"extra[{key!r}]": key for key in settings.extra}
    texts = {name: _ALIASES.get(name, names[name]) for name in names} | {
        name: re.escape(key) for name, key in places.items()
    }
    where = [(_place(text, error), name) for name, text in texts.items()]
    found = min([(place, name) for place, name in where if place is not None], default=(0, ""))[1]
    if found:
        error.code, error.phase = "setting", "request"
        error.param = error.param or (names | places)[found]
        error.remedy = f"the model does not accept this value of ModelSettings.{found}"


def _place(alias: str, error: PromptEvaluationError) -> int | None:
    """Returns where an error names a field as what is wrong; 0 if the server says so itself."""
    if error.param:
        return 0 if re.fullmatch(rf"(?:body\.)?(?:{alias})(?:\..*)?", error.param) else None
    if _OF_OTHERS.search(error.message):
        return None
    match = re.search(_SUBJECT.format(alias), error.message)
    return match and match.start()


def _get(body: JsonObject, field: str) -> object:
    value: object = body
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _put(body: JsonObject, field: str, value: object) -> None:
    """Sets one field in a body that is not shared; `None` removes it."""
    key, _, rest = field.partition(".")
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
            result[key] = deepcopy(value) if isinstance(value, list) else value
    return result
