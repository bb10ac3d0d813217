"""The ports of reports: services that open destinations, and the sinks that they return."""
