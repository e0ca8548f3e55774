"""Bridges to further packages, each an extra of its own: durable runs and OpenTelemetry."""
