"""The common parts of all HTTP servers and clients of Holdfast."""
