"""Destinations on web servers, by HTTP PUT."""
