"""Traces and metrics, to a collector of OpenTelemetry."""
