"""The plugin keeps its promises to authors, as checked by pytest's own outcomes and output."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from support.authors import PLUGIN, Author
from weakincentives import pytest_plugin

SOURCE = Path(__file__).parents[2] / "src"


def text(ran: pytest.RunResult) -> str:
    return "\n".join(ran.outlines)


# --------------------------------------------------------------------------------------------------
# fixtures


def test_agent_can_be_tested_with_and_without_dynamic_tools(author: Author) -> None:
    ran = author.runs("""
@pytest.mark.parametrize("dynamic_tools", [True, False])
def test_refund(scripted_adapter, wink_session, wink_events, dynamic_tools):
    adapter = scripted_adapter([open_refunds, pay, say("Done.")], dynamic_tools=dynamic_tools)
    done = MainLoop(adapter).execute(template.bind(), session=wink_session)
    assert (done.text, done.restarts) == ("Done.", 0 if dynamic_tools else 1)
    assert [event.name for event in wink_events[ToolInvoked]] == ["read_section", "refund"]
    assert len(wink_events[ToolInvoked].where(name="refund", success=True)) == 1
    assert bool(wink_events[VisibilityExpanded]) is not dynamic_tools
    assert len(adapter.requests) == 3 and "refund" in adapter.requests[1].tool_names

def test_each_test_has_its_own(wink_session, wink_events):
    assert len(wink_events) == 0 and not wink_session[ToolInvoked]
""")
    ran.assert_outcomes(passed=3)


def test_script_with_unused_replies_fails_the_test_and_lists_them(
    author: Author,
) -> None:
    ran = author.runs("""
def test_left(scripted_adapter, wink_session):
    scripted_adapter([say("one"), say("two"), pay]).evaluate(template.bind(), session=wink_session)

def test_other_failure(scripted_adapter):
    scripted_adapter([say("three")])
    assert 1 == 2
""")
    ran.assert_outcomes(failed=2)
    ran.stdout.fnmatch_lines(
        [
            "*the script has replies left after request 1*",
            "  AssistantMessage text='two'",
            "  AssistantMessage tool_calls=*refund*",
        ]
    )
    assert "three" not in text(ran).partition("1 == 2")[2], "what failed first is the matter"


def test_rerun_test_is_checked_against_its_new_script(author: Author) -> None:
    author.pytester.makeconftest("""
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    first = runtestprotocol(item, nextitem=nextitem, log=False)
    second = runtestprotocol(item, nextitem=nextitem, log=False)
    outcomes = [report.outcome for report in first + second]
    assert outcomes == ["passed", "failed", "passed", "failed", "passed"]
    return bool(runtestprotocol(item, nextitem=nextitem))
""")
    ran = author.runs("""
replies = [say("one"), say("two")]
begun = []

@pytest.fixture
def ready(scripted_adapter):
    begun.append(True)
    if len(begun) == 2:
        scripted_adapter([say("nobody asks")])
        raise OSError

def test_flaky(ready, scripted_adapter, wink_session):
    failing = len(replies) > 1
    scripted_adapter(tuple(replies)).evaluate(template.bind(), session=wink_session)
    replies.pop()
    assert not failing
""")
    ran.assert_outcomes(passed=1)


def test_exhausted_script_fails_the_test(author: Author) -> None:
    ran = author.runs("""
def test_short(scripted_adapter, wink_session):
    scripted_adapter([pay]).evaluate(template.bind(), session=wink_session)
""")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["*ScriptExhaustedError: *no reply for request 2; the model last read *'refund'*"]
    )


def test_function_adapter_computes_replies_from_the_request(author: Author) -> None:
    ran = author.runs("""
def test_function(function_adapter, wink_session):
    def decide(request):
        if "refund" not in request.tool_names:
            return open_refunds
        return pay if len(request.messages) < 6 else say("Done.")

    adapter = function_adapter(decide)
    assert adapter.evaluate(template.bind(), session=wink_session).text == "Done."
    assert adapter.evaluate(template.bind(), session=Session()).turns == 3

def test_unused(function_adapter):
    function_adapter(lambda request: say())
""")
    ran.assert_outcomes(passed=2)


def test_wink_events_records_adapter_sessions_and_watched_buses(
    author: Author,
) -> None:
    ran = author.runs("""
def test_events(scripted_adapter, wink_events):
    adapter = scripted_adapter([say("one"), say("two")])
    session = Session()
    assert adapter.evaluate(template.bind(), session=session).text == "one"
    bus = wink_events.watch(wink_events.watch(InProcessEventBus()))
    adapter.evaluate(template.bind().render(), session=Session(bus=bus))
    assert [event.text for event in wink_events[PromptExecuted]] == ["one", "two"]
""")
    ran.assert_outcomes(passed=1)


def test_failing_test_shows_the_name_difference_and_the_events(author: Author) -> None:
    ran = author.runs("""
