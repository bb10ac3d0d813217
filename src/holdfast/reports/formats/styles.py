"""The styles of a workbook (ECMA-376 part 1, 18.8)."""

from __future__ import annotations

from html import escape

_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_FIRST_OWN = 164
"""The first number of a format that isn't Excel's own."""


class Styles:
    """Cell styles, numbered at their first use: 0 is plain, 1 that of headers."""

    def __init__(self) -> None:
        self._formats: list[str] = []
        self._styles = ['<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>']
        self.header = self._add(
            '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>'
        )

    def number(self, code: str) -> int:
        """Return the style of a number format; 0 for an empty one."""
        if not code:
            return 0
        if code not in self._formats:
            self._formats.append(code)
        number = _FIRST_OWN + self._formats.index(code)
        return self._add(
            f'<xf numFmtId="{number}" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>'
        )

    def quoted(self) -> int:
        """Return the style of text that stays text when a user edits it."""
        return self._add('<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0" quotePrefix="1"/>')

    def _add(self, style: str) -> int:
        if style not in self._styles:
            self._styles.append(style)
        return self._styles.index(style)

    def xml(self) -> bytes:
        formats = "".join(
            f'<numFmt numFmtId="{_FIRST_OWN + at}" formatCode="{escape(code)}"/>'
            for at, code in enumerate(self._formats)
        )
        numbers = f'<numFmts count="{len(self._formats)}">{formats}</numFmts>' if formats else ""
        font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
        return (
            '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
            f'<styleSheet xmlns="{_NAMESPACE}">{numbers}'
            f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
            '<fills count="2"><fill><patternFill patternType="none"/></fill>'
            '<fill><patternFill patternType="gray125"/></fill></fills>'
            '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
            '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
            f'<cellXfs count="{len(self._styles)}">{"".join(self._styles)}</cellXfs>'
            '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
            "</styleSheet>"
        ).encode()
