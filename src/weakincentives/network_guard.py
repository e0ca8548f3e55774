"""Blocks a test's network access beyond this machine, with one audit hook for the process.

The hook sees everything that uses Python's sockets: connections, datagrams and name lookups.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

__all__ = ["NetworkRefusedError", "guard_network"]

# The blocked hosts of each running test; a pytest run within a test comes last. `None` means that
# the network is allowed. The list is never empty, because other threads read it.
_running: list[list[str] | None] = [None]


class NetworkRefusedError(RuntimeError):
    """A test tried to reach another machine."""


@contextmanager
def guard_network(*, refuse: bool) -> Generator[list[str]]:
    """Blocks other machines within the block, or allows the network; yields the blocked hosts."""
    if refuse:
        _add_hook()
    hosts: list[str] = []
    _running.append(hosts if refuse else None)
    try:
        yield hosts
    finally:
        _running.pop()


@cache
def _add_hook() -> None:
    sys.addaudithook(_refuse_others)


def _refuse_others(event: str, args: tuple[object, ...]) -> None:
    __tracebackhide__ = True  # pytest shows the client's line instead
    if not event.startswith("socket.") or (hosts := _running[-1]) is None:
        return
    host: object
    match event, args:
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (_, (to, *_))):
            host = to  # a Unix socket's path is not a tuple
        case (("socket.getaddrinfo" | "socket.gethostbyname"), (to, *_)):
            host = to
        case _:
            return
    if isinstance(host, bytes | bytearray):
        host = host.decode(errors="replace")
    if isinstance(host, str) and not _is_this_machine(host):
        hosts.append(host)
        raise NetworkRefusedError(
            f"tests can connect only to this machine, got host {host!r}; mark the test "
            "@pytest.mark.wink_live and run pytest with --wink-live, or set wink_network = "
            '"any" in pytest\'s configuration'
        )


def _is_this_machine(host: str) -> bool:
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
