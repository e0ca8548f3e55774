"""The browser chat, without a browser: the state after tabs, reloads, stops and kills."""

import asyncio
import json
import sqlite3
from collections.abc import Generator, MutableMapping
from contextlib import closing
from pathlib import Path
from socket import create_connection
from typing import Any

import httpx
import pytest

pytest.importorskip("ag_ui", reason="the extra `ag-ui` is not installed")
pytest.importorskip("uvicorn", reason="the extra `mcp` is not installed")
from examples.web_chat.server import make_app
from examples.web_chat.store import ChatStore, StaleChatError, StoredChat
from support.ag_ui_front_end import FrontEnd
from support.web_chat import (
    Tab,
    WaitingAdapter,
    body,
    browser,
    free_port,
    post,
    running_process,
    serve,
)
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import UserMessage
from weakincentives.testing import call, say


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def adapter() -> WaitingAdapter:
    opening = call(("read_section", {"section_key": "catalogue"}))
    finding = call(("find_teas", {"words": "Assam"}))
    return WaitingAdapter([opening, finding, say("We have Assam."), say("You are welcome.")])


def order(adapter: WaitingAdapter) -> None:
    """Makes the model order a tea for the user's next message."""
    opening = call(("read_section", {"section_key": "orders"}))
    ordering = call(("order_tea", {"tea": "Assam"}))
    adapter.replies = iter([opening, ordering, say("As you wish."), say("You are welcome.")])


@pytest.fixture
def client(adapter: WaitingAdapter, database: Path) -> Generator[httpx.Client]:
    with serve(adapter, database) as url, browser(url) as client:
        yield client


def start(client: httpx.Client, text: str) -> None:
    """Sends a message without reading the answer."""
    content, headers = body(text), {"content-type": "application/json"}
    with client.stream("POST", "/agent", content=content, headers=headers) as response:
        response.raise_for_status()


def read_run(response: httpx.Response) -> FrontEnd:
    front_end = FrontEnd()
    for line in response.text.split("\n\n"):
        if line.startswith("data: "):
            front_end.read(line.removeprefix("data: "))
    return front_end


def test_ag_ui_client_receives_a_run_and_a_reload_shows_the_same(client: httpx.Client) -> None:
    run = read_run(post(client, "/agent", body("Assam, please.")))
    assert run.state == "ended"
    assert run.text.endswith("We have Assam.")
    assert [item["activityType"] for item in run.of("activity")] == ["tools_added"]

    tab = Tab(client).read("RUN_FINISHED")
    assert tab.front_end.messages == run.messages
    assert tab.front_end.of("user")[0]["content"] == "Assam, please."


