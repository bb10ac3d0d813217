"""Registered by packages: services and targets by the schemes of URLs, commands, products."""
