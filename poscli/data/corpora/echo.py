"""`echo[:CORPUS(low=64, high=4096)]`: the documents of a corpus, by default `code`, with passages of them repeated.

    echo        echo:stdlib        echo:code(low=64, high=1024)

After every own passage of a document comes a copy of an earlier one, so that about half of all bytes are copies. Both
are 48 to 192 bytes long, shortened to the end of a line or a word. How far back a copy begins is drawn log-uniformly
between `low` and `high` bytes, and then moved to the beginning of a line or a word, by 32 bytes at most; while a
document is shorter than `high`, its length is the largest distance.

What comes next is decided by a hash of the text so far. A document therefore tells by itself where its copies lie.
"""

from __future__ import annotations

import hashlib
import re

from poscli.data.corpora import CORPORA, Kind, derived_source, of_each
from poscli.data.source import Source
from poscli.system.errors import UsageError

LOW, HIGH = 64, 4096  # bytes
SMALLEST_LOW = 16
SHORTEST, LONGEST = 48, 192  # bytes of a passage
LOOK_BACK = 64  # bytes in whose second half a copy begins
HASHED = 256  # bytes before a place that decide what comes there
VERSION = 1  # raise it when the documents change
GRAMMAR = f"echo[:CORPUS(low={LOW}, high={HIGH})]"
_FORM = re.compile(r"(.*?)(?:\(([^()]*=[^()]*)\))?")  # a corpus and its options, which are those of echo or of `bayes:`
_OPTION = re.compile(r" *(low|high) *= *(\d+) *")
_BARE = re.compile(r"(?:.*:)?bayes:[^(]*")  # a text whose own options would stand where those of echo stand


def source(argument: str = "") -> Source:
    """The corpus `echo[:CORPUS(low=64, high=4096)]`."""
    match = _FORM.fullmatch(argument)
    assert match  # the form of any text in one line
    corpus, inside = match.groups(default="")
    chosen = [_OPTION.fullmatch(part) for part in inside.split(",")] if inside else []
    if inside and _BARE.fullmatch(corpus):
        if all(chosen):
            raise UsageError(
                f"echo:{argument}: low and high may be those of {corpus} or of echo; write "
                f"echo:{corpus}()({inside}) or echo:{corpus}({inside})(low={LOW}, high={HIGH})"
            )
        corpus, chosen = argument, []
    if not all(chosen):
        raise UsageError(f"echo:{argument}: echo has the options low and high, in bytes; write {GRAMMAR}")
    given = {option[1]: int(option[2]) for option in chosen if option}
    low, high = given.get("low", LOW), given.get("high", HIGH)
    if not SMALLEST_LOW <= low < high:
        raise UsageError(
            f"echo repeats text from low={low} to high={high} bytes back: low must be {SMALLEST_LOW} or more, and high "
            "above low"
        )
    options = "" if (low, high) == (LOW, HIGH) else f"(low={low}, high={high})"
    return derived_source("echo", corpus, VERSION, of_each(lambda content: echoed(content, low, high)), options)


def echoed(content: bytes, low: int = LOW, high: int = HIGH) -> bytes:
    """A document with copies of its passages inserted; all of its own bytes stay, in their order."""
    text = bytearray()
    while len(content) > (size := _own_size(text)):
        size = _cut(content[:size])
        text += content[:size]
        content = content[size:]
        start, end = _passage(text, low, high)
        text += text[start:end]
    return bytes(text) + content


def _draws(text: bytearray) -> list[int]:
    """Four random numbers below 2^64, decided by the end of a text and by its length."""
    digest = hashlib.sha256(text[-HASHED:] + len(text).to_bytes(8, "little")).digest()
    return [int.from_bytes(digest[n : n + 8], "little") for n in range(0, 32, 8)]


def _own_size(text: bytearray) -> int:
    """How many own bytes come after a text, before they are cut at the end of a line or a word."""
    return SHORTEST + _draws(text)[0] % (LONGEST - SHORTEST + 1)


def _passage(text: bytearray, low: int, high: int) -> tuple[int, int]:
    """Where the passage lies that is copied to the end of a text: its first byte, and the one after its last."""
    at, (_, size, unit, _) = len(text), _draws(text)
    if at <= low:
        return at, at
    distance = int(low * (min(high, at) / low) ** (unit / 2**64))
    start = max(0, at - distance - LOOK_BACK)
    start += _cut(text[start : at - distance])
    size = min(SHORTEST + size % (LONGEST - SHORTEST + 1), distance)
    return start, start + _cut(text[start : start + size])


def _cut(passage: bytes | bytearray) -> int:
    """How many bytes of a passage to take: at least half of it, up to the end of a line, of a word or of a character.

    No byte decides this that is not taken, but for the next one, of which only counts that a character begins there: so
    the answer is the same where a copy goes on after the bytes that are taken.
    """
    size = len(passage)
    line, word = passage.find(b"\n", size // 2, size - 4), passage.find(b" ", size * 7 // 8, size - 4)
    ends = [end + 1 for end in (line, word) if end >= 0]
    starts = (at for at in range(max(0, size - 4), size) if passage[at] & 0xC0 != 0x80)  # 10xxxxxx continues one
    return min(ends) if ends else next(starts, size)


CORPORA.add("echo", Kind(GRAMMAR, "a corpus, by default code, with passages repeated at log-uniform distances", source))