def test_two_tabs_see_every_message_and_a_concurrent_one_is_rejected(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    one, two = Tab(client).read("RUN_FINISHED"), Tab(client).read("RUN_FINISHED")
    adapter.go.clear()
    start(client, "Assam, please.")
    one.read("TEXT_MESSAGE_CONTENT")
    refused = post(client, "/agent", body("And milk?"))
    assert refused.status_code == 409
    assert "still being written" in refused.json()["error"]

    adapter.go.set()
    one.read("RUN_FINISHED")
    start(client, "And milk?")  # typed in the other tab
    one.read("RUN_FINISHED")
    two.read("RUN_FINISHED", 2)
    assert one.front_end.messages == two.front_end.messages
    said = [message["content"] for message in one.front_end.of("user")]
    assert said == ["Assam, please.", "And milk?"]


def test_reload_during_an_answer_continues_the_same_answer(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    adapter.replies = iter([say("Let me think.")])
    adapter.go.clear()
    first = Tab(client).read("RUN_FINISHED")
    start(client, "Hello?")
    first.read("TEXT_MESSAGE_CONTENT")
    first.close()

    second = Tab(client).read("TEXT_MESSAGE_CONTENT")
    assert second.front_end.text == "Let"
    adapter.go.set()
    second.read("RUN_FINISHED")
    assert second.front_end.text == "Let me think."


def test_stopped_answer_keeps_its_text_and_can_be_continued(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    adapter.replies = iter([say("Let me think."), say("Here it is.")])
    adapter.go.clear()
    tab = Tab(client).read("RUN_FINISHED")
    start(client, "Hello?")
    tab.read("TEXT_MESSAGE_CONTENT")
    assert post(client, "/stop").status_code == 204
    tab.read("RUN_FINISHED")
    assert tab.front_end.last["outcome"] == {"type": "cancelled"}
    reloaded = Tab(client).read("STATE_SNAPSHOT")
    assert reloaded.front_end.shared_state == {"status": "stopped"}
    assert reloaded.front_end.text == "Let"

    adapter.go.set()
    assert post(client, "/go-on").status_code == 204
    tab.read("RUN_FINISHED")
    assert tab.front_end.text == "Let|Here it is."
    asked = [
        item.content for item in adapter.requests[-1].messages if isinstance(item, UserMessage)
    ]
    assert asked == ["Hello?"]


def decide(client: httpx.Client, tab: Tab, **decision: object) -> httpx.Response:
    """Decides on the pending call."""
    [request] = [
        item["content"]
        for item in tab.front_end.of("activity")
        if item["activityType"] == "approval_requested"
    ]
    shown = {"callId": request["call_id"], "digest": request["digest"]}
    return post(client, "/decide", json.dumps({**shown, **decision}))


def test_order_takes_effect_only_after_the_user_approves_its_preview(
    client: httpx.Client, adapter: WaitingAdapter, database: Path
) -> None:
    order(adapter)
    tab = Tab(client).read("RUN_FINISHED")
    start(client, "Assam, please.")
    tab.read("RUN_FINISHED")
    assert tab.front_end.last["outcome"]["type"] == "interrupt"
    activity = tab.front_end.of("activity")[-1]["content"]
    assert "+" in activity["preview"]
    assert "Assam" in activity["preview"]
    assert activity["tool_call_id"] == tab.front_end.of("assistant")[-1]["toolCalls"][-1]["id"]
    assert '"tea":"Assam"' not in snapshot(database)

    other = decide(client, tab, approve=True, digest="of what was shown before")
    assert other.status_code == 409
    assert decide(client, tab, approve=True).status_code == 204
    tab.read("RUN_FINISHED")
    assert '"tea":"Assam"' in snapshot(database)
    late = decide(client, tab, approve=False, reason="No.")
    assert (late.status_code, "decided already" in late.json()["error"]) == (409, True)


def test_denied_order_changes_nothing_and_the_model_sees_the_reason(
    client: httpx.Client, adapter: WaitingAdapter, database: Path
) -> None:
    order(adapter)
    tab = Tab(client).read("RUN_FINISHED")
    post(client, "/agent", body("Assam, please."))
    tab.read("RUN_FINISHED")
    reloaded = Tab(client).read("RUN_FINISHED")  # where it is pending, too
    assert reloaded.front_end.shared_state == {"status": "waiting"}
    assert decide(client, reloaded, approve=False, reason="Rather less.").status_code == 204
    tab.read("RUN_FINISHED")
    assert '"tea":"Assam"' not in snapshot(database)
    assert "Rather less." in tab.front_end.of("tool")[-1]["error"]


def test_message_is_rejected_while_a_call_is_pending_approval(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    order(adapter)
    tab = Tab(client).read("RUN_FINISHED")
    post(client, "/agent", body("Assam, please."))
    refused = post(client, "/agent", body("Thanks."))
    assert (refused.status_code, "approve or deny" in refused.json()["error"]) == (409, True)
    decide(client, tab.read("RUN_FINISHED"), approve=True)
    tab.read("RUN_FINISHED")
    assert read_run(post(client, "/agent", body("Thanks."))).text.endswith("You are welcome.")


def snapshot(database: Path) -> str:
    with closing(sqlite3.connect(database)) as rows:
        [(text,)] = rows.execute("SELECT snapshot FROM chats").fetchall()
    return str(text)


def test_another_server_resumes_the_chat_with_state_and_open_sections(
    adapter: WaitingAdapter, database: Path
) -> None:
    order(adapter)
    with serve(adapter, database) as url, browser(url) as client:
        tab = Tab(client).read("RUN_FINISHED")
        post(client, "/agent", body("Assam, please."))
        tab.read("RUN_FINISHED")
        cookies = client.cookies
    with serve(adapter, database) as url, browser(url, cookies) as client:
        waiting = Tab(client).read("RUN_FINISHED")
        decide(client, waiting, approve=True)
        waiting.read("RUN_FINISHED")
        run = read_run(post(client, "/agent", body("Thanks.")))
        assert run.text.endswith("You are welcome.")
    assert "order_tea" in adapter.requests[-1].tool_names
    assert '"tea":"Assam"' in snapshot(database)


def test_two_servers_on_one_database_lose_no_message(
    adapter: WaitingAdapter, database: Path
) -> None:
    with (
        serve(adapter, database) as one_url,
        serve(adapter, database) as two_url,
        browser(one_url) as one,
        browser(two_url, one.cookies) as two,
    ):
        Tab(two).read("RUN_FINISHED")
        post(one, "/agent", body("Assam, please."))
        stale = post(two, "/agent", body("Thanks."))
        assert stale.status_code == 409
        assert "reload" in stale.json()["error"]
        assert read_run(post(two, "/agent", body("Thanks."))).text.endswith("You are welcome.")


def test_message_survives_a_killed_server_and_is_answered_later(database: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running_process(database, port, pace=0.3) as process, browser(url) as client:
        tab = Tab(client).read("RUN_FINISHED")
        start(client, "Which tea goes with milk?")
        tab.read("TEXT_MESSAGE_CONTENT", 2)
        process.kill()
        process.wait()
    with running_process(database, port, pace=0), browser(url, client.cookies) as client:
        tab = Tab(client).read("STATE_SNAPSHOT")
        assert tab.front_end.shared_state == {"status": "stopped"}
        assert tab.front_end.of("user")[0]["content"] == "Which tea goes with milk?"
        assert post(client, "/go-on").status_code == 204
        assert "Assam" in tab.read("RUN_FINISHED", 2).front_end.text


def test_each_browser_has_its_own_chat(client: httpx.Client) -> None:
    post(client, "/agent", body("Assam, please."))
    with browser(str(client.base_url)) as other:
        assert Tab(other).read("RUN_FINISHED").front_end.messages == []


def test_database_does_not_contain_the_browser_secret(client: httpx.Client, database: Path) -> None:
    post(client, "/agent", body("Assam, please."))
    secret = client.cookies["web_chat"]
    assert all(secret.encode() not in file.read_bytes() for file in database.parent.iterdir())


def test_page_cannot_run_injected_scripts(client: httpx.Client) -> None:
    page = httpx.get(client.base_url)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    cookie = page.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    script = client.get("/chat.js").text
    assert not [
        word for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(") if word in script
    ]


@pytest.mark.parametrize("path", ["/agent", "/decide", "/stop", "/go-on"])
def test_requests_from_another_site_are_rejected(client: httpx.Client, path: str) -> None:
    assert post(client, path, body("x"), origin="http://evil.example").status_code == 403
    assert post(client, path, body("x"), origin="null").status_code == 403
    assert client.post(path, data={"x": "y"}).status_code == 415
    assert post(client, path, body("x"), host="evil.example").status_code == 400  # DNS rebinding
    with httpx.Client(base_url=client.base_url) as stranger:
        assert post(stranger, path, body("x")).status_code == 403


@pytest.mark.parametrize(
    ("content", "status"),
    [("", 422), ("[" * 100_000, 422), ("{}", 422), (body(" "), 422), (body("x" * 2_000_000), 413)],
)
def test_invalid_message_body_is_rejected(client: httpx.Client, content: str, status: int) -> None:
    answer = post(client, "/agent", content)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_disconnect_during_the_request_body_returns_400(
    adapter: WaitingAdapter, database: Path
) -> None:
    headers = {"host": "localhost", "content-type": "application/json"}
    headers["cookie"] = f"web_chat={'x' * 43}"
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/agent", "query_string": b""}
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    with closing(ChatStore(database)) as store:
        app = make_app(store, MainLoop(adapter))
        asyncio.run(app({**scope, "headers": pairs}, receive, send))
    assert sent[0]["status"] == 400


def test_provider_failure_is_shown_and_the_chat_can_continue(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    adapter.replies = iter([RuntimeError("/secret/path"), say("Better now.")])
    run = read_run(post(client, "/agent", body("Hello?")))
    assert run.last["type"] == "RUN_ERROR"
    assert "secret" not in json.dumps(run.last)
    tab = Tab(client).read("STATE_SNAPSHOT")
    assert tab.front_end.shared_state == {"status": "failed"}
    post(client, "/go-on")
    assert tab.read("RUN_FINISHED", 2).front_end.text == "Better now."


def test_closed_tab_does_not_stop_the_answer(client: httpx.Client, adapter: WaitingAdapter) -> None:
    adapter.go.clear()
    start(client, "Assam, please.")  # the client closes the response immediately
    tab = Tab(client).read("TEXT_MESSAGE_CONTENT")
    adapter.go.set()
    assert tab.read("RUN_FINISHED").front_end.text.endswith("We have Assam.")


def test_save_rejects_a_stale_version_of_a_chat(database: Path) -> None:
    with closing(ChatStore(database)) as one, closing(ChatStore(database)) as two:
        first = one.save("secret", StoredChat(pending="a"))
        with pytest.raises(StaleChatError):
            two.save("secret", StoredChat(pending="b"))
        assert two.load("secret") == first
        second = two.save("secret", first)
        with pytest.raises(StaleChatError):
            one.save("secret", first)
        assert one.load("secret") == second
        assert one.load("other") == StoredChat()


def test_server_serves_no_other_files(client: httpx.Client) -> None:
    host, port = client.base_url.host, client.base_url.port
    for path in (
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/store.py",
        "//chat.js/../../server.py",
        "/page/index.html",
        "/chat.js%00.py",
        "/etc/passwd",
    ):
        with create_connection((host, port or 80)) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                assert answer.readline().split()[1] == b"404", path


def test_other_sites_cannot_read_a_chat(client: httpx.Client) -> None:
    for path in ("/", "/chat.js", "/events"):
        assert client.get(path, headers={"host": "evil.example"}).status_code == 400
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for answer in (
        client.request("OPTIONS", "/agent", headers=headers),
        client.get("/", headers=headers),
    ):
        assert [name for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize(
    "text", ["\\ud800 and \\udfff", "\\u0000\\u001b[2J", "\\u202eabc\\u2028", "</script>"]
)
def test_unusual_characters_in_a_message_are_rejected_or_kept(
    client: httpx.Client, adapter: WaitingAdapter, text: str
) -> None:
    adapter.replies = iter([say("Hello."), say("Better.")])
    answer = post(client, "/agent", body("TEXT").replace("TEXT", text))
    if answer.status_code == 200:
        assert read_run(answer).state == "ended"
        [message] = Tab(client).read("STATE_SNAPSHOT").front_end.of("user")
        assert message["content"] == json.loads(f'"{text}"')
    else:
        assert (answer.status_code, list(answer.json())) == (422, ["error"])
    later = read_run(post(client, "/agent", body("And now?")))
    assert later.last["outcome"] == {"type": "success"}


@pytest.mark.parametrize("reason", ["\\ud800", "\\u0000\\u001b[2J", "x" * 100_000])
def test_denial_with_an_unusual_reason_does_not_lose_the_chat(
    client: httpx.Client, adapter: WaitingAdapter, reason: str
) -> None:
    order(adapter)
    tab = Tab(client).read("RUN_FINISHED")
    start(client, "Assam, please.")
    tab.read("RUN_FINISHED")
    [shown] = [
        item["content"]
        for item in tab.front_end.of("activity")
        if item["activityType"] == "approval_requested"
    ]
    decision = (
        f'{{"callId": "{shown["call_id"]}", "digest": "{shown["digest"]}", '
        f'"approve": false, "reason": "{reason}"}}'
    )
    taken = post(client, "/decide", decision).status_code == 204
    if taken:
        tab.read("RUN_FINISHED")
    reloaded = Tab(client).read("STATE_SNAPSHOT").front_end
    assert reloaded.shared_state == {"status": "ready" if taken else "waiting"}
    if not taken:  # and the user can decide again
        assert decide(client, tab, approve=True).status_code == 204
        tab.read("RUN_FINISHED")


def test_tab_that_does_not_read_blocks_no_other_tab(
    client: httpx.Client, adapter: WaitingAdapter
) -> None:
    words = 30_000
    adapter.replies = iter([say("long"), say("Here.")])
    adapter.pieces = words
    slow = Tab(client)
    host, port = client.base_url.host, client.base_url.port
    with create_connection((host, port or 80)) as stuck:  # it never reads
        cookie = f"web_chat={client.cookies['web_chat']}"
        request = f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        stuck.sendall(request.encode())
        run = read_run(post(client, "/agent", body("Hello?")))
        assert run.text == "long" + " long" * words
        assert read_run(post(client, "/agent", body("And?"))).text.endswith("Here.")
    assert Tab(client).read("RUN_FINISHED").front_end.text == f"{run.text}|Here."
    slow.close()
