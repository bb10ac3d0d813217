"""What all HTTP servers and clients of Holdfast share."""
