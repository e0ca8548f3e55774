"""Re-exports the protocols of a session, which `weakincentives.protocols` defines."""

from ...protocols import SessionProtocol, SliceAccessor, SliceView, StateView

__all__ = ["SessionProtocol", "SliceAccessor", "SliceView", "StateView"]
