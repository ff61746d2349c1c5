"""Charset names as found in mail, mapped to the codecs that may decode them.

Invariant: only names of this module's closed table reach Python's codec machinery. Python would import a module for any
name, remember every unknown one for ever (a leak a sender could feed), and offers codecs that are no charsets
(``unicode_escape``), that are quadratic (``punycode``) or that are no text (``zlib``).
"""

from __future__ import annotations

import re
from encodings.aliases import aliases
from typing import Final

_NOT_CHARSETS: Final = frozenset(
    {
        "base64_codec",
        "bz2_codec",
        "hex_codec",
        "idna",
        "mbcs",
        "oem",
        "palmos",
        "punycode",
        "quopri_codec",
        "raw_unicode_escape",
        "rot_13",
        "undefined",
        "unicode_escape",
        "unicode_internal",
        "uu_codec",
        "zlib_codec",
    }
)

# Labels that senders use for a superset of what the label means, or that Python does not know. The supersets follow
# what mail programs do: a strict decoder would put U+FFFD where every other client shows the character.
_MAIL_LABELS: Final[dict[str, str]] = {
    "ansi_x3_4_1968": "cp1252",
    "big5_hkscs": "big5hkscs",
    "cp_850": "cp850",
    "cseuckr": "cp949",
    "csgb2312": "gb18030",
    "csiso2022jp": "iso2022_jp",
    "csshiftjis": "cp932",
    "euc_cn": "gb18030",
    "euc_kr": "cp949",
    "euckr": "cp949",
    "gb2312": "gb18030",
    "gb_2312_80": "gb18030",
    "gbk": "gb18030",
    "iso_2022_jp": "iso2022_jp_ext",
    "iso2022_jp": "iso2022_jp_ext",
    "iso_8859_1": "cp1252",
    "iso8859_1": "cp1252",
    "iso88591": "cp1252",
    "iso_8859_8_e": "iso8859_8",
    "iso_8859_8_i": "iso8859_8",
    "iso_8859_9": "cp1254",
    "iso8859_9": "cp1254",
    "iso_8859_11": "cp874",
    "iso8859_11": "cp874",
    "ks_c_5601_1987": "cp949",
    "ksc5601": "cp949",
    "latin1": "cp1252",
    "latin_1": "cp1252",
    "ms_kanji": "cp932",
    "shift_jis": "cp932",
    "shiftjis": "cp932",
    "sjis": "cp932",
    "tis_620": "cp874",
    "unicode_1_1_utf_7": "utf_7",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
    "utf_8mb4": "utf_8",
    "windows_31j": "cp932",
    "windows_874": "cp874",
    "x_cp1250": "cp1250",
    "x_cp1251": "cp1251",
    "x_cp1252": "cp1252",
    "x_euc_jp": "euc_jp",
    "x_euc_kr": "cp949",
    "x_gbk": "gb18030",
    "x_mac_roman": "mac_roman",
    "x_mac_cyrillic": "mac_cyrillic",
    "x_sjis": "cp932",
    "x_unicode_2_0_utf_8": "utf_8",
    "x_windows_949": "cp949",
}

_ASCII_LABELS: Final = frozenset(
    {"ascii", "us_ascii", "646", "iso646_us", "us", "ansi", "default", "unknown_8bit", "x_unknown"}
)

ASCII: Final = ""
"""What :func:`codec_for` returns for "no charset in particular": the caller guesses if there are bytes above 127."""

# Python resolves these by module name alone: its alias table does not list them.
_WITHOUT_ALIAS: Final = ("cp720", "cp737", "cp856", "cp874", "cp875", "cp1006", "koi8_r", "koi8_t", "koi8_u")

_SEPARATORS: Final = re.compile(r"[-_. :]+")


def _build_table() -> dict[str, str]:
    usable = {alias: codec for alias, codec in aliases.items() if codec not in _NOT_CHARSETS}
    table = {codec: codec for codec in usable.values()} | usable
    table |= {_SEPARATORS.sub("_", name): codec for name, codec in table.items()}
    table |= {name: name for name in _WITHOUT_ALIAS}
    table |= _MAIL_LABELS
    table |= dict.fromkeys(_ASCII_LABELS, ASCII)
    return table


_TABLE: Final = _build_table()
_LONGEST_LABEL: Final = max(map(len, _TABLE)) + 8


def codec_for(label: str) -> str | None:
    """The codec for a charset label of a message.

    Returns :data:`ASCII` for labels that promise plain ASCII, and None for a label that is unknown, empty or no
    charset. Runs in time bounded by the longest known label.
    """
    if len(label) > _LONGEST_LABEL:
        return None
    codec = _TABLE.get(label)
    if codec is None:
        codec = _TABLE.get(_SEPARATORS.sub("_", label.strip(" \t\"'").lower()))
    return codec
