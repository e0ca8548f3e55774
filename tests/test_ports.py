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
