"""Destinations that speak FTP, plain or over TLS."""
