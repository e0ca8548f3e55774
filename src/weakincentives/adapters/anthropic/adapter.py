"""`AnthropicAdapter` calls Anthropic's Messages API through the `anthropic` SDK."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from ...content import MediaSupport
from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import RunConfig
from ...evaluation.schemas import tool_to_spec
from ...limits import Clock, utc_now
from ...model_settings import ModelSettings
from ...prompt.renderer import AnyRenderedPrompt
from ...signatures import with_remedies
from ..claude_media import CLOUD_MEDIA
from ..codec import Codec, JsonObject
from ..http_clients import MAX_REPLY_BYTES, read_origin
from ..provider_errors import error_from_reply, error_from_request
from ..sdk_adapter import AnySDK, SDKAdapter
from .codec import MessagesCodec, MessagesOptions, ToolChanges

__all__ = ["AnthropicAdapter"]

_VERSION = re.compile(r"claude-([a-z]+)-(\d+)(?:-(\d{1,2}))?(?!\d)")
_BETA = re.compile(r"[\w.-]+", re.ASCII)
# The first versions with each feature. UNVERIFIED: unreleased models are assumed to support them
# all.
_DEFERS_SINCE = _STRICT_SINCE = (4, 5)
_INLINE_SINCE = {"fable": (5, 0), "mythos": (5, 0), "opus": (4, 8)}
_OTHERS_INLINE_SINCE = (5, 5)


class AnthropicAdapter(SDKAdapter[AnySDK, AnySDK]):
    """Evaluates prompts with Claude, or on a server at `base_url` that implements the Messages API.

    `api_key` defaults to `ANTHROPIC_API_KEY`. `max_tokens` limits an answer, including its
    thinking. `tool_changes` determines how the model receives the tools in a newly opened section:
    `"inline"` adds them to the conversation, `"deferred"` declares all tools in the first request
    and loads them by reference, and `"list"` extends the list of tools, which invalidates the
    cache. `structured_output` determines whether typed output is requested with the API's own
    parameter or with instructions in the prompt, and `strict_tools` requires arguments to match the
    schemas. The defaults for these three depend on the capabilities of `model`; for a model other
    than Claude, they are `"list"`, instructions in the prompt, and no strict tools. `cache`
    determines how long the provider caches the beginning of a request for the next one; `None`
    turns caching off.

    `client` and `async_client` can be any of the SDK's clients, such as `AnthropicBedrock` and
    `AnthropicVertex`; they keep their own key, timeout, retries and base URL. `options` are added
    to every request, for example `{"thinking": {"type": "adaptive"}}`; its `betas` become the
    `anthropic-beta` header. `media` describes the images and documents that the model accepts, by
    default all that the platform accepts. `timeout`, `max_retries` and `max_reply_bytes` are the
    same as for `OpenAIAdapter`.

    Raises `ImportError` if the `anthropic` extra is not installed.
    """

    name = "anthropic"
    sdk_name = "Anthropic"
    path = "/v1/messages"

    @with_remedies
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_tokens: int = 32_000,
        tool_changes: ToolChanges | None = None,
        structured_output: Literal["native", "prompted"] | None = None,
        strict_tools: bool | None = None,
        cache: Literal["5m", "1h"] | None = "5m",
        timeout: float = 600.0,
        max_retries: int = 2,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        client: AnySDK | None = None,
        async_client: AnySDK | None = None,
        media: MediaSupport | None = None,
        options: Mapping[str, object] | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        _check_tool_changes(tool_changes)
        clients = _class_names(client) | _class_names(async_client)
        _check_bedrock(clients)
        _check_betas((options or {}).get("betas", ()))
        if client is None and async_client is None:
            base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or None  # it may change
        family, version = _family_and_version(model)
        # Foundry and Anthropic's own platform on AWS accept the same requests as Anthropic's API.
        is_cloud = any(re.search("Bedrock|Vertex|GoogleCloud", name) for name in clients)
        is_own_api = _is_own(client) and _is_own(async_client)
        is_strict = version >= _STRICT_SINCE
        self._settings = MessagesOptions(
            model=model,
            max_tokens=max_tokens,
            tool_changes=tool_changes or _tool_changes(family, version, is_own_api=is_own_api),
            structured_output=structured_output or ("native" if is_strict else "prompted"),
            strict_tools=is_strict if strict_tools is None else strict_tools,
            media=CLOUD_MEDIA if is_cloud and media is None else media,
            cache=cache,
            origin=_origin(client or async_client, base_url),
            extra=dict(options or {}),
        )
        super().__init__(
            MessagesCodec,
            self._settings,
            arguments={
                "base_url": base_url,
                "api_key": api_key,
                "timeout": timeout,
                "max_retries": max_retries,
            },
            client=client,
            async_client=async_client,
            max_reply_bytes=max_reply_bytes,
            config=config,
            settings=settings,
            clock=clock,
        )

    @staticmethod
    def sdk() -> AnySDK:
        return import_module("anthropic")

    def codec(self, rendered: AnyRenderedPrompt) -> Codec:
        if self._settings.tool_changes != "deferred":
            return MessagesCodec(self._settings, self.name)
        registry, texts = rendered.registry, rendered.tool_param_descriptions
        tools = [tool for name in registry.tool_paths if (tool := registry.get_tool(name))]
        specs = [tool_to_spec(tool, texts.get(tool.name)) for tool in tools]
        return MessagesCodec(self._settings, self.name, specs)

    def headers(self, body: JsonObject) -> JsonObject:
        # SDKs before 2.0 add `?beta=true` to the path, but the documented requests do not.
        betas = body.pop("betas", ())
        return {"anthropic-beta": ",".join(betas)} if betas else {}

    def translate(self, error: Exception) -> PromptEvaluationError:
        if "ParserError" in _class_names(error):  # raised by botocore for Bedrock's streams
            return error_from_reply(self.name, "its stream is broken")
        if isinstance(error, ValueError) and "Bad response code" in str(error):
            # SDKs before 1.0 raise this for an exception in a Bedrock stream.
            return error_from_request(self.name, "provider_failed", str(error))
        return super().translate(error)

    def is_key_missing(self, error: Exception) -> bool:
        if type(error).__name__ == "CredentialsError":  # for a profile; not defined before SDK 1.0
            return True
        return isinstance(error, TypeError) and "authentication method" in str(error)


def _class_names(value: object) -> set[str]:
    return {base.__name__ for base in type(value).__mro__}


def _is_own(client: AnySDK | None) -> bool:
    """Returns whether requests are sent to Anthropic's own API."""
    # UNVERIFIED: inline tools are documented only for that API
    return type(client).__name__ in ("NoneType", "Anthropic", "AsyncAnthropic")


