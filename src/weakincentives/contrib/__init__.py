"""Integrations, each with an extra: AG-UI, DBOS, Inspect, MCP, OpenTelemetry, prices, skills."""
