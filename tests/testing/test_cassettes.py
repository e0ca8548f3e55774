"""Cassettes play exactly what was recorded, and say what differs otherwise."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, repeat
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from support.scripted_server import Fail, Say, ScriptedServer
from support.sdk_clients import APIS, sdk_adapter
from weakincentives import (
    Chat,
    MainLoop,
    MarkdownSection,
    ModelSettings,
    PromptTemplate,
    RunConfig,
    SectionVisibility,
    ToolContext,
)
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.content import Image
from weakincentives.evaluation.errors import PromptEvaluationError, ThrottleError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import OutputDelta, ReasoningDelta, TextDelta
from weakincentives.limits import Budget, Meter
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.testing.cassettes import Cassette, CassetteMiss, Mode
from weakincentives.testing.fixtures import file_name

KEY = "sk-sentinel-0123456789"
STAMPS = count()


@dataclass(frozen=True)
class Named:
    name: str


def look(city: str) -> str:
    """Look at the weather."""
    return json.dumps({"city": city, "created_at": next(STAMPS)})


def still(city: str) -> str:
    """Look at the weather."""
    return f"Sunny in {city}."


def template(rules: str = "Be kind.", tool: Callable[..., Any] = still) -> PromptTemplate[None]:
    sections = [
        MarkdownSection(title="Rules", template=rules, tools=[tool]),
        MarkdownSection(title="Date", template=f"Today is day {next(STAMPS)}."),
    ]
    return PromptTemplate(ns="tests", key="played", sections=sections)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "run.jsonl"


def play(path: Path, **options: Any) -> Cassette:
    options = {"mode": "none", "volatile": ["date"], **options}
    return Cassette(ScriptedAdapter([]), path, **options)


def record(path: Path, *replies: Any, mode: Any = "once", **options: Any) -> Cassette:
    options = {"volatile": ["date"], **options}
    return Cassette(ScriptedAdapter(replies), path, mode=mode, **options)


LOOKS = (call(("still", {"city": "Rome"})), say("It is sunny."))


def test_recorded_run_plays_without_its_provider(path: Path) -> None:
    with record(path, *LOOKS) as cassette:
        assert MainLoop(cassette).execute(template(), "Hi").text == "It is sunny."
    played = play(path)
    assert MainLoop(played).execute(template(), "Hi").text == "It is sunny."
    assert played.recordings.left == 0


def test_changed_section_is_a_miss_that_names_it_and_its_words(path: Path) -> None:
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template("Never pay twice."), "Hi")
    with pytest.raises(CassetteMiss) as caught:
        MainLoop(play(path)).execute(template("Never pay thrice."), "Hi")
    assert "section 'rules': 'twice.' is now 'thrice.'" in str(caught.value)
    assert "of 1 recordings, 1 have other texts of sections" in str(caught.value)
    assert "to record again, run pytest --cassette=rewrite" in str(caught.value)
    for text, change in [
        ("Never ever pay twice.", "'ever' was added"),
        ("Never twice.", "'pay' was removed"),
    ]:
        with pytest.raises(CassetteMiss, match=f"section 'rules': {change}"):
            MainLoop(play(path)).execute(template(text), "Hi")


def test_miss_is_compared_with_the_nearest_recording(path: Path) -> None:
    far = PromptTemplate(
        ns="tests", key="far", sections=[MarkdownSection(title="Other", template="Far away.")]
    )
    with record(path, say("A"), say("B"), say("C")) as cassette:
        for asked, message in ((far, "Hi"), (template("Never pay twice."), "Hi"), (far, "Ho")):
            MainLoop(cassette).execute(asked, message)
    before, adapter = path.read_bytes(), ScriptedAdapter([say("never asked")])
    cassette = Cassette(adapter, path, mode="none", volatile=["date"])
    with pytest.raises(CassetteMiss) as caught:
        MainLoop(cassette).execute(template("Never pay thrice."), "Hi")
    line = next(n for n, it in enumerate(before.decode().split("\n"), 1) if "twice" in it)
    found = (
        f"- the nearest recording is line {line}\n- section 'rules': 'twice.' is now 'thrice.'\n"
    )
    assert found in str(caught.value)
    assert "Far away" not in str(caught.value)
    assert (adapter.requests, path.read_bytes()) == ([], before)


def test_miss_says_mode_file_recordings_that_are_left_and_how_to_record(path: Path) -> None:
    asked = template()
    with record(path, say("A"), say("B"), say("C")) as cassette:
        for message in ("Hi", "Ho", "Hu"):
            MainLoop(cassette).execute(asked, message)
    for mode in ("none", "once"):
        loop = MainLoop(play(path, mode=mode))
        loop.execute(asked, "Hi")
        with pytest.raises(CassetteMiss) as caught:
            loop.execute(asked, "He")
        first, *_, last = str(caught.value).split("\n")
        missed = "has no answer to this request; 2 others are left:"
        assert first == f"{path} (mode {mode!r}) {missed}"
        assert last == "to record again, run pytest --cassette=rewrite, or pass mode='rewrite'"


def test_equal_requests_play_their_answers_in_order_and_a_further_one_is_a_miss(path: Path) -> None:
    asked = template()
    with record(path, say("A"), say("B")) as cassette:
        texts = [MainLoop(cassette).execute(asked, "Hi").text for _ in range(2)]
    loop = MainLoop(play(path))
    assert texts == ["A", "B"] == [loop.execute(asked, "Hi").text for _ in range(2)]
    with pytest.raises(
        CassetteMiss, match="recorded this request 2 times, but it was asked 3 times"
    ):
        loop.execute(asked, "Hi")


def test_recorded_failure_is_raised_again_before_the_answer(path: Path) -> None:
    busy = Fail(429, "busy", "rate_limit_error", headers=(("Retry-After", "30"),))
    asked = template()
    with ScriptedServer(busy, Say("Done.")) as server:
        adapter = OpenAIAdapter("m", base_url=server.openai_url, api_key=KEY, max_retries=0)
        with Cassette(adapter, path, mode="once") as cassette:
            with pytest.raises(ThrottleError):
                MainLoop(cassette).execute(asked, "Hi")
            MainLoop(cassette).execute(asked, "Hi")
    durations: list[float] = []
    for _ in range(5):  # the machine may be busy during some of them
        meter = Meter()
        config = RunConfig(
            prices=lambda usage, model: 0.01 * usage.total_tokens, budget=Budget(meter=meter)
        )
        started = monotonic()
        loop = MainLoop(Cassette(adapter, path, mode="none", config=config))
        with pytest.raises(ThrottleError) as caught:
            loop.execute(asked, "Hi")
        assert caught.value.retry_after is not None
        assert caught.value.retry_after.seconds == 30
        done = loop.execute(asked, "Hi")
        durations.append(monotonic() - started)
        assert (done.text, done.usage.total_tokens) == ("Done.", 15)
        assert (meter.usage.usage.total_tokens, meter.usage.cost) == (15, 0.15)
    assert min(durations) < 0.1


def test_fallback_inside_a_cassette_plays_with_its_failure(path: Path) -> None:
    down = PromptEvaluationError("down", phase="request", code="server_error")
    both = FallbackAdapter(ScriptedAdapter([down]), ScriptedAdapter([say("Second.")]))
    asked = template()
    with Cassette(both, path, mode="once") as cassette:
        assert MainLoop(cassette).execute(asked, "Hi").text == "Second."
    assert MainLoop(Cassette(both, path, mode="none")).execute(asked, "Hi").text == "Second."


def test_failed_rewrite_leaves_the_file_as_it_was(path: Path) -> None:
    with record(path, say("Old.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    before = path.read_bytes()
    with pytest.raises(AssertionError), record(path, say("New."), mode="rewrite") as cassette:
        assert MainLoop(cassette).execute(template(), "Hi").text == "Old."
    assert path.read_bytes() == before
    with record(path, say("New."), mode="rewrite") as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    assert b"New." in path.read_bytes()
    assert b"Old." not in path.read_bytes()
    assert [it.name for it in path.parent.iterdir()] == ["run.jsonl"]


def test_rewrite_that_fails_after_some_answers_leaves_the_file_as_it_was(path: Path) -> None:
    asked, messages = template(), [f"Message {number}" for number in range(5)]
    with record(path, *map(say, messages)) as cassette:
        for message in messages:
            MainLoop(cassette).execute(asked, message)
    before = path.read_bytes()
    down = PromptEvaluationError("down", phase="request", code="server_error")
    replies = [say("New."), say("New."), say("New."), down]
    talk = Chat(cassette := record(path, *replies, mode="rewrite"), asked)
    with pytest.raises(PromptEvaluationError), cassette:
        list(map(talk.send, messages))
    assert path.read_bytes() == before
    assert [it.name for it in path.parent.iterdir()] == ["run.jsonl"]


@pytest.mark.parametrize("mode", ["once", "rewrite"])
def test_file_contains_no_credentials(path: Path, mode: Any) -> None:
    image = Image.from_url(f"https://user:{KEY}@127.0.0.1/a.png?size=1&key={KEY}&x=1")
    settings = ModelSettings(extra={"metadata": {"api_key": KEY}})
    with ScriptedServer(Say("Done."), strict=False) as server:
        url = server.openai_url.replace("//", f"//user:{KEY}@")
        adapter = OpenAIAdapter("m", base_url=url, api_key=KEY, settings=settings)
        with Cassette(adapter, path, mode=mode) as cassette:
            MainLoop(cassette).execute(template(), ["Look.", image], settings=settings)
    text = path.read_text()
    assert "sentinel" not in text
    assert "https://***@127.0.0.1/a.png?size=1&key=***&x=1" in text


@pytest.mark.parametrize("api", APIS)
def test_file_contains_no_key_that_a_provider_quotes_also_after_answers_are_removed(
    path: Path, api: str
) -> None:
    quoted = Fail(400, f"the key {KEY} is not for this model", "invalid_request_error")
    asked = template()
    with ScriptedServer(Say("A"), quoted, Say("C"), Say("A"), quoted) as server:
        adapter = sdk_adapter(api, server.url, api_key=KEY, max_retries=0)
        modes: list[tuple[Mode, int]] = [("once", 3), ("rewrite", 2)]
        for mode, count in modes:
            with Cassette(adapter, path, mode=mode, volatile=["date"]) as cassette:
                for message in ("Hi", "Ho", "Hu")[:count]:
                    with suppress(PromptEvaluationError):
                        MainLoop(cassette).execute(asked, message)
            assert len(path.read_text().splitlines()) == 1 + count
            assert "sentinel" not in path.read_text()
        assert all(KEY in str(request.headers) for request in server.requests)


def test_nested_runs_find_their_own_answers_in_any_order(path: Path) -> None:
    names = [f"n{index}" for index in range(5)]
    asked = {name: template(f"Rules of {name}.") for name in names}
    with record(path, *(say(name) for name in names)) as cassette:
        for name in names:
            MainLoop(cassette).execute(asked[name], "Hi")
    for seed in range(20):
        shuffled = random.Random(seed).sample(names, len(names))  # noqa: S311 - an order
        loop = MainLoop(play(path))
        assert [loop.execute(asked[name], "Hi").text for name in shuffled] == shuffled
    with ThreadPoolExecutor(5) as threads:
        loop = MainLoop(play(path))
        results = threads.map(lambda name: loop.execute(asked[name], "Hi").text, names)
        assert list(results) == names


def test_nested_runs_of_one_call_play_in_any_order(path: Path) -> None:
    names = ["one", "two", "three"]
    order = names

    async def research(*, context: ToolContext) -> str:
        """Research three topics at the same time."""

        async def ask(place: int, name: str) -> str:
            for _ in range(2 * place):
                await asyncio.sleep(0)
            response = await context.evaluate_async(template(f"Rules of {name}."))
            return f"{name}: {response.text}"

        answers = [ask(place, name) for place, name in enumerate(order)]
        return "\n".join(sorted(await asyncio.gather(*answers)))

    asked = template(tool=research)

    def run(cassette: Cassette) -> tuple[str, str]:
        done = MainLoop(cassette).execute(asked, "Hi")
        assert done.conversation is not None
        return done.text, str(done.conversation.messages)

    def reply(seen: SeenRequest) -> AssistantMessage:
        text = str(seen.messages[0])
        name = next((name for name in names if f"Rules of {name}." in text), "")
        if name:
            return say(f"About {name}.")
        return say("Done.") if len(seen.messages) > 3 else call(("research", {}))

    adapter = ScriptedAdapter(repeat(reply))
    with Cassette(adapter, path, mode="once", volatile=["date"]) as cassette:
        recorded = run(cassette)
    assert "About three." in recorded[1]
    seen: set[tuple[str, ...]] = set()
    for seed in range(100):
        order = random.Random(seed).sample(names, len(names))  # noqa: S311 - an order
        seen.add(tuple(order))
        played = play(path)
        assert run(played) == recorded
        assert played.recordings.left == 0
    assert len(seen) == 6


def test_message_inserted_at_the_beginning_makes_every_later_request_a_miss(path: Path) -> None:
    asked = template()
    with record(path, say("One."), say("Two."), say("Three.")) as cassette:
        talk = Chat(cassette, asked)
        for message in ("First.", "Second.", "Third."):
            talk.send(message)
    other = Chat(ScriptedAdapter([say(it) for it in ("Zero.", "One.", "Two.")]), asked)
    other.send("Zeroth.")
    played = play(path)
    for message in ("First.", "Second.", "Third."):
        state = other.conversation
        assert state is not None
        with pytest.raises(CassetteMiss, match="message 2 is new"):
            MainLoop(played).execute(asked, message, conversation=state, session=other.session)
        if message != "Third.":
            other.send(message)
    assert played.recordings.left == 3


def test_inserted_message_is_new_and_no_answer_is_found_by_position(path: Path) -> None:
    asked = template()
    with record(path, say("One."), say("Two.")) as cassette:
        first = MainLoop(cassette).execute(asked, "First.")
        MainLoop(cassette).execute(
            asked, "Second.", conversation=first.conversation, session=first.session
        )
    with pytest.raises(CassetteMiss, match=r"message 2, \$: 'First\.' is now 'Zeroth\.'"):
        MainLoop(play(path)).execute(asked, "Zeroth.")
    loop = MainLoop(play(path))
    first = loop.execute(asked, "First.")
    asked_again = MainLoop(record(path.with_name("other"), say("?"))).execute(
        asked, "Between.", conversation=first.conversation, session=first.session
    )
    with pytest.raises(CassetteMiss, match="message 4 is new"):
        loop.execute(asked, "Second.", conversation=asked_again.conversation, session=first.session)


def test_stream_plays_the_same_pieces(path: Path) -> None:
    asked = template()
    with ScriptedServer(Say("word " * 40, reasoning="Hm.")) as server:
        adapter = OpenAIAdapter("m", base_url=server.openai_url, api_key=KEY)
        with Cassette(adapter, path, mode="once") as cassette:
            pieces = list(cassette.stream(asked))
    played = list(Cassette(adapter, path, mode="none").stream(asked))

    async def read() -> list[object]:
        stream = Cassette(adapter, path, mode="none").stream_async(asked)
        return [event async for event in stream]

    events = pieces, played, asyncio.run(read())
    deltas = [[it for it in each if isinstance(it, TextDelta | ReasoningDelta)] for each in events]
    assert len(deltas[0]) > 2
    assert isinstance(deltas[0][0], ReasoningDelta)
    assert deltas[0] == deltas[1] == deltas[2]


def test_stream_of_40_pieces_plays_each_of_them_and_the_typed_answer_so_far(path: Path) -> None:
    pieces = ['{"name": "', *(f"word {number} " for number in range(38)), '"}']
    asked = PromptTemplate[Named](
        ns="tests", key="typed", sections=[MarkdownSection(title="Task", template="Name it.")]
    )

    class Streaming(ScriptedAdapter):
        def connect(self, rendered: Any, /) -> Any:
            return StreamingConnection()

    class StreamingConnection(Connection):
        def ask(self, request: ProviderRequest, /) -> AssistantMessage:
            return say("".join(pieces))

        async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
            return self.ask(request)

        def ask_stream(self, request: ProviderRequest, /) -> Iterator[Any]:
            for index, text in enumerate(pieces):
                yield (ReasoningDelta if index == 0 else TextDelta)(text)
            yield TextDelta("x")
            yield self.ask(request)

    adapter = Streaming([])
    with Cassette(adapter, path, mode="once") as cassette:
        recorded = list(cassette.stream(asked))
    started = monotonic()
    played = list(Cassette(adapter, path, mode="none").stream(asked))
    assert monotonic() - started < 5
    kinds = TextDelta | ReasoningDelta | OutputDelta
    found = [[it for it in each if isinstance(it, kinds)] for each in (recorded, played)]
    assert found[0] == found[1]
    texts = [it.text for it in found[1] if isinstance(it, TextDelta)]
    assert texts == [*pieces[1:], "x"]


def test_result_that_varies_names_tool_and_path_and_a_normalizer_ignores_it(path: Path) -> None:
    asked = template(tool=look)
    replies = call(("look", {"city": "Rome"})), say("Sunny.")
    with record(path, *replies) as cassette:
        MainLoop(cassette).execute(asked, "Hi")
    with pytest.raises(CassetteMiss, match=r"message 4, tool 'look', \$\.created_at: '\d+' is now"):
        MainLoop(play(path)).execute(asked, "Hi")

    def without_stamps(text: str) -> str:
        return re.sub(r'created_at\\": \d+', r'created_at\\": 0', text)

    # the normalizer is newer than the recording
    played = play(path, normalize=without_stamps)
    assert MainLoop(played).execute(template(tool=look), "Hi").text == "Sunny."


def test_section_that_varies_is_a_miss_unless_it_is_volatile(path: Path) -> None:
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    with pytest.raises(CassetteMiss, match=r"section 'date': '\d+\.' is now"):
        MainLoop(play(path, volatile=[])).execute(template(), "Hi")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"Done", b"\xe9"),
        (b'"messages": [', b'"messages": ["x", '),
        (b"{", b"<<<<<<< HEAD\n{"),
        (b'"finish": "stop"', b'"finish": "over"'),
        (b'"text": "Done."', b'"text": 5'),
        (b'{"reply"', b'{"deltas": [{}], "reply"'),
        (b'{"reply"', b'{"deltas": 5, "reply"'),
        (b'"tools": [', b'"tools": [{}, '),
        (b'"kind": "user"', b'"kind": "user", "tool_calls": [{}]'),
        (b"]}", b""),
    ],
    ids=[
        "not UTF-8",
        "a message that is text",
        "a conflict of git",
        "an unknown finish",
        "text that is a number",
        "an empty delta",
        "deltas that are a number",
        "a tool without a name",
        "a call without an id",
        "cut off",
    ],
)
def test_damaged_line_is_rejected_with_its_number(path: Path, before: bytes, after: bytes) -> None:
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    facts, line = path.read_bytes().splitlines()
    path.write_bytes(b"\xef\xbb\xbf" + facts + b"\r\n" + line + b"\r\n")
    assert MainLoop(play(path)).execute(template(), "Hi").text == "Done."
    path.write_bytes(facts + b"\n" + line.replace(before, after, 1) + b"\n")
    with pytest.raises(ValueError, match=":2 is not a recording of this version"):
        play(path)


@pytest.mark.parametrize("part", ["model", "tools", "replies", "messages", "settings", "output"])
def test_line_without_a_part_is_rejected_with_its_number(path: Path, part: str) -> None:
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    facts, text = path.read_text().splitlines()
    line = json.loads(text)
    del line[part]
    path.write_text(f"{facts}\n{json.dumps(line)}\n")
    with pytest.raises(ValueError, match=":2 is not a recording of this version"):
        play(path)
    path.write_text(f'{facts}\n{{"after": 9, "messages": [], "replies": []}}\n')
    with pytest.raises(ValueError, match=":2 is not a recording of this version"):
        play(path)
    path.write_text(facts.replace('"cassette": 1', '"cassette": 2') + "\n")
    with pytest.raises(ValueError, match=":1 is not a recording of this version"):
        play(path)


def test_test_names_become_different_files_in_the_folder() -> None:
    names = ["a/b", "a\\b", "../x", "con", "A", "a", "x" * 300, "é", "a:b"]
    files = [file_name(name) for name in names]
    assert len({name.lower() for name in files}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,100}", name) for name in files)
    assert "con" not in files


def test_missing_file_names_the_one_that_has_the_request(path: Path) -> None:
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    with pytest.raises(CassetteMiss, match=r"does not exist, but run\.jsonl has this request"):
        MainLoop(play(path.with_name("renamed.jsonl"))).execute(template(), "Hi")
    with pytest.raises(
        CassetteMiss, match=r"none\.jsonl .* does not exist\nto record it, run .*=once"
    ):
        MainLoop(play(path.with_name("none.jsonl"))).execute(template("Else."), "Hi")


def test_second_recorder_of_one_file_fails_and_says_why(path: Path) -> None:
    with record(path, say("One.")) as first:
        MainLoop(first).execute(template(), "Hi")
        second = record(path, say("Two."))
        MainLoop(second).execute(template(), "Hi")
    with pytest.raises(FileExistsError, match="was recorded by another process or test; run again"):
        second.save()


def test_recording_again_gives_the_same_bytes(path: Path) -> None:
    asked = template()
    texts: list[bytes] = []
    for _ in range(3):
        replies = [*LOOKS, say("Other."), *LOOKS]
        with record(path, *replies, mode="rewrite") as cassette:
            for message in ("Hi", "Ho", "Hu"):
                MainLoop(cassette).execute(asked, message)
        texts.append(path.read_bytes())
    assert len({*texts}) == 1
    assert texts[0].count(b"Rules") == 3  # each conversation's prompt once


def test_order_of_completion_does_not_change_the_file(path: Path) -> None:
    names = [f"n{index}" for index in range(6)]
    asked = {name: template(f"Rules of {name}.") for name in names}

    def reply(seen: SeenRequest) -> AssistantMessage:
        text = str(seen.messages[0])
        return say(next(name for name in names if f"Rules of {name}." in text))

    texts: set[bytes] = set()
    for seed in range(10):
        shuffled = random.Random(seed).sample(names, len(names))  # noqa: S311 - an order
        adapter = ScriptedAdapter(repeat(reply))
        with Cassette(adapter, path, mode="rewrite") as cassette:
            for name in shuffled:
                MainLoop(cassette).execute(asked[name], "Hi")
        texts.add(path.read_bytes())
    assert len(texts) == 1


def test_image_is_recorded_by_its_digest(path: Path) -> None:
    data = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3_000_000)  # noqa: S311 - noise
    asked, image = template(), Image.from_bytes(data)
    with record(path, say("A cat.")) as cassette:
        MainLoop(cassette).execute(asked, ["Look.", image])
    without = path.with_name("without.jsonl")
    with record(without, say("A cat.")) as cassette:
        MainLoop(cassette).execute(asked, ["Look."])
    assert path.stat().st_size - without.stat().st_size < 1_000
    assert MainLoop(play(path)).execute(asked, ["Look.", image]).text == "A cat."
    other = Image.from_bytes(data[:-1] + b"!")
    with pytest.raises(CassetteMiss, match=r"message 2, \$\[1\]"):
        MainLoop(play(path)).execute(asked, ["Look.", other])


def test_other_settings_model_and_tools_are_misses_that_name_them(path: Path) -> None:
    asked = template()
    with record(path, say("Done."), settings=ModelSettings(temperature=0)) as cassette:
        MainLoop(cassette).execute(asked, "Hi")
    with pytest.raises(CassetteMiss, match=r"settings \$\.temperature: '0' is now '1'"):
        MainLoop(play(path)).execute(asked, "Hi", settings=ModelSettings(temperature=1))
    with pytest.raises(CassetteMiss, match="model"):
        MainLoop(Cassette("openai:gpt-5.2", path, mode="none", volatile=["date"])).execute(
            asked, "Hi"
        )
    with pytest.raises(CassetteMiss, match="tool 'look' is new"):
        MainLoop(play(path, settings=ModelSettings(temperature=0))).execute(
            template(tool=look), "Hi"
        )


def test_named_model_needs_no_key_to_play(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    with ScriptedServer(Say("Done.")) as server:
        from weakincentives import adapter_for

        named = adapter_for("groq:llama", base_url=server.openai_url, api_key=KEY)
        assert isinstance(named, LoopAdapter)
        asked = template()
        with Cassette(named, path, mode="once") as cassette:
            MainLoop(cassette).execute(asked, "Hi")
    monkeypatch.delenv("GROQ_API_KEY")
    monkeypatch.setenv("CI", "true")
    loop = MainLoop(Cassette("groq:llama", path))
    assert loop.execute(asked, "Hi").text == "Done."


def test_settings_that_change_in_a_conversation_are_recorded_with_each_request(path: Path) -> None:
    asked, warm = template(), ModelSettings(temperature=1)
    with record(path, say("One."), say("Two.")) as cassette:
        talk = Chat(cassette, asked)
        talk.send("First.")
        talk.send("Second.", settings=warm)
    assert '"usage"' not in json.dumps(json.loads(path.read_text().splitlines()[2])["messages"])
    talk = Chat(play(path), asked)
    assert talk.send("First.").text == "One."
    with pytest.raises(CassetteMiss, match=r"settings \$\.temperature"):
        talk.send("Second.")
    talk = Chat(play(path), asked)
    talk.send("First.", settings=ModelSettings(timeout=5))  # which does not change an answer
    assert talk.send("Second.", settings=warm).text == "Two."


def test_limit_of_the_recorded_adapter_applies_when_only_its_name_is_given(path: Path) -> None:
    class Short(ScriptedAdapter):
        def limited(self, config: RunConfig) -> RunConfig:
            return super().limited(replace(config, max_result_chars=1_000))

    def long(city: str) -> str:
        return city * 5_000

    asked = template(tool=long)
    short = Short([call(("long", {"city": "x"})), say("Done.")])
    short.model = "m"
    with Cassette(short, path, mode="once") as cassette:
        MainLoop(cassette).execute(asked, "Hi")
    assert MainLoop(Cassette("openai:m", path, mode="none")).execute(asked, "Hi").text == "Done."


def test_volatile_key_without_a_section_is_named_with_the_nearest_key(path: Path) -> None:
    problem = "volatile='dat' is not the key of a section; did you mean 'date'?"
    with (
        pytest.raises(ValueError, match=re.escape(problem)),
        record(path, say("Done."), volatile=["dat"]) as cassette,
    ):
        MainLoop(cassette).execute(template(), "Hi")
    assert not path.exists()
    with record(path, say("Done.")) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    with pytest.raises(CassetteMiss, match=re.escape(problem)):
        MainLoop(play(path, volatile=["dat"])).execute(template(), "Hi")


def test_volatile_key_can_be_of_any_prompt_that_was_asked_even_of_a_closed_section(
    path: Path,
) -> None:
    child = MarkdownSection(title="Now", template="It is late.")
    closed = MarkdownSection(
        title="Clock",
        template="Clock.",
        summary="The time.",
        visibility=SectionVisibility.SUMMARY,
        children=[child],
    )
    other = PromptTemplate(ns="tests", key="other", sections=[closed])
    with record(path.with_name("one"), say("One."), volatile="date") as cassette:
        MainLoop(cassette).execute(template(), "Hi")
    keys = ["date", "clock", "clock.now", "now"]
    with record(path, say("One."), say("Two."), volatile=keys) as cassette:
        MainLoop(cassette).execute(template(), "Hi")
        MainLoop(cassette).execute(other, "Hi")
    assert MainLoop(play(path, volatile=keys)).execute(other, "Hi").text == "Two."


@pytest.mark.parametrize("model", ["openai:gpt-5.2", "groq:llama"])
def test_recording_without_a_key_names_the_cassette_and_its_mode(
    path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "GROQ_API_KEY", "CI"):
        monkeypatch.delenv(name, raising=False)
    modes: list[tuple[Mode, str]] = [("once", " does not exist and"), ("rewrite", "")]
    for mode, reason in modes:
        with pytest.raises((PromptEvaluationError, ValueError)) as caught:
            MainLoop(Cassette(model, path, mode=mode)).execute(template(), "Hi")
        assert "API_KEY" in str(caught.value)
        expected = f"the cassette {path}{reason} is recorded in the mode {mode!r}"
        assert expected in str(caught.value)