def test_order(scripted_adapter, wink_session, wink_events):
    scripted_adapter([open_refunds, say("Done.")]).evaluate(template.bind(), session=wink_session)
    names = ["PromptRendered", "ProviderCalled", "ProviderCalled", "Refused", "PromptExecuted"]
    assert names == wink_events.names()
""")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "E*At index 2 diff: 'ProviderCalled' != 'ToolInvoked'",
            "*Captured events call*",
            "PromptRendered ns='shop' key='support'*",
            "ToolInvoked name='read_section' params=*",
            "ToolsInjected tool_names=('refund',) section_key='refunds'",
            "PromptExecuted*text='Done.' turns=2",
        ]
    )
    shown = (
        text(ran)
        .partition("Captured events call")[2]
        .partition("disclosure coverage")[0]
        .splitlines()[1:-1]
    )
    assert len(shown) == 6
    assert all(len(line) < 120 for line in shown)


def test_failing_setup_and_unittest_show_events_and_refused_hosts(author: Author) -> None:
    ran = author.runs(
        """
import unittest

@pytest.fixture
def broken(wink_session):
    wink_session.bus.publish("setting up")
    with pytest.raises(RuntimeError):
        socket.getaddrinfo("hidden.example.com", 443)
    raise ValueError

def test_setup(broken): pass

