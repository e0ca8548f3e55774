"""The web chat in a real browser: tabs, reloads, stops, kills, hostile text, keys, widths, dark."""

import json
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ag_ui", reason="the extra `ag-ui` is not installed")
pytest.importorskip("uvicorn", reason="the extra `mcp` is not installed")
from support.browser import AnyPage, open_browser
from support.web_chat import SECONDS, WaitingAdapter, free_port, running_process, serve
from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.citations import Citation
from weakincentives.testing import ScriptedAdapter, call, say

PICTURES = os.environ.get("WINK_PICTURES")
HOSTILE = (
    "</pre><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!-- "
    "\x1b[2J\u202eabc"
)
WIDTH = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

type Open = Callable[..., AnyPage]


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def adapter() -> WaitingAdapter:
    return WaitingAdapter([say("Let me think about that."), say("Here it is.")])


@pytest.fixture
def url(adapter: WaitingAdapter, tmp_path: Path) -> Generator[str]:
    with serve(adapter, tmp_path / "chats.db") as url:
        yield url


@pytest.fixture
def context(browser: Any) -> Generator[Any]:
    """A browser whose tabs have no errors and send no requests to other servers."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 900, "height": 760})
    context.set_default_timeout(1000 * SECONDS)
    context.on("weberror", lambda error: problems.append(str(error.error)))
    context.on("console", lambda message: problems.append(message.text))
    context.on("request", lambda request: problems.append(request.url))
    yield context
    context.close()
    # Chromium reports every unsuccessful response, and a server that has stopped.
    expected = ("http://127.0.0.1:", "Failed to load resource")
    assert [text for text in problems if not text.startswith(expected)] == []


def test_page_shows_a_typed_answer_while_it_arrives(context: Any, tmp_path: Path) -> None:
    @dataclass
    class Advice:
        tea: str
        grams: int
        notes: dict[str, list[str]]

    template = PromptTemplate[Advice](
        ns="tests", key="advice", sections=[MarkdownSection(title="Task", template="Advise.")]
    )
    answer = '{"tea":"Keemun","notes":{"__proto__":["x<b>"],"a/b~":[ "y"]},"grams":100}'
    adapter = WaitingAdapter([say(answer)])
    adapter.go.clear()
    with serve(adapter, tmp_path / "typed.db", template.bind) as url:
        page = open_tab(context, url)
        send(page, "Which tea?")
        article = page.locator("article.typed")
        article.wait_for()
        shown = {"tea": "Keemun", "notes": {"__proto__": ["x<b>"], "a/b~": []}}
        assert json.loads(article.inner_text()) == shown
        adapter.go.set()
        page.locator("article.typed", has_text="grams").wait_for()
        complete = {**shown, "grams": 100, "notes": {"__proto__": ["x<b>"], "a/b~": ["y"]}}
        assert json.loads(article.inner_text()) == complete
        before = article.inner_text()
        assert "\n" in before
        page.reload()
        article.wait_for()
        assert article.inner_text() == before
        assert page.evaluate("({}).x") is None


def open_tab(context: Any, url: str) -> AnyPage:
    page = context.new_page()
    page.goto(url)
    return page


def send(page: AnyPage, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def said(page: AnyPage) -> str:
    return str(page.locator("#messages").inner_text())


def wait_for(page: AnyPage, text: str) -> None:
    page.locator("article:visible, #notice:visible", has_text=text).first.wait_for()


def picture(page: AnyPage, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / name)


def test_tabs_share_one_chat_and_a_rejected_message_stays_in_its_box(
    context: Any, url: str, adapter: WaitingAdapter
) -> None:
    one, two = open_tab(context, url), open_tab(context, url)
    adapter.go.clear()
    send(one, "Hello?")
    wait_for(two, "Let")
    send(two, "And milk?")
    two.get_by_role("alert").get_by_text("still being written").wait_for()
    assert two.get_by_label("Your message").input_value() == "And milk?"
    adapter.go.set()
    wait_for(two, "Let me think about that.")
    two.get_by_role("button", name="Send").click()
    wait_for(one, "Here it is.")
    wait_for(two, "Here it is.")
    assert said(one) == said(two)
    assert two.get_by_label("Your message").input_value() == ""


def test_thinking_is_folded_and_only_web_sources_are_links(context: Any, tmp_path: Path) -> None:
    sources = [
        Citation(url="https://example.org/a?b=1", title="<b>Docs</b>", start=4, end=8),
        Citation(url="javascript:alert(1)", title="Evil"),
    ]
    reply = say("🐈é. Café", reasoning="I think <b>hard</b>.", citations=sources)
    with serve(ScriptedAdapter([reply]), tmp_path / "chats.db") as url:
        page = open_tab(context, url)
        send(page, "Hello?")
        page.locator(".sources").wait_for()
        for _ in range(2):
            thought = page.locator("details.thought pre")
            assert not thought.is_visible()
            page.locator("details.thought summary").click()
            assert thought.inner_text() == "I think <b>hard</b>."
            links = page.locator(".sources a").all()
            assert [link.get_attribute("href") for link in links] == ["https://example.org/a?b=1"]
            assert page.locator(".sources").inner_text().split("\n") == [
                "Sources",
                "<b>Docs</b> · “Café”",
                "Evil",
            ]
            page.reload()
            page.locator(".sources").wait_for()


def test_reload_during_an_answer_continues_the_stream(
    context: Any, url: str, adapter: WaitingAdapter
) -> None:
    page = open_tab(context, url)
    adapter.go.clear()
    send(page, "Hello?")
    wait_for(page, "Let")
    page.reload()
    wait_for(page, "Let")
    assert page.get_by_role("button", name="Stop").is_visible()
    adapter.go.set()
    wait_for(page, "Let me think about that.")
    page.get_by_role("button", name="Send").wait_for()
    assert said(page).split("\n") == ["Hello?", "Let me think about that."]


@pytest.mark.parametrize("key", [None, "Escape"])
def test_stopped_answer_keeps_its_text_and_can_be_continued(
    context: Any, url: str, adapter: WaitingAdapter, key: str | None
) -> None:
    page = open_tab(context, url)
    adapter.go.clear()
    send(page, "Hello?")
    wait_for(page, "Let")
    if key:
        page.keyboard.press(key)
    else:
        page.get_by_role("button", name="Stop").click()
    wait_for(page, "Stopped.")
    page.reload()
    wait_for(page, "Stopped.")
    assert said(page).split("\n") == ["Hello?", "Let"]
    adapter.go.set()
    page.get_by_role("button", name="Continue").click()
    wait_for(page, "Here it is.")
    assert not page.get_by_text("Stopped.").is_visible()


def test_page_restores_its_chat_after_the_server_was_killed(context: Any, tmp_path: Path) -> None:
    database, port = tmp_path / "chats.db", free_port()
    with running_process(database, port, pace=0.3) as process:
        page = open_tab(context, f"http://127.0.0.1:{port}")
        send(page, "Which tea goes with milk?")
        wait_for(page, "From our")
        process.kill()
        process.wait()
        page.get_by_role("status").get_by_text("Connecting").wait_for()
        send(page, "Hello?")
        page.get_by_role("alert").get_by_text("does not answer").wait_for()
        assert page.get_by_label("Your message").input_value() == "Hello?"
    with running_process(database, port, pace=0):
        page.reload()
        wait_for(page, "Stopped.")
        assert said(page) == "Which tea goes with milk?"
        page.get_by_role("button", name="Continue").click()
        wait_for(page, "Assam is black")


def test_hostile_text_is_rendered_as_text_everywhere(
    context: Any, url: str, adapter: WaitingAdapter
) -> None:
    long = "x" * 10_000_000
    adapter.replies = iter(
        [
            call(("read_section", {"section_key": HOSTILE}), ("find_teas", {"words": long})),
            say(f"{HOSTILE} {long[:100_000]}"),
        ]
    )
    page = open_tab(context, url)
    send(page, HOSTILE)
    page.get_by_role("button", name="Send").wait_for()
    page.get_by_role("button", name="Details").click()
    for summary in page.locator("summary").all():
        summary.click()
    page.reload()
    page.locator("article.assistant").wait_for()
    texts = page.locator("#messages").text_content()
    assert texts.count("<script>window.hacked = 1</script>") >= 3
    assert "more characters" in texts
    assert "⟨U+001B⟩[2J⟨U+202E⟩abc" in texts
    assert "\u202e" not in texts
    assert page.evaluate("window.hacked") is None
    assert page.locator("#messages :is(script, img)").count() == 0
    scroll, client = page.evaluate(WIDTH)
    assert scroll <= client


def test_chat_is_usable_with_the_keyboard_only(
    context: Any, url: str, adapter: WaitingAdapter
) -> None:
    opening = call(("read_section", {"section_key": "orders"}))
    ordering = call(("order_tea", {"tea": "Assam", "grams": 200}))
    adapter.replies = iter([opening, ordering, say("Ordered.")])
    page = open_tab(context, url)
    keys = page.keyboard
    keys.type("First line")  # the box has the focus
    keys.press("Shift+Enter")
    keys.type("second line")
    keys.press("Enter")
    page.get_by_role("button", name="Approve").wait_for()
    assert said(page).startswith("First line\nsecond line")
    for _ in range(20):
        keys.press("Shift+Tab")
        if page.evaluate("document.activeElement.textContent") == "Approve":
            break
    keys.press("Enter")
    wait_for(page, "Ordered.")
    page.get_by_role("button", name="Details").focus()
    keys.press("Enter")
    page.locator("summary").first.focus()
    keys.press("Enter")
    assert "Content of section 'orders'" in said(page)


def test_user_can_preview_and_deny_an_order(context: Any, tmp_path: Path) -> None:
    database, port = tmp_path / "chats.db", free_port()
    with running_process(database, port, pace=0):
        page = open_tab(context, f"http://127.0.0.1:{port}")
        page.get_by_role("button", name="Which black tea").click()
        wait_for(page, "Strong and malty")
        page.get_by_role("button", name="Send").wait_for()
        send(page, "I want 200 g of Assam, please.")
        page.get_by_role("button", name="Approve").wait_for()
        card = page.locator(".approval")
        assert card.inner_text().split("\n")[0] == "Order 200 g of Assam?"
        assert "Looked for teas: Which black tea goes with milk?" in said(page)
        assert not any(sign in said(page) for sign in ("{", "find_teas", "tools"))
        page.get_by_role("button", name="Details").click()
        assert '+ [0] = {"grams": 200, "tea": "Assam"}' in card.inner_text()
        assert "New tools: find_teas" in said(page)
        page.get_by_role("button", name="Details").click()
        page.set_viewport_size({"width": 900, "height": 1000})
        picture(page, "web-chat.png")
        page.set_viewport_size({"width": 400, "height": 760})
        page.emulate_media(color_scheme="dark")
        scroll, client = page.evaluate(WIDTH)
        assert scroll <= client == 400
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert dark == "rgb(23, 26, 25)"
        picture(page, "web-chat-narrow.png")
        page.get_by_label("Reason for a denial").fill("Rather less.")
        page.get_by_role("button", name="Deny").click()
        page.locator(".outcome.failed", has_text="Not done.").wait_for()
        page.get_by_role("button", name="Send").wait_for()
        assert page.get_by_role("button", name="Approve").count() == 0
        page.reload()
        page.locator(".outcome.failed", has_text="Not done.").wait_for()
        assert "approval" not in page.locator("#messages").inner_text()
        page.get_by_role("button", name="Details").click()
        page.locator("summary").last.click()
        assert "Rather less." in said(page)