def _origin(client: AnySDK | None, base_url: str | None) -> str:
    return read_origin(client.base_url if client else base_url, "api.anthropic.com")


def _check_bedrock(clients: set[str]) -> None:
    if clients & {"AnthropicBedrock", "AsyncAnthropicBedrock"} and not find_spec("botocore"):
        raise ImportError(
            "cannot read replies of Bedrock clients without botocore; install it: pip install "
            "'anthropic[bedrock]'"
        )


def _check_betas(betas: object) -> None:
    names: Sequence[object] = betas if isinstance(betas, list | tuple) else [None]
    if not all(isinstance(name, str) and _BETA.fullmatch(name) for name in names):
        raise ValueError(f"options['betas'] must be a list of beta names, got {betas!r:.200}")


def _family_and_version(model: str) -> tuple[str, tuple[int, int]]:
    """Returns the family and version of `model`; the version is (0, 0) for an unknown name.

    A name can look like `us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
    """
    if (match := _VERSION.search(model)) is None:
        return "", (0, 0)
    family, major, minor = match.groups()
    return family, (int(major), int(minor or 0))


def _check_tool_changes(tool_changes: ToolChanges | None) -> None:
    if tool_changes not in (None, "inline", "deferred", "list"):
        raise ValueError(
            f"tool_changes must be 'inline', 'deferred' or 'list', got {tool_changes!r}"
        )


def _tool_changes(family: str, version: tuple[int, int], *, is_own_api: bool) -> ToolChanges:
    if is_own_api and version >= _INLINE_SINCE.get(family, _OTHERS_INLINE_SINCE):
        return "inline"
    return "deferred" if version >= _DEFERS_SINCE else "list"
