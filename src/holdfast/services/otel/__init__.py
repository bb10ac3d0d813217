"""Traces, to a collector of OpenTelemetry."""
