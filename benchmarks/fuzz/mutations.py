"""Valid files made into damaged ones, by a seeded source of randomness."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

TOKENS: Final = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        "1e999", "-1e999", "NaN", "nan", "Infinity", "-0", "-1", "99999999999999999999", "1e308",
        "0x10", "1_000", "٣", "null", "true", "None", "[]", "{}", "{", "}", "[", "]", '"', "'", ",",
        ";", ":", "\n", "\r", "\r\n", "\t", "\0", "\ufeff", "\u2028", "\u202e", "é", "\ud800",
        r"\ud800", "../../etc/passwd", "/dev/zero", "/dev/stdin", "<script>alert(1)</script>", "&",
        "*a", "&a [*a, *a]", "!!python/object/apply:os.system ['false']", "!!binary x",
        "2020-99-99",
        "? ", "- ", "%", "|", "9" * 5000, "x" * 70000, "domain", "y", "path", "step", "args",
    )
)  # fmt: skip
"""What may stand where something else should."""

ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, 10**20, -(10**400), 0.5, -0.5, float("nan"), float("inf"),
    1e308,
    "", "x", "0", "<b>", "\ud800", "\0", [], [[]], [1, 2], {}, {"x": 1}, [None], "a" * 5000, 2**31,
    2**63, 2**64,
)  # fmt: skip
"""Values of any kind."""

DEEP: Final = 5_000


class Canary:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def payload(path: Path) -> bytes:
    """A pickle that makes a file when it is read."""
    return pickle.dumps(Canary(path), protocol=2)


def _place(source: random.Random, content: bytes) -> tuple[int, int]:
    """The ends of a piece of some content, short ones more often."""
    first = source.randrange(len(content) + 1)
    return first, min(len(content), first + int(source.paretovariate(0.7)))


def _flip(source: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(source.choice((1, 1, 1, 2, 8))):
        if changed:
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def _truncate(source: random.Random, content: bytes) -> bytes:
    return content[: source.randrange(len(content) + 1)]


def _delete(source: random.Random, content: bytes) -> bytes:
    first, last = _place(source, content)
    return content[:first] + content[last:]


def _repeat(source: random.Random, content: bytes) -> bytes:
    first, last = _place(source, content)
    return content[:last] + content[first:last] * source.choice((1, 1, 2, 50)) + content[last:]


def _swap(source: random.Random, content: bytes) -> bytes:
    a, b, c = sorted(source.randrange(len(content) + 1) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def _insert(source: random.Random, content: bytes) -> bytes:
    first, last = _place(source, content)
    added = source.choice((source.choice(TOKENS), source.randbytes(source.randint(1, 9))))
    return content[:first] + added + content[source.choice((first, last)) :]


def _nest(source: random.Random, content: bytes) -> bytes:
    if source.random() > 0.1:  # they are slow
        return _insert(source, content)
    first, _ = _place(source, content)
    return content[:first] + source.choice((b"[", b'{"a":', b"- ", b"[1,")) * DEEP + content[first:]


def _overwrite(source: random.Random, content: bytes) -> bytes:
    form, least = source.choice((("<I", 4), ("<Q", 8), (">I", 4), ("<H", 2)))
    value = source.choice((0, 1, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
    first = source.randrange(max(1, len(content) - least))
    return content[:first] + struct.pack(form, value % 256**least) + content[first + least :]


def _word(source: random.Random, content: bytes) -> bytes:
    """Another token for a number or a word of a text."""
    words = content.split(b",")
    words[source.randrange(len(words))] = source.choice(TOKENS)
    return b",".join(words)


_DAMAGES: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    _flip, _flip, _truncate, _delete, _repeat, _swap, _insert, _nest, _overwrite, _word,
)  # fmt: skip


def damaged(source: random.Random, content: bytes) -> bytes:
    """Some content with one damage, or a few."""
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        content = source.choice(_DAMAGES)(source, content)
    return content


CELLS: Final = (
    "", " ", "?", "NA", "nan", "+nan", "-", "missing", "0", "-0", "1", "1.0", "1,0", "1,234.5",
    "1e3", "1e39", "inf", "-Infinity", "1_0", "٣", "½", "12 %", "<5", "x", "x ", " X", "ill",
    "north", "id", "kg", "kg (2)", "patient_id", "Y", "domain", "path", "a\nb", "a,b", "a;b", 'a"b',
    "12345678901234567", "12345678901234568", "1e-9999999999999999999", "\u00a07", "7\u2003",
    "$" + " " * 900 + "5x",
)  # fmt: skip
"""What may stand in a table."""


def damaged_table(source: random.Random, content: bytes, separator: str) -> bytes:
    """A table that is damaged in its bytes, or in its cells, rows and columns."""
    if source.random() < 0.4:
        return damaged(source, content)
    rows = [line.split(separator) for line in content.decode().splitlines()]
    for _ in range(source.choice((1, 1, 2, 6))):
        source.choice(_DAMAGES_OF_TABLES)(source, rows)
    separator = source.choice((separator,) * 8 + (",", ";", "\t", "|"))
    quote = source.choice((str, str, _quoted))
    end = source.choice(("\n", "\n", "\r\n", "\r", "\n\n"))
    return (end.join(separator.join(map(quote, row)) for row in rows) + end).encode()


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def _change_cell(source: random.Random, rows: list[list[str]]) -> None:
    row = source.choice(rows)
    row[source.randrange(len(row))] = source.choice((str, _quoted))(source.choice(CELLS))


def _change_column(source: random.Random, rows: list[list[str]]) -> None:
    """Some cells of a column, or all, become the same."""
    place, cell, part = source.randrange(len(rows[0])), source.choice(CELLS), source.random()
    for row in rows[1:]:
        if source.random() < 2 * part and place < len(row):
            row[place] = _quoted(cell)


def _copy_column(source: random.Random, rows: list[list[str]]) -> None:
    """A column is there twice, under the same name or another."""
    place, to = (source.randrange(len(rows[0])) for _ in range(2))
    for row in rows:
        row.insert(to, row[min(place, len(row) - 1)])
    if source.random() < 0.5:
        rows[0][to] = source.choice(CELLS)


def _drop_column(source: random.Random, rows: list[list[str]]) -> None:
    place = source.randrange(len(rows[0]))
    for row in rows:
        del row[place : place + (len(row) > 1)]


def _drop_row(source: random.Random, rows: list[list[str]]) -> None:
    if len(rows) > 1:
        del rows[source.randrange(len(rows))]


def _repeat_rows(source: random.Random, rows: list[list[str]]) -> None:
    rows += [list(row) for row in rows[1:] * source.choice((1, 3, 30))][:2000]


def _change_length(source: random.Random, rows: list[list[str]]) -> None:
    row = source.choice(rows)
    row.insert(source.randrange(len(row) + 1), source.choice(CELLS))


_DAMAGES_OF_TABLES: Final[tuple[Callable[[random.Random, list[list[str]]], None], ...]] = (
    _change_cell, _change_cell, _change_cell, _change_column, _copy_column, _drop_column, _drop_row,
    _repeat_rows, _change_length,
)  # fmt: skip


def zip_members(content: bytes) -> dict[str, bytes]:
    """The members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Sequence[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive, whose names may be there twice."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "")), content)
    return buffer.getvalue()


def damaged_zip(source: random.Random, content: bytes, hidden: bytes) -> bytes:
    """An archive that is damaged in its bytes, or in a member, with the right checksums."""
    if source.random() < 0.5:
        return damaged(source, content)
    members = list(zip_members(content).items())
    place = source.randrange(len(members))
    name, inner = members[place]
    kind = source.randrange(8)
    if kind < 4:
        members[place] = name, damaged(source, inner)
    elif kind == 4:
        members[place] = name, hidden
    elif kind == 5:
        members.append((name, damaged(source, inner)))
    elif kind == 6:
        members[place] = (
            source.choice(("../" + name, "/" + name, name + "x", "x\ny.npy", "")),
            inner,
        )
    else:
        del members[place]
    return zipped(members, source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


def damaged_json(source: random.Random, value: Any) -> Any:
    """A value of JSON with an odd one somewhere inside, or without a part."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        key = source.choice(sorted(value))
        kind = source.randrange(10)
        if kind == 0:
            return {name: each for name, each in value.items() if name != key}
        if kind == 1:
            return {**value, source.choice(("", "x", key + "x", "step", "y")): source.choice(ODD)}
        return {**value, key: damaged_json(source, value[key])}
    if isinstance(value, list) and value and source.random() < 0.7:
        place = source.randrange(len(value))
        return [*value[:place], damaged_json(source, value[place]), *value[place + 1 :]]
    return source.choice(ODD)


def damaged_lines(source: random.Random, content: bytes) -> bytes:
    """A text of JSON lines that is damaged in its bytes, or in a value of a line."""
    if source.random() < 0.5:
        return damaged(source, content)
    lines = content.decode().splitlines()
    place = source.randrange(len(lines))
    lines[place] = json.dumps(damaged_json(source, json.loads(lines[place])))
    if source.random() < 0.2:
        source.shuffle(lines)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def damaged_safetensors(source: random.Random, content: bytes) -> bytes:
    """A file of tensors that is damaged in its bytes, or in its header, of the right length."""
    if source.random() < 0.4:
        return damaged(source, content)
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    if source.random() < 0.7:
        header = json.dumps(damaged_json(source, json.loads(header))).encode("utf-8", "replace")
    else:
        header = damaged(source, header)
    return len(header).to_bytes(8, "little") + header + rest
