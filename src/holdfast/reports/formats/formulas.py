"""Text that a spreadsheet would compute.

For Excel, LibreOffice and others, a CSV cell that begins with one of a few characters is a formula, and a
formula can call programs and send data. Leading white space doesn't prevent it, and a program that strips
control or invisible characters uncovers a formula behind them.
"""

from __future__ import annotations

import polars as pl

PATTERN = (
    r"^[\s\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}']*[=+\-@\t\r\n\x00\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]"
)
"""Texts that are guarded, with full-width forms. Leading apostrophes count as well: some programs strip the
first."""

APOSTROPHE = "'"


_HARMLESS = (".", "="), ("A", "\x7f")
"""Ranges of texts that begin with a digit, a letter or one of a few marks. All matches of the pattern lie
outside."""


def may_be_formula(text: pl.Expr) -> pl.Expr:
    """Return an expression that is false for most texts: their beginning rules out a formula. It takes a
    fifth of the pattern's time."""
    harmless = [text.is_between(pl.lit(first), pl.lit(end), "left") for first, end in _HARMLESS]
    return ~pl.any_horizontal(*harmless, text == "")


def looks_like_formula(text: pl.Expr) -> pl.Expr:
    """Return an expression that is true for texts that a spreadsheet might compute."""
    return text.str.contains(PATTERN)


def guarded(text: pl.Expr) -> pl.Expr:
    """Return the text, with an apostrophe before it if it looks like a formula."""
    return pl.when(looks_like_formula(text)).then(pl.concat_str(pl.lit(APOSTROPHE), text)).otherwise(text)
