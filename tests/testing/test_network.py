"""Tests that use the plugin can reach only this machine, whatever client they use; other projects'
tests are not affected.
"""

import socket
from contextlib import suppress

import pytest

from support.authors import Author
from weakincentives.network_guard import guard_network
from weakincentives.testing import NetworkRefusedError

# The address is reserved (RFC 5737), and connecting a datagram socket sends nothing.
REACH = """
def reach(host="192.0.2.1"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, 9))
        except OSError:
            pass  # this machine may have no network at all
"""


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        b"example.org",
        "192.0.2.1",
        "2001:db8::1",
        "::ffff:192.0.2.1",
        "localhost.example.com",
    ],
)
def test_external_host_is_rejected_before_the_lookup(host: str | bytes) -> None:
    with guard_network(refuse=True) as hosts, pytest.raises(NetworkRefusedError) as caught:
        socket.getaddrinfo(host, 443)
    name = host.decode() if isinstance(host, bytes) else host
    assert f"only to this machine, got host {name!r}" in str(caught.value)
    assert "wink_live" in str(caught.value)
    assert hosts == [name]


def test_sockets_of_every_kind_are_rejected_before_sending() -> None:
    with (
        guard_network(refuse=True) as hosts,
        socket.socket() as stream,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        for send in (
            lambda: stream.connect(("192.0.2.1", 80)),
            lambda: stream.connect_ex(("192.0.2.2", 80)),
            lambda: datagrams.connect((b"192.0.2.5", 80)),
            lambda: datagrams.sendto(b"?", ("192.0.2.3", 53)),
            lambda: datagrams.sendmsg([b"?"], [], 0, ("192.0.2.4", 53)),
            lambda: socket.gethostbyname("example.com"),
        ):
            with pytest.raises(NetworkRefusedError):
                send()
    assert hosts == ["192.0.2.1", "192.0.2.2", "192.0.2.5", "192.0.2.3", "192.0.2.4", "example.com"]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "::", None],
)
def test_local_addresses_are_allowed(host: str | None) -> None:
    with guard_network(refuse=True) as hosts:
        assert socket.getaddrinfo(host, 80, proto=socket.IPPROTO_TCP)
    assert hosts == []


def test_own_hostname_can_be_looked_up() -> None:
    """smtplib does this for every connection."""
    # some machines' names have no address
    with guard_network(refuse=True) as hosts, suppress(socket.gaierror):
        socket.gethostbyname(socket.gethostname())
    assert hosts == []


def test_local_sockets_can_connect() -> None:
    with guard_network(refuse=True) as hosts, socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        left, right = socket.socketpair()  # uses AF_UNIX where it exists
        left.close()
        right.close()
    assert hosts == []


def test_unix_socket_can_connect(author: Author) -> None:
    """Uses a folder with a short name, because such a path is limited to about 100 characters."""
    ran = author.runs("""
def test_unix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("here")
        server.listen()
        client.connect("here")
""")
    ran.assert_outcomes(passed=1)


LOOPBACK = ("-o", "wink_network=loopback")


def test_without_plugin_fixtures_may_use_the_network(author: Author) -> None:
    ran = author.runs(f"""{REACH}
@pytest.fixture(scope="session", autouse=True)
def container():
    reach()

@pytest.fixture
def database(scripted_adapter):
    reach()

def test_plain():
    reach()

def test_container_of_an_agent(database, scripted_adapter):
    assert scripted_adapter([]).requests == []
""")
    ran.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    "fixture",
    [
        "scripted_adapter",
        "function_adapter",
        "wink_session",
        "wink_events",
        "wink_overrides",
        "prompt_snapshot",
        "indirect",
    ],
)
def test_with_a_plugin_fixture_cannot_use_the_network(author: Author, fixture: str) -> None:
    ran = author.runs(
        f"""{REACH}
@pytest.fixture
def indirect(wink_session):
    return wink_session

def test_agent({fixture}):
    reach()

@pytest.mark.wink_live
def test_live({fixture}):
    reach()
""",
        "--wink-live",
    )
    ran.assert_outcomes(failed=1, passed=1)
    ran.stdout.fnmatch_lines(["*Captured refused hosts call*", "192.0.2.1"])


def test_unknown_wink_network_value_is_rejected_with_the_valid_values(author: Author) -> None:
    ran = author.runs("def test_plain(): pass", "-o", "wink_network=true")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["*wink_network must be 'fixtures', 'loopback' or 'any', got 'true'*"])


def test_network_refused_error_is_reported_even_if_a_client_hides_it(
    author: Author,
) -> None:
    ran = author.runs(
        """
def test_plain():
    socket.create_connection(("api.example.com", 443))

def test_async():
    asyncio.run(asyncio.open_connection("api.example.com", 443))

def test_hidden():
    try:
        socket.create_connection(("hidden.example.com", 443))
    except Exception:
        raise ValueError("Connection error.") from None
""",
        *LOOPBACK,
    )
    ran.assert_outcomes(failed=3)
    shown = "\n".join(ran.outlines)
    assert shown.count("NetworkRefusedError: tests can connect only to this machine, got host") >= 2
    assert "mark the test @pytest.mark.wink_live and run pytest with --wink-live" in shown
    assert "Captured refused hosts call" in shown.partition("Connection error.")[2]
    assert "\nhidden.example.com\n" in shown.partition("Connection error.")[2]


LIVE = f"""{REACH}
@pytest.mark.wink_live
def test_live():
    reach()

def test_other():
    reach()
"""


def test_live_test_is_skipped_by_default_and_only_it_may_use_the_network(
    author: Author,
) -> None:
    ran = author.runs(LIVE, "-rs", *LOOPBACK)
    ran.assert_outcomes(skipped=1, failed=1)
    ran.stdout.fnmatch_lines(["*reaches a real provider; run it with --wink-live*"])
    author.runs(LIVE, "--wink-live", *LOOPBACK).assert_outcomes(passed=1, failed=1)


def test_wink_network_any_allows_the_network_for_tests_with_fixtures(author: Author) -> None:
    tests = f"{REACH}\ndef test_agent(scripted_adapter):\n    reach()\n"
    author.runs(tests, "-o", "wink_network=any").assert_outcomes(passed=1)
    author.runs(tests).assert_outcomes(failed=1)


def test_pytest_socket_marks_are_respected(author: Author) -> None:
    ran = author.runs(
        f"""{REACH}
@pytest.mark.enable_socket
def test_enabled():
    reach()

@pytest.mark.allow_hosts(["192.0.2.1"])
def test_allowed():
    reach()
""",
        "-o",
        "markers=enable_socket\nallow_hosts",
        *LOOPBACK,
    )
    ran.assert_outcomes(passed=2)
