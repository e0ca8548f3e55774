"""What builds on the library and on further packages, each an extra of its own: durable runs,
OpenTelemetry.
"""
