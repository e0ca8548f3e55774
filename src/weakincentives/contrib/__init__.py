"""Integrations that need an extra: AG-UI, durable runs, OpenTelemetry, MCP, prices and skills."""
