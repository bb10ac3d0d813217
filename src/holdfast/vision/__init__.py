"""Batteries for video: render, ingest, detect, track, score and show. Needs the extra ``vision``."""
