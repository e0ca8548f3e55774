"""The routes: a page, the events of its chat, and the user's actions."""

import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from ag_ui.core import RunAgentInput, UserMessage
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from weakincentives import Approve, Deny, MainLoop
from weakincentives.contrib.ag_ui import new_message
from weakincentives.prompt.template import AnyPrompt

from .live import BusyError, LiveChat
from .prompt import clerk
from .store import ChatStore, StaleChatError

__all__ = ["make_app"]

_PAGE = Path(__file__).with_name("page")
_FILES = {
    "/": "index.html",
    "/chat.js": "chat.js",
    "/style.css": "style.css",
    "/icon.svg": "icon.svg",
}
_COOKIE = "web_chat"
_COOKIE_SECONDS = 30 * 24 * 3600
_MOST_BYTES = 1_000_000
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

type _Endpoint = Callable[[Request], Awaitable[Response]]


class _Refusal(Exception):
    """A rejected request, with its status and a message for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def make_app(
    store: ChatStore, loop: MainLoop, prompt: Callable[[], AnyPrompt] = clerk
) -> Starlette:
    """Returns the application, which accepts requests only for this machine's own host names.

    `prompt` creates the prompt of each chat.
    """
    chats = _Chats(store, loop, prompt)
    routes = [Route(path, _guarded(_page)) for path in _FILES]
    routes.append(Route("/events", _guarded(chats.events)))
    for endpoint in (chats.agent, chats.decide, chats.go_on, chats.stop):
        path = f"/{endpoint.__name__.replace('_', '-')}"
        routes.append(Route(path, _guarded(endpoint), methods=["POST"]))
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=routes, middleware=[hosts])


async def _page(request: Request) -> Response:
    response = FileResponse(_PAGE / _FILES[request.url.path])
    if request.url.path == "/" and _COOKIE not in request.cookies:
        secret = secrets.token_urlsafe(32)
        response.set_cookie(
            _COOKIE, secret, max_age=_COOKIE_SECONDS, httponly=True, samesite="strict"
        )
    return response


class _Chats:
    """The endpoints of a browser's chat."""

    def __init__(self, store: ChatStore, loop: MainLoop, prompt: Callable[[], AnyPrompt]) -> None:
        self._store, self._loop, self._prompt = store, loop, prompt
        self._live: dict[str, LiveChat] = {}

    async def events(self, request: Request) -> Response:
        return _stream(self._chat(request).follow())

    async def agent(self, request: Request) -> Response:
        """Starts a run from an AG-UI request, whose last message is the only one that is read."""
        chat = self._chat(request)
        try:
            asked = RunAgentInput.model_validate(await _body(request))
            text, message = new_message(asked), asked.messages[-1]
        except ValueError as error:
            raise _Refusal(422, "Send a message of the user's.") from error
        assert isinstance(message, UserMessage)  # `new_message` checks it
        chat.send(message, text)
        return _stream(chat.follow(replay=False))

    async def go_on(self, request: Request) -> Response:
        self._chat(request).go_on()
        return Response(status_code=204)

    async def decide(self, request: Request) -> Response:
        chat = self._chat(request)
        match await _body(request):
            case {"callId": str(call_id), "digest": str(digest), "approve": True}:
                chat.decide(call_id, digest, Approve())
            case {
                "callId": str(call_id),
                "digest": str(digest),
                "approve": False,
                "reason": str(reason),
            }:
                chat.decide(call_id, digest, Deny(reason))
            case _:
                raise _Refusal(422, "Send callId, digest, approve, and a reason for a denial.")
        return Response(status_code=204)

    async def stop(self, request: Request) -> Response:
        await self._chat(request).stop()
        return Response(status_code=204)

    def _chat(self, request: Request) -> LiveChat:
        secret = request.cookies.get(_COOKIE, "")
        if len(secret) < 32:  # noqa: PLR2004 - ours have 43 characters
            raise _Refusal(403, "This browser has no chat yet; reload the page.")
        for idle in [key for key, chat in self._live.items() if chat.idle and key != secret]:
            del self._live[idle]
        if secret not in self._live:
            self._live[secret] = LiveChat(secret, self._store, self._loop, self._prompt)
        return self._live[secret]


def _guarded(endpoint: _Endpoint) -> _Endpoint:
    """Returns the endpoint with our headers; it also rejects requests from other sites' pages."""

    async def respond(request: Request) -> Response:
        try:
            if request.method == "POST":
                _check_origin(request)
            response = await endpoint(request)
        except _Refusal as refusal:
            response = JSONResponse({"error": str(refusal)}, refusal.status)
        except (BusyError, StaleChatError) as error:
            response = JSONResponse({"error": str(error)}, 409)
        except ClientDisconnect:  # in the middle of the body: nobody reads this
            response = Response(status_code=400)
        response.headers.update(_HEADERS)
        return response

    return respond


def _check_origin(request: Request) -> None:
    own = f"{request.url.scheme}://{request.headers.get('host')}"
    if request.headers.get("origin", own) != own:
        raise _Refusal(403, "Only the page of this server may do that.")
    # a page cannot send this type to another site without a preflight request
    if request.headers.get("content-type") != "application/json":
        raise _Refusal(415, "Send JSON.")


async def _body(request: Request) -> object:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise _Refusal(413, "The message is too long.")
    try:
        content = json.loads(body)
        json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate cannot be stored
        return content
    except (ValueError, RecursionError) as error:
        raise _Refusal(422, "Send JSON.") from error


def _stream(frames: AsyncGenerator[str]) -> Response:
    return StreamingResponse(frames, media_type="text/event-stream")
