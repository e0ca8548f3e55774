"""The pytest plugin: fixtures, markers, the network guard, and disclosure coverage.

pytest loads this module in every run if the library is installed in the environment. The module is
therefore outside `testing`, and imports from that package only when a test needs it.
"""

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from .errors import missing_extra
from .network_guard import guard_network

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion

    from .evals.marked_tests import CaseEvaluation, MarkedTest
    from .runtime.session import Session
    from .testing.fixtures import Cassettes, PromptsWithOverrides, ScriptedAdapters
    from .testing.recorded_events import RecordedEvents

_LIVE_MARKER = (
    "wink_live: uses a real provider; runs, and may use the network, only with --wink-live"
)
_OVERRIDES_MARKER = (
    'wink_overrides(tag="latest", root=None): the fixture wink_overrides applies the overrides '
    "stored under this tag, in the repository at root, by default pytest's rootdir; "
    "fails if one of them is stale or none is stored"
)
_EVAL_MARKER = (
    "wink_eval(cases, repeats=1, share=None, fail_under=None, margin=None): runs the test for each "
    "case of a dataset, with the fixture evaluation; see EvalRule in weakincentives.evals"
)
_FIXTURES = frozenset(
    {
        "cassette",
        "evaluation",
        "function_adapter",
        "prompt_snapshot",
        "scripted_adapter",
        "wink_events",
        "wink_overrides",
        "wink_session",
    }
)
_NETWORKS = ("fixtures", "loopback", "any")

