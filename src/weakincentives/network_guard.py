"""Refuses what a test sends beyond this machine: one audit hook a process, which holds while a test
runs.

It sees whatever goes through Python's sockets: connections, datagrams and look-ups of names.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

__all__ = ["NetworkRefusedError", "tried"]

# What each run's test has tried, a run within a test last; None where anybody may. Never empty:
# other threads read it.
_running: list[list[str] | None] = [None]


class NetworkRefusedError(RuntimeError):
    """A test tried to reach another machine."""


@contextmanager
def tried(*, refused: bool) -> Generator[list[str]]:
    """The hosts that are tried meanwhile and refused."""
    if refused:
        _listen()
    hosts: list[str] = []
    _running.append(hosts if refused else None)
    try:
        yield hosts
    finally:
        _running.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_judge)


def _judge(event: str, args: tuple[object, ...]) -> None:
    __tracebackhide__ = True  # pytest shows the line of the client
    if not event.startswith("socket.") or (hosts := _running[-1]) is None:
        return
    host: object
    match event, args:
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (_, (to, *_))):
            host = to  # a Unix socket's path is no tuple
        case (("socket.getaddrinfo" | "socket.gethostbyname"), (to, *_)):
            host = to
        case _:
            return
    if isinstance(host, bytes | bytearray):
        host = host.decode(errors="replace")
    if isinstance(host, str) and not _is_here(host):
        hosts.append(host)
        raise NetworkRefusedError(
            f"a test tried to reach {host!r}, but may reach this machine only; mark it @pytest.mark.wink_live and "
            'run pytest with --wink-live, or set wink_network = "any" in pytest\'s configuration'
        )


def _is_here(host: str) -> bool:
    from ipaddress import ip_address
    from socket import gethostname

    if host in {"", gethostname()} or host.lower().rstrip(".").rpartition(".")[2] == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
