"""`OpenAIAdapter` calls OpenAI's APIs through the `openai` SDK."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...content import MediaSupport
from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import RunConfig
from ...limits import Clock, utc_now
from ...model_settings import ModelSettings
from ...signatures import with_remedies
from ..chat_completions import ChatCodec
from ..codec import Codec, CodecOptions, PromptRole
from ..http_clients import MAX_REPLY_BYTES, read_origin
from ..sdk_adapter import AnySDK, SDKAdapter
from ..server_profile import NO_KEY, ServerProfile
from .responses import ResponsesCodec

if TYPE_CHECKING:
    import openai

__all__ = ["OpenAIAdapter"]

# Codecs, and paths relative to the client's base URL.
_APIS: Mapping[str, tuple[type[Codec], str]] = {
    "responses": (ResponsesCodec, "/responses"),
    "chat": (ChatCodec, "/chat/completions"),
}

_OPENAI = ServerProfile(
    strict="each",
    user_after_tool=True,
    output_limit="max_completion_tokens",
    unsupported_settings=frozenset(),
)


def _is_openai(host: str) -> bool:
    return host.endswith((".api.openai.com", ".openai.azure.com"))


# Any: values from a caller that does not use a type checker.
def _check(api: Any, profile: Any) -> Literal["responses", "chat"]:
    """Returns the API to use; raises for an unknown API or an invalid profile."""
    if not isinstance(profile, ServerProfile | None):
        raise TypeError(f"profile must be a ServerProfile, such as profiles.GROQ, got {profile!r}")
    api = api or (profile or _OPENAI).api
    if api not in _APIS:
        raise ValueError(f"api must be 'responses' or 'chat', got {api!r}")
    checked: Literal["responses", "chat"] = api
    return checked


class OpenAIAdapter(SDKAdapter["openai.OpenAI", "openai.AsyncOpenAI"]):
    """Evaluates prompts with OpenAI's API or on a compatible server at `base_url`.

    `profile` describes the server's address and how the server differs from others; the module
    `weakincentives.adapters.profiles` contains predefined profiles. `api` is `"responses"` or
    `"chat"` (Chat Completions, which most compatible servers implement), by default the profile's.
    `api_key` defaults to the profile's variable, or to `OPENAI_API_KEY`. `timeout` is the limit for
    one request, in seconds; the SDK retries at most `max_retries` times. Clients that you pass as
    `client` and `async_client` keep their own key, timeout, retries and base URL. `max_reply_bytes`
    limits a reply after decompression. `settings` determine how the model answers, and `options`
    are further fields for every request. The other arguments are the same as for `CodecOptions` and
    `LoopAdapter`.

    Raises `ImportError` if the `openai` extra is not installed, and `ValueError` if the profile's
    server needs a base URL or a key that is missing.
    """

    name = "openai"
    sdk_name = "OpenAI"

    @with_remedies
    def __init__(
        self,
        model: str,
        *,
        api: Literal["responses", "chat"] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        client: "openai.OpenAI | None" = None,
        async_client: "openai.AsyncOpenAI | None" = None,
        prompt_role: PromptRole = "user",
        instructions_role: PromptRole | None = None,
        structured_output: Literal["native", "prompted"] | None = None,
        tools_in_conversation: bool = False,
        options: Mapping[str, object] | None = None,
        media: MediaSupport | None = None,
        profile: ServerProfile | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        api = _check(api, profile)
        codec, self.path = _APIS[api]
        if not (ready := client or async_client):
            # Read early, like `origin`, because the variables may change.
            base_url, api_key = (profile or _OPENAI).connection(base_url, api_key)
        origin = read_origin(ready.base_url if ready else base_url, "api.openai.com")
        profile = profile or (ServerProfile() if origin and not _is_openai(origin) else _OPENAI)
        self._origin, self._profile = origin, profile
        codec_options = CodecOptions(
            model=model,
            prompt_role=prompt_role,
            instructions_role=instructions_role,
            # Many chat templates for open models accept a system message only at the beginning.
            changes_role="user" if origin and api == "chat" else None,
            origin=origin,
            structured_output=structured_output or profile.structured_output,
            tools_in_conversation=tools_in_conversation,
            extra=profile.adapt_options(options or {}, api),
            media=media,
            profile=profile,
        )
        super().__init__(
            codec,
            codec_options,
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
        import openai

        return openai

    def is_key_missing(self, error: Exception) -> bool:
        sdk = self.sdk()  # an `APIError` comes from a request, which was sent with a key
        return isinstance(error, sdk.OpenAIError) and not isinstance(error, sdk.APIError)

    def translate(self, error: Exception) -> PromptEvaluationError:
        failure = super().translate(error)
        if not self._origin:
            return failure
        if failure.code == "authentication" and failure.status is None:
            failure.remedy = (
                "pass api_key=, any text if the server needs none, or set OPENAI_API_KEY"
            )
        elif failure.code == "authentication" and self._client_arguments["api_key"] == NO_KEY:
            variable, own = self._profile.key_variable, self._profile.base_url
            note = f"; {variable} is read only for {own}" if variable else ""
            failure.remedy = f"pass api_key=, since none was sent{note}"
        elif failure.code == "authentication":
            failure.remedy = f"check the API key for {self._origin}"
        elif failure.code == "not_found" and self.path == "/responses":
            failure.remedy += "; most compatible servers need api='chat'"
        return failure