class TestOld(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def have(self, wink_session):
        self.bus = wink_session.bus

    def test_call(self):
        self.bus.publish("calling")
        socket.getaddrinfo("told.example.com", 443)
""",
        "-o",
        "wink_network=loopback",
    )
    ran.assert_outcomes(failed=1, errors=1)
    ran.stdout.fnmatch_lines(
        [
            "*Captured events setup*",
            "str 'setting up'",
            "*Captured refused hosts setup*",
            "hidden.example.com",
            "*Captured events call*",
            "str 'calling'",
            "*Captured refused hosts call*",
            "told.example.com",
        ],
    )


def test_events_of_a_test_are_released_after_it(author: Author) -> None:
    ran = author.runs("""
import gc, weakref

class Big: pass

sessions = []

@pytest.mark.parametrize("run", [1, 2])
def test_publish(wink_session, scripted_adapter, run):
    gc.collect()
    assert [session for session in sessions if session()] == []
    wink_session.bus.publish(Big())
    sessions.append(weakref.ref(wink_session))
    scripted_adapter([say()]).evaluate(template.bind(), session=wink_session)
""")
    ran.assert_outcomes(passed=2)


def test_passing_test_shows_no_events(author: Author) -> None:
    ran = author.runs("def test_session(wink_session): pass")
    ran.assert_outcomes(passed=1)
    assert "Captured" not in text(ran)


def test_every_fixture_marker_and_option_is_documented(author: Author) -> None:
    shown = text(author.runs("", "--fixtures"))
    for name in (
        "wink_session",
        "wink_events",
        "scripted_adapter",
        "function_adapter",
        "wink_overrides",
    ):
        assert f"\n{name} -- " in shown
        assert f"{name}: no docstring" not in shown.replace("\n    ", ": ")
    marked = text(author.runs("", "--markers"))
    assert "@pytest.mark.wink_live: uses" in marked
    assert '@pytest.mark.wink_overrides(tag="latest", root=None): the fixture' in marked
    helped = text(author.runs("", "--help"))
    for name in ("--wink-live", "wink_network (string)", "wink_coverage (bool)"):
        assert name in helped


# --------------------------------------------------------------------------------------------------
# overrides

OVERRIDES = """
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore

LocalPromptOverridesStore("stored").upsert(
    template.descriptor, SectionOverride(path=("task",), body="Be brief."), tag="brief"
)
"""


def test_marked_test_uses_the_overrides_of_its_tag(author: Author) -> None:
    ran = author.runs(f"""{OVERRIDES}
@pytest.mark.wink_overrides(tag="brief", root="stored")
def test_brief(wink_overrides):
    assert "Be brief." in wink_overrides(template).render().text
    assert "Be brief." in wink_overrides(template.bind()).render().text
    assert (wink_overrides.tag, wink_overrides.store.list()[0].tag) == ("brief", "brief")

def test_without(wink_overrides):
    assert "Be brief." not in wink_overrides(template).render().text
""")
    ran.assert_outcomes(passed=2)


def test_unknown_overrides_tag_fails_the_test_and_lists_the_tags(
    author: Author,
) -> None:
    ran = author.runs(f"""{OVERRIDES}
@pytest.mark.wink_overrides(tag="breif", root="stored")
def test_misspelt(wink_overrides):
    assert wink_overrides(template).render().text
""")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        ["*no overrides of shop/support are stored under tag 'breif' in '*'; stored tags: brief"]
    )


def test_stale_override_fails_the_test_with_its_location_and_a_remedy(author: Author) -> None:
    ran = author.runs(f"""{OVERRIDES}
from weakincentives import MarkdownSection, PromptTemplate

@pytest.mark.wink_overrides(tag="brief", root="stored")
def test_stale(wink_overrides):
    task = MarkdownSection(title="Task", template="New.")
    wink_overrides(PromptTemplate(ns="shop", key="support", sections=[task]))
""")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "E*overrides of shop/support, tag 'brief', in '*' are out of date; run `wink*",
            "E*body task: the code's text has changed",
        ]
    )


def test_wink_overrides_store_can_be_used_for_other_prompts(author: Author) -> None:
    ran = author.runs(f"""{OVERRIDES}
from weakincentives import MarkdownSection, Prompt, PromptTemplate

@pytest.mark.wink_overrides(tag="brief", root="stored")
def test_fresh(wink_overrides):
    store, tag = wink_overrides.store, wink_overrides.tag
    prompt = Prompt(template, overrides_store=store, overrides_tag=tag)
    assert "Be brief." in prompt.render().text

@pytest.mark.wink_overrides(tag="brief", root="stored")
def test_stale(wink_overrides, scripted_adapter, wink_session):
    task = MarkdownSection(title="Task", template="New.")
    new = PromptTemplate(ns="shop", key="support", sections=[task])
    prompt = Prompt(new, overrides_store=wink_overrides.store, overrides_tag=wink_overrides.tag)
    scripted_adapter([say()]).evaluate(prompt, session=wink_session)
""")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["E*AssertionError: overrides of shop/support* are out of date*"])


def test_marked_test_without_the_wink_overrides_fixture_fails(author: Author) -> None:
    ran = author.runs("""
@pytest.mark.wink_overrides
def test_forgotten():
    template.bind()
""")
    ran.assert_outcomes(failed=1)
    assert "marked wink_overrides, but it does not use the fixture of that name" in text(ran)


# --------------------------------------------------------------------------------------------------
# coverage

COVERED = """
@pytest.mark.parametrize("run", [1, 2, 3])
def test_open(scripted_adapter, run):
    scripted_adapter([open_refunds, say("Done.")]).evaluate(template.bind(), session=Session())

def test_closed(scripted_adapter):
    scripted_adapter([say("Done.")]).evaluate(template.bind(), session=Session())
"""
TABLE = """\
shop/support: 3 of 4 sections opened in 4 tests, 25 of 32 tokens
               tokens  tests
  task              8      4
  refunds          10      3
  refunds.food      7      3
  complaints        7      0  never opened
tests: how many showed that section in full; a token is estimated at 4 characters"""


def summary(ran: pytest.RunResult) -> str:
    below = text(ran).partition("disclosure coverage")[2].partition("\n")[2]
    return below.partition("\n=")[0]


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["one process", "workers"])
def test_coverage_summary_counts_the_tests_that_opened_each_section(
    author: Author, options: tuple[str, ...]
) -> None:
    ran = author.runs(COVERED, *options)
    ran.assert_outcomes(passed=4)
    assert summary(ran) == TABLE


def test_coverage_summary_can_be_disabled(author: Author) -> None:
    assert "disclosure coverage" not in text(author.runs(COVERED, "-o", "wink_coverage=false"))


def test_coverage_summary_is_omitted_if_no_test_evaluated_a_prompt(author: Author) -> None:
    ran = author.runs("def test_session(wink_session): template.bind().render()")
    ran.assert_outcomes(passed=1)
    assert "disclosure coverage" not in text(ran)


# --------------------------------------------------------------------------------------------------
# cost


def test_unused_plugin_does_not_import_adapters_or_evaluation(tmp_path: Path) -> None:
    (tmp_path / "test_empty.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "import sys\ndef pytest_unconfigure(): open('modules', 'w').write(' '.join(sys.modules))\n"
    )
    loaded: list[set[str]] = []
    for options in (PLUGIN, ()):
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        loaded.append(set((tmp_path / "modules").read_text().split()))
    ours = {name for name in loaded[0] - loaded[1] if name.startswith("weakincentives")}
    packages = {name.split(".")[1] for name in ours if "." in name}
    assert packages.isdisjoint({"adapters", "cli", "contrib", "evaluation", "runtime", "testing"})
    assert "weakincentives.pytest_plugin" in ours
    assert {"asyncio", "hypothesis", "pydantic", "syrupy"}.isdisjoint(loaded[0])


def test_plugin_is_registered_as_a_pytest_entry_point() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["pytest11"]["weakincentives"]) is pytest_plugin


def test_plugin_can_be_disabled(author: Author) -> None:
    author.pytester.makepyfile(test_shop="def test_session(wink_session): pass")
    ran = author.pytester.runpytest_inprocess("-p", "no:weakincentives", "-p", "no:cacheprovider")
    ran.assert_outcomes(errors=1)
