"""Webhooks: effects that are posted to web servers."""
