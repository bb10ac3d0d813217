"""Destinations that speak SFTP."""
