"""Brings what a stopped cluster has from one set of services to another."""