_EVENTS = pytest.StashKey["RecordedEvents"]()
_REFUSED = pytest.StashKey[list[str]]()
_COUNTS = pytest.StashKey[dict[str, dict[str, list[int]]]]()
_SCRIPTS = pytest.StashKey["ScriptedAdapters"]()
_PASSED = pytest.StashKey[bool]()
_UNPLAYED = pytest.StashKey[list[str]]()
_EVALUATION = pytest.StashKey["CaseEvaluation"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weakincentives")
    group.addoption(
        "--wink-live",
        action="store_true",
        help="run tests marked wink_live, which reach real providers",
    )
    group.addoption(
        "--cassette",
        choices=("once", "none", "rewrite"),
        help="record cassettes that do not exist (once), none, or all again (rewrite); "
        "default: once, or none if the variable CI is set",
    )
    network = (
        "tests that may not reach other machines: those that use a fixture of weakincentives "
        "(fixtures, the default), all (loopback), or none (any)"
    )
    parser.addini("wink_network", network, type="string", default="fixtures")
    parser.addini(
        "wink_coverage", "report which sections tests have opened", type="bool", default=True
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (_LIVE_MARKER, _OVERRIDES_MARKER, _EVAL_MARKER):
        config.addinivalue_line("markers", marker)
    network = config.getini("wink_network")
    if network not in _NETWORKS:
        raise pytest.UsageError(
            f"wink_network must be 'fixtures', 'loopback' or 'any', got {network!r}"
        )
    config.stash[_COUNTS] = {}
    config.stash[_UNPLAYED] = []
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Evals())


@pytest.hookimpl(tryfirst=True)  # so that the case's id is the first one
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of each case of a marked test, which also says how many cases there are."""
    marker = metafunc.definition.get_closest_marker("wink_eval")
    if marker is None or "evaluation" not in metafunc.fixturenames:
        return
    from .evals.marked_tests import CaseEvaluation, EvalRule

    rule = EvalRule(*marker.args, **marker.kwargs)
    values = [CaseEvaluation(rule, index) for index in range(len(rule.cases))]
    ids = [case.id for case in rule.cases]
    metafunc.parametrize("evaluation", values, indirect=True, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("wink_live") and not config.getoption("--wink-live"):
            item.add_marker(
                pytest.mark.skip(reason="reaches a real provider; run it with --wink-live")
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guards the entire test, including fixtures, if the project chose "loopback"."""
    refuse = item.config.getini("wink_network") == "loopback" and not _may_use_network(item)
    with guard_network(refuse=refuse) as item.stash[_REFUSED]:
        return (yield)


def _is_confined(item: pytest.Item) -> bool:
    """Returns whether the test function itself, unlike its fixtures, may not use the network.

    The guard does not apply to fixtures. A fixture with a wider scope, such as a container, is
    shared by tests with and without our fixtures; whether it can start must not depend on which
    test runs first.
    """
    uses_ours = not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    return (
        uses_ours
        and item.config.getini("wink_network") == "fixtures"
        and not _may_use_network(item)
    )


def _records(config: pytest.Config) -> bool:
    default = "none" if os.environ.get("CI") else "once"
    return (config.getoption("--cassette") or default) != "none"


def _may_use_network(item: pytest.Item) -> bool:
    """Returns whether marks or options, including those of pytest-socket, allow the network."""
    marker, option = item.get_closest_marker, item.config.getoption
    return bool(
        (marker("wink_live") and option("--wink-live"))
        or (
            marker("enable_socket")
            or marker("allow_hosts")
            or "socket_enabled" in getattr(item, "fixturenames", ())
        )
        or ("cassette" in getattr(item, "fixturenames", ()) and _records(item.config))
        or (option("force_enable_socket", default=False) or option("allow_hosts", default=None))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Guards a test that uses our fixtures; fails the test for a useless mark or unused replies."""
    fixtures = getattr(item, "fixturenames", ())
    if item.get_closest_marker("wink_overrides") and "wink_overrides" not in fixtures:
        pytest.fail(
            "marked wink_overrides, but it does not use the fixture of that name; "
            "create its prompts with the fixture",
            pytrace=False,
        )
    if item.get_closest_marker("wink_eval") and "evaluation" not in fixtures:
        pytest.fail(
            "marked wink_eval, but it does not use the fixture evaluation; run its cases with it",
            pytrace=False,
        )
    if _is_confined(item):
        with guard_network(refuse=True) as item.stash[_REFUSED]:
            result = yield
    else:
        result = yield
    if (evaluation := item.stash.get(_EVALUATION, None)) and evaluation.experiment is None:
        pytest.fail(
            "the test evaluated nothing: call evaluation.evaluate(…), or await "
            "evaluation.evaluate_async(…) in an async test that a plugin such as anyio runs",
            pytrace=False,
        )
    if _SCRIPTS in item.stash and (left := item.stash[_SCRIPTS].remaining_replies()):
        pytest.fail(left, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the events, and the blocked hosts, which clients may hide, to a failure's report."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
        if evaluation := item.stash.get(_EVALUATION, None):
            test = _experiment_name(item)
            # pytest-xdist sends all attributes of a report to the process with the terminal
            vars(report)["wink_eval"] = evaluation.as_report(test)
    if report.failed:
        if events := item.stash.get(_EVENTS, None):
            from .testing.recorded_events import event_line

            report.sections.append(
                (f"Captured events {report.when}", "\n".join(map(event_line, events[-50:])))
            )
        if hosts := item.stash.get(_REFUSED, None):
            report.sections.append(
                (f"Captured refused hosts {report.when}", "\n".join(dict.fromkeys(hosts)))
            )
    return report


def _experiment_name(item: pytest.Item) -> str:
    """Returns the name of a marked test with the ids of its parameters other than the case."""
    name = item.nodeid.removesuffix(item.name) + getattr(item, "originalname", item.name)
    callspec: Any = getattr(item, "callspec", None)  # Any: private in pytest
    others = [] if callspec is None else callspec._idlist[1:]  # noqa: SLF001
    return f"{name}[{'-'.join(others)}]" if others else name


@pytest.hookimpl(optionalhook=True)
# Any: pytest-xdist, which provides the worker, may not be installed
def pytest_testnodedown(node: Any) -> None:
    """Adds a worker's counts."""
    if counted := getattr(node, "workeroutput", {}).get("wink_coverage"):
        _count(node.config, counted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    getattr(session.config, "workeroutput", {})["wink_coverage"] = session.config.stash[_COUNTS]


class _Evals:
    """Collects the cases that marked tests evaluate, also in workers, and checks their gates."""

    def __init__(self) -> None:
        self.tests: dict[str, MarkedTest] = {}
        self.lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (sent := getattr(report, "wink_eval", None)) is not None:
            from .evals.marked_tests import MarkedTest

            name, index, *facts, text = sent
            self.tests.setdefault(name, MarkedTest(name, *facts)).ran[index] = text

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for test in self.tests.values():
            lines, holds = test.report()
            self.lines += lines
            if not holds and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.write_sep("=", "evals")
        for line in self.lines:
            terminalreporter.write_line(line)


def _count(config: pytest.Config, counted: dict[str, dict[str, list[int]]]) -> None:
    from .testing.disclosure_coverage import add_counts

    add_counts(config.stash[_COUNTS], counted)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if unplayed := config.stash[_UNPLAYED]:
        terminalreporter.write_sep("=", "cassettes with answers that no test used")
        for line in unplayed:
            terminalreporter.write_line(line)
    if counts := config.stash[_COUNTS]:
        from .testing.disclosure_coverage import report

        terminalreporter.write_sep("=", "disclosure coverage")
        for line in report(counts):
            terminalreporter.write_line(line)


@pytest.fixture
def wink_events(request: pytest.FixtureRequest) -> Generator["RecordedEvents"]:
    """All events of the test in order, for example `wink_events[ToolInvoked]` or `.names()`.

    The events come from `wink_session`, from every session in which adapters created by
    `scripted_adapter`, `function_adapter` and `cassette` evaluate, and from every bus passed to
    `watch`.
    """
    from .testing.recorded_events import RecordedEvents

    request.node.stash[_EVENTS] = events = RecordedEvents()
    yield events
    del request.node.stash[_EVENTS]  # items are kept until pytest ends
    events.stop()
    if request.config.getini("wink_coverage") and events:
        from .testing.disclosure_coverage import count_sections

        _count(request.config, count_sections(events))


@pytest.fixture
def wink_session(wink_events: "RecordedEvents") -> "Session":
    """A new session, whose events `wink_events` records."""
    from .runtime.session import Session

    session = Session()
    wink_events.watch(session.bus)
    return session


@pytest.fixture
def scripted_adapter(
    request: pytest.FixtureRequest, wink_events: "RecordedEvents"
) -> Generator["ScriptedAdapters"]:
    """Creates adapters with a scripted model: `scripted_adapter([say("Found.")])`.

    The test fails if the number of requests differs from the number of replies. The adapter's
    `requests` contain the messages that the model received. With `dynamic_tools=False`, newly
    opened tools are added by a restart.
    """
    from .testing.fixtures import ScriptedAdapters

    request.node.stash[_SCRIPTS] = adapters = ScriptedAdapters(wink_events)
    yield adapters
    del request.node.stash[_SCRIPTS]


@pytest.fixture
def cassette(
    request: pytest.FixtureRequest, wink_events: "RecordedEvents"
) -> Generator["Cassettes"]:
    """Creates adapters that record a model and later play it: `cassette("openai:gpt-5.2")`.

    The file is `cassettes/MODULE/TEST.jsonl` next to the test, unless you pass a path. It is
    written if the test passes. The arguments are the same as for `Cassette`.
    """
    from .testing.fixtures import Cassettes

    folder = request.path.parent / "cassettes" / request.path.stem
    mode = request.config.getoption("--cassette")
    cassettes = Cassettes(wink_events, folder, request.node.name, mode)
    yield cassettes
    left = cassettes.end(passed=request.node.stash.get(_PASSED, False))
    request.config.stash[_UNPLAYED] += left


@pytest.fixture
def function_adapter(scripted_adapter: "ScriptedAdapters") -> "ScriptedAdapters":
    """Creates adapters whose replies a function returns: `function_adapter(lambda request: …)`."""
    return scripted_adapter


@pytest.fixture
def wink_overrides(request: pytest.FixtureRequest) -> "PromptsWithOverrides":
    """Creates prompts with the stored overrides that the marker names: `wink_overrides(template)`.

    Fails if an override is stale, or if the marker is set but no override is stored. Pass its
    `store` and `tag` to prompts that are created elsewhere.
    """
    from .testing.fixtures import PromptsWithOverrides

    marker = request.node.get_closest_marker("wink_overrides")

    def wink_overrides(tag: str = "latest", root: str | None = None) -> PromptsWithOverrides:
        return PromptsWithOverrides(
            request.config.rootpath / (root or ""), tag, needed=marker is not None
        )

    # the inner function has the marker's name, which appears in errors
    return wink_overrides(*marker.args, **marker.kwargs) if marker else wink_overrides()


@pytest.fixture
def evaluation(request: pytest.FixtureRequest) -> "Generator[CaseEvaluation]":
    """Runs a case of a test marked `wink_eval`: `evaluation.evaluate(template, model=…)`.

    The arguments are those of `weakincentives.evals.evaluate`, except the dataset and the repeats,
    which the marker has. All cases of the test are one experiment, which pytest reports at the end.
    """
    if not hasattr(request, "param"):
        pytest.fail("mark the test with wink_eval(cases) to use evaluation", pytrace=False)
    request.node.stash[_EVALUATION] = request.param
    yield request.param
    del request.node.stash[_EVALUATION]


@pytest.fixture
def prompt_snapshot(request: pytest.FixtureRequest) -> "SnapshotAssertion":
    """Compares all states of a prompt with a snapshot file: `assert prompt == prompt_snapshot`.

    `--snapshot-update` writes the file; a failing test names the section, tool or state that
    changed.
    """
    try:
        from .testing.prompt_snapshots import PromptExtension
    except ImportError as error:
        raise missing_extra("prompt_snapshot", "syrupy", "testing") from error

    snapshot: SnapshotAssertion = request.getfixturevalue("snapshot")
    return snapshot.use_extension(PromptExtension)
