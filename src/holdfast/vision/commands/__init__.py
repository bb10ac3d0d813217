"""Commands that bring frames in."""
