"""The agents compared in docs/coming-from.md are as long as it says, and ours run."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.testing import ScriptedAdapter, call, say

DOCS = Path(__file__).parent.parent / "docs"
PORTS = DOCS / "ports"
PAGE = (DOCS / "coming-from.md").read_text()
COUNTS = re.findall(r"\[(\d+)\]\(ports/(\w+\.py)\)", PAGE)


def open_section(key: str) -> AssistantMessage:
    return call(("read_section", {"section_key": key}))


def change_seat(seat: str) -> AssistantMessage:
    return call(("change_seat", {"seat": seat}))


def refund(order: str) -> AssistantMessage:
    return call(("refund", {"order": order}))


def test_page_states_the_line_count_of_every_port() -> None:
    lines = {
        path.name: sum(bool(line.strip()) for line in path.read_text().splitlines())
        for path in PORTS.glob("*.py")
    }
    assert {name: int(count) for count, name in COUNTS} == lines


def test_no_port_is_more_than_three_lines_longer_and_the_page_shows_the_short_ones() -> None:
    pairs = [
        (there, here)
        for there in COUNTS
        for here in COUNTS
        if there[1].startswith(here[1].replace(".py", "_"))
    ]
    assert len(pairs) == 8
    for (there, theirs), (here, ours) in pairs:
        assert int(here) <= int(there) + 3, ours
        if int(here) < 20:
            assert (PORTS / ours).read_text() in PAGE
            assert (PORTS / theirs).read_text() in PAGE


@pytest.mark.parametrize(
    ("name", "script", "last"),
    [
        (
            "shop",
            [refund("A-8"), refund("A-7"), say('{"text": "Sorry.", "paid": true}'),
             say('{"text": "Bye!", "paid": false}')],
            "Answer(text='Bye!', paid=False) (Refund(order='A-7'),)",
        ),
        (
            "desk",
            [open_section("luggage"), say("23 kg."), open_section("seats"), change_seat("12A"),
             say("12C?"), change_seat("12C"), say("Done.")],
            "Booking(code='K7Q2PX', seat='12C')",
        ),
        ("refund", [refund("A-7"), say("It is paid.")], "It is paid. (Refund(order='A-7'),)"),
        ("hello", [say("From C.")], "From C."),
        ("haiku", [say("A haiku.")], "A haiku."),
        ("weather", [call(("get_weather", {"city": "Paris"})), say("Sunny.")], "Sunny."),
        ("dice", [say('{"value": 0.028}')], "0.028"),
    ],
)  # fmt: skip
def test_each_weakincentives_port_runs(
    name: str, script: list[AssistantMessage], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (PORTS / f"{name}.py").read_text()
    assert source.count('"openai:gpt-5.2"') == 1
    module = ModuleType(f"port_{name}")
    adapter = ScriptedAdapter(script)
    vars(module)["scripted"] = adapter
    code = source.replace('"openai:gpt-5.2"', "scripted")
    exec(compile(code, name, "exec"), vars(module))  # noqa: S102 - our own page
    assert capsys.readouterr().out.splitlines()[-1].endswith(last)
    assert len(adapter.requests) == len(script)
