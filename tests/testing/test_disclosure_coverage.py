"""A section is covered if the model could read it in full, at first or after opening a section."""

from weakincentives import MarkdownSection, Prompt, SectionVisibility
from weakincentives.runtime.session import Session
from weakincentives.testing import RecordedEvents, ScriptedAdapter, call, say
from weakincentives.testing.disclosure_coverage import Counts, add_counts, count_sections


def shown(*keys: str) -> Counts:
    """Returns the counts of an evaluation in which the model reads these sections."""
    inner = [
        MarkdownSection(title="Open", key="open", template="Open."),
        MarkdownSection(
            title="Shut",
            key="shut",
            template="Shut.",
            summary="s",
            visibility=SectionVisibility.SUMMARY,
        ),
    ]
    outer = MarkdownSection(
        title="Guide",
        key="guide",
        template="Guide.",
        summary="g",
        visibility=SectionVisibility.SUMMARY,
        children=inner,
    )
    off = MarkdownSection(title="Off", key="off", template="Off.", enabled=False)
    prompt = Prompt[None](ns="n", key="k", sections=[outer, off])
    session, events = Session(), RecordedEvents()
    events.watch(session.bus)
    replies = [call(("read_section", {"section_key": key})) for key in keys]
    ScriptedAdapter([*replies, say()]).evaluate(prompt, session=session)
    return count_sections(events)


def test_reading_a_section_counts_it_and_its_visible_subsections() -> None:
    sizes = {"": 0, "guide": 19, "guide.open": 20, "guide.shut": 20, "off": 0}
    rows = shown()["n/k"]
    assert {path: row[0] for path, row in rows.items()} == sizes
    assert [path for path, (_, tests) in rows.items() if tests] == [""]
    opened = shown("guide", "off", "nothing")["n/k"]
    assert [path for path, (_, tests) in opened.items() if tests] == ["", "guide", "guide.open"]


def test_add_counts_sums_the_tests_of_each_section() -> None:
    total: Counts = {}
    for keys in ((), ("guide",), ("guide.shut",)):
        add_counts(total, shown(*keys))
    assert total["n/k"][""] == [0, 3]
    assert total["n/k"]["guide"] == [19, 1]
    assert total["n/k"]["guide.shut"] == [20, 1]
