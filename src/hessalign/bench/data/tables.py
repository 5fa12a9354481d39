"""Tables of measurements with a label and a domain, in text files.

A table is read twice, some rows at a time: first to see what its columns hold, then to make
features of the rows that are kept. What is held in memory is these features, and some bytes for
every row.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import torch

from hessalign._errors import InputError, check_name, some
from hessalign.bench.data.columns import (
    MISSING_WORD,
    Column,
    TableForm,
    check_held,
    expected_number,
    is_like_number,
    is_missing,
    make_features,
    parse_number,
    parse_numbers,
)
from hessalign.bench.data.delimited import find_separator, read_rows
from hessalign.bench.data.files import check_file
from hessalign.bench.data.samples import DomainDataset, DomainSamples
from hessalign.report.progress import Progress
from hessalign.report.tables import grouped

TABLES: Final = (".csv", ".tsv")

_LABELS: Final = ("y", "label")
_DOMAINS: Final = ("domain",)

_MOST_WORDS: Final = 32
"""Different words that a column may hold to become features."""

_MOST_CODES: Final = 10_000  # classes or domains
_FEW_CODES: Final = 20  # of which each may occur once
_FEW_NUMBERS: Final = 10  # different numbers beside words that may be names
_THOUSANDS: Final = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")  # what may be, of a point
_SAFE: Final = 50  # rows from which something that always holds is no chance
_LARGE: Final = 1 << 25  # bytes from which reading shows how far it is
_ROWS: Final = 1024  # at a time
_SHOWN: Final = 3
_NAMES_OF_IDS: Final = re.compile(  # also of several columns that are called the same
    r"((?i:(.*[\W_])?(id|uuid|guid|identifier|index|idx|mrn|key|row|no|nr|number|patient|subject|#))"
    r"|(?i:(unnamed: |column )\d+)|.*[a-z]I[dD])( \(\d+\))?",
    re.S,
)


class _Rows(NamedTuple):
    """Some rows of a table, and the lines on which they begin."""

    lines: tuple[int, ...]
    cells: tuple[list[str], ...]


@final
class _Table:
    """A file whose header has been read."""

    def __init__(self, path: Path) -> None:
        check_file(path, "a table")
        self.path = path
        self.comma = find_separator(path) != ","
        _, header = next(read_rows(path), (1, []))
        named = [cell.strip() or f"column {place}" for place, cell in enumerate(header, 1)]
        if named and all(parse_number(cell, self.comma) is not None for cell in header):
            raise InputError(
                f"Expected the names of columns on line 1 of {path}, found only numbers: "
                f"{', '.join(named[:_SHOWN])}, …. Add a line with names."
            )
        self.header = _distinct(named)
        self.repeated = [name for name, count in Counter(named).items() if count > 1]

    def rows(
        self, report: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[_Rows]:
        """All below the header, some at a time."""
        rows = islice(read_rows(self.path, report), 1, None)
        while some := list(islice(rows, _ROWS)):
            yield _Rows(*zip(*some, strict=True))

    def place(self, asked: str | None, usual: Sequence[str], what: str, flag: str) -> int:
        """Where a column stands that is asked for, or has one of the usual names."""
        if asked is not None:
            check_name(f"column of {self.path}", asked, self.header)
            found = [asked]
        else:
            found = [name for name in self.header if name.lower() in usual]
        if len(found) != 1 or found[0] in self.repeated:
            raise InputError(
                f"Expected one column {' or '.join(map(repr, usual))} with the {what} in "
                f"{self.path}, found the columns {', '.join(self.header) or '(none)'}. Name the "
                f"one that has the {what}: {flag} COLUMN."
            )
        return self.header.index(found[0])


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that were there before: none is there twice."""
    taken, counts, made = set(names), Counter[str](), []
    for name in names:
        counts[name] += 1
        numbered = (f"{name} ({number})" for number in range(counts[name], 2 * len(names) + 1))
        own = name if counts[name] == 1 else next(each for each in numbered if each not in taken)
        taken.add(own)
        made.append(own)
    return made


def has_paths(path: Path) -> bool:
    """Whether a file has a column "path", as a list of images has."""
    _, header = next(read_rows(path), (1, []))
    return "path" in [cell.strip() for cell in header]


def read_table(
    path: Path,
    label: str | None = None,
    domain: str | None = None,
    *,
    most: int | None = None,
    seed: int = 0,
) -> DomainDataset:
    r"""Read features, labels and domains from a text file.

    Values stand between commas, semicolons or tabs, which is found out; with the last two, numbers
    may have a decimal comma. The file is in UTF-8, and its first line names the columns. One holds
    the class of each row, one its domain, as names or as numbers; all others are features:

    - A column of numbers is one feature. What is empty or one of `?`, `NA`, `N/A`, `NaN`, `null`,
      `None`, `missing`, `-`, `.` is missing, and becomes NaN.
    - A column of words that repeat, at most `_MOST_WORDS` different ones, has a feature
      `column=word` for each, 1 where it is and 0 elsewhere; missing ones are a word of their own.
    - Other words, and whole numbers under a name such as `patient_id` that hardly repeat, are
      identifiers or free text, which are left out; `notes` say so.

    Classes and domains are sorted, numbers by value. The rows of a domain keep their order.

    Args:
        path: The file; where there is none, that is a FileNotFoundError.
        label: The column of classes; by default that called `y` or `label`.
        domain: The column of domains; by default that called `domain`.
        most: Numbers to keep, rows times features; of more rows, as many of each domain are
            drawn, small domains whole.
        seed: Of that draw.

    Returns:
        The data set, called as the file, with features as a tensor; its `table` says what they are,
        and what to know about the columns. A column that is missing, or a value that is not what
        it should be, is an InputError that names the column and the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "clinics.csv"
        >>> _ = path.write_text("age;kg;ill;clinic\n61;80,5;no;north\n48;?;yes;south\n")
        >>> data = read_table(path, label="ill", domain="clinic")
        >>> data.domain_names, data.classes, data.table.features
        (('north', 'south'), ('no', 'yes'), ('age', 'kg'))
        >>> data.domains[1].inputs
        tensor([[48., nan]])
    """
    table = _Table(path)
    with Progress(f"reading {path.name}", "MB", bar=True) as shown:

        def report(done: int, total: int, again: int) -> None:
            if total >= _LARGE:
                shown((done + again * total) // 2_000_000, total // 1_000_000)

        survey = _survey(table, label, domain, partial(report, again=0))
        form = _form(table, survey)
        rows = None if most is None else most // len(form.features)
        keep = _kept(survey.domains.codes, rows, seed)
        codes = survey.domains.codes[keep]
        order = np.argsort(codes, kind="stable")
        x = _read_features(table, form, keep, order, partial(report, again=1))
    if not keep.all():
        drawn = f"{len(codes):,} of {len(keep):,} rows were drawn, as many of each {form.domain!r}."
        form = replace(form, notes=(*form.notes, drawn))
    ends = torch.from_numpy(np.bincount(codes).cumsum()[:-1])
    y = torch.from_numpy(survey.labels.codes[keep][order].astype(np.int64))
    parts = (survey.domains.names, torch.from_numpy(x).tensor_split(ends), y.tensor_split(ends))
    samples = tuple(DomainSamples(*each) for each in zip(*parts, strict=True))
    return DomainDataset(path.stem, survey.labels.names, samples, table=form)


def table_features(path: Path, columns: Sequence[Column]) -> Iterator[tuple[int, np.ndarray]]:
    """Line and features of each row of a table that has these columns, and maybe others."""
    table = _Table(path)
    if lacking := [column.name for column in columns if column.name not in table.header]:
        raise InputError(
            f"Expected the columns {', '.join(column.name for column in columns)}, on which this "
            f"model was trained, in {path}; it lacks {', '.join(lacking)}, and has "
            f"{', '.join(table.header)}."
        )
    places = [table.header.index(column.name) for column in columns]
    for rows in table.rows():
        yield from zip(
            rows.lines, make_features(path, columns, places, *rows, comma=table.comma), strict=True
        )


@final
class _Codes:
    """The names that occur in a column of classes or domains, numbered.

    Attributes:
        names: All, sorted: numbers by value, equal ones as they were first written.
        codes: The place of each row's name among them.
        order: The place of each name, in the order in which they occur.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._where = f"column {column!r} of {path}"
        self._first: dict[str, int] = {}  # names in the order in which they occur
        self._known: dict[str, int] = {}  # what is written, with blanks
        self._parts: list[np.ndarray] = []
        self.names: tuple[str, ...] = ()
        self.codes = self.order = np.empty(0, np.int16)

    def add(self, lines: Sequence[int], cells: Sequence[str]) -> list[int]:
        """The numbers of some names, in the order in which names occur."""
        for cell in sorted(set(cells) - self._known.keys(), key=cells.index):
            name = cell.strip()
            if is_missing(name):
                raise InputError(
                    f"Expected a value in {self._where} on line {lines[cells.index(cell)]}, found "
                    f"{repr(name) if name else 'none'}. Fill it in, or leave the row out."
                )
            self._known[cell] = self._first.setdefault(name, len(self._first))
        if len(self._first) > _MOST_CODES:
            raise InputError(self._too_many(f"more than {_MOST_CODES:,}"))
        found = [self._known[cell] for cell in cells]
        self._parts.append(np.array(found, np.int16))
        return found

    def finish(self, comma: bool) -> None:
        """Sort the names that occurred."""
        first = np.concatenate(self._parts)
        if len(self._first) > max(_FEW_CODES, len(first) / 2):
            raise InputError(self._too_many(f"{len(self._first):,}", f" in {len(first):,} rows"))
        values = [_exact_number(name, comma) for name in self._first]
        keys: list[Any] = list(self._first) if None in values else values
        spelled = dict(zip(reversed(keys), reversed(self._first), strict=True))
        places = {key: place for place, key in enumerate(sorted(spelled))}
        self.names = tuple(spelled[key] for key in places)
        self.order = np.array([places[key] for key in keys], np.int16)
        self.codes = self.order[first]

    def _too_many(self, found: str, rows: str = "") -> str:
        return (
            f"Expected names or numbers that repeat in {self._where}, found {found} different "
            f"ones{rows}: measurements or identifiers. Choose another column, or put values into "
            "groups."
        )


def _exact_number(name: str, comma: bool) -> Decimal | None:
    """The value of a number, of which floats keep 17 digits only; None if it is another name."""
    number = parse_number(name, comma)
    if number is None or np.isinf(number):
        return None
    try:
        return Decimal(name.replace(",", ".") if comma else name)
    except InvalidOperation:  # an exponent without measure
        return None


@final
@dataclass
class _Seen:
    """What was seen in a column of features so far."""

    name: str
    place: int
    texts: set[str] | None = field(default_factory=set)  # different ones; None if they are many
    numbers: int = 0
    words: int = 0
    like_numbers: int = 0  # words that were meant as numbers
    first_word: tuple[int, str] = (0, "")  # with its line
    missing: Counter[int] = field(default_factory=Counter)  # by domain
    label_of: dict[str, int | None] | None = field(default_factory=dict)  # None if not a single one
    text_of: dict[int, str | None] = field(default_factory=dict)  # by domain, likewise
    signs: dict[str, tuple[int, str]] = field(default_factory=dict)  # of decimals: where first seen
    values: list[np.ndarray] = field(default_factory=list)  # of what may be an identifier
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(
        self,
        table: _Table,
        lines: Sequence[int],
        cells: Sequence[str],
        labels: Sequence[int],
        domains: Sequence[int],
    ) -> None:
        """Look at some rows."""
        self.digest.update("\0".join(cells).encode() + b"\0")
        if self.texts is not None:
            self.texts |= {cell.strip() for cell in set(cells) if not is_missing(cell)}
            self.texts = self.texts if len(self.texts) <= _MOST_WORDS else None
        if self.texts is None or self.label_of is None:
            self.label_of = None
        else:
            known = _extended(self.label_of, zip(cells, labels, strict=True))
            self.label_of = None if None in known.values() else known
        if any(self.text_of.get(domain, "") is not None for domain in set(domains)):
            self.text_of = _extended(self.text_of, zip(domains, cells, strict=True))
        numbers = parse_numbers(cells, table.comma)
        if numbers is None:
            missing = self._add_words(lines, cells, comma=table.comma)
        else:
            check_held(table.path, self.name, lines, cells, numbers)
            missing = np.isnan(numbers)
            if table.comma:
                self._find_signs(lines, cells)
            self.numbers += len(cells) - int(missing.sum())
            if _NAMES_OF_IDS.fullmatch(self.name):
                self.values.append(numbers)
        self.missing.update(np.array(domains)[missing].tolist())

    def _add_words(self, lines: Sequence[int], cells: Sequence[str], *, comma: bool) -> np.ndarray:
        """Count words and numbers; which are missing."""
        missing = {cell for cell in set(cells) if is_missing(cell)}
        for cell, count in Counter(cells).items():  # in the order in which they occur
            if cell in missing:
                continue
            if parse_number(cell, comma) is not None:
                self.numbers += count
                continue
            if not self.words:
                self.first_word = lines[cells.index(cell)], cell
            self.words += count
            self.like_numbers += count * is_like_number(cell)
        return np.array([cell in missing for cell in cells])

    def _find_signs(self, lines: Sequence[int], cells: Sequence[str]) -> None:
        """Where numbers first have a decimal comma, a point of thousands, perhaps, or another."""
        together = "".join(cells)
        for sign in {",", "."}.difference(self.signs):
            if sign not in together:
                continue
            for line, cell in zip(lines, map(str.strip, cells), strict=True):
                if sign in cell and not is_missing(cell):
                    kind = "thousands" if _THOUSANDS.fullmatch(cell) else sign
                    self.signs.setdefault(kind, (line, cell))
                    if kind == sign:
                        break

    @property
    def thousands(self) -> tuple[int, str] | None:
        """A number whose point may be one of thousands, with its line, if all points may be."""
        return None if "." in self.signs else self.signs.get("thousands")

    @property
    def is_id(self) -> bool:
        """Whether the name is one of identifiers, and its whole numbers hardly repeat."""
        values = np.concatenate(self.values) if self.values else np.empty(0)
        whole = not self.words and bool((values == np.floor(values)).all())
        return whole and 2 * len(np.unique(values)) > max(len(values), 2)

    def column(self, table: _Table, rows: int) -> tuple[Column | None, str | None]:
        """What features are made of, if any, and what to know."""
        title = f"Column {self.name!r}"
        if not self.words + self.numbers:
            return None, f"{title} is left out: it has no value."
        if self.is_id:
            return None, f"{title} is left out: whole numbers that hardly repeat, an identifier."
        if self.thousands is not None and "," in self.signs:
            found = (self.signs[","], self.thousands)
            places = " and ".join(f"{cell!r} on line {line}" for line, cell in found)
            raise InputError(
                f"Expected one way to write decimals in column {self.name!r} of {table.path}, "
                f"found {places}. Write thousands without a point."
            )
        if not self.words:
            return Column(self.name), None
        few = self.texts is not None and 2 * len(self.texts) <= rows
        numbers = [t for t in self.texts or () if parse_number(t, table.comma) is not None]
        many = self.texts is None or len(numbers) > _FEW_NUMBERS
        mostly = 2 * (self.numbers + self.like_numbers) >= self.numbers + self.words
        if mostly and (many or not few):
            raise InputError(expected_number(table.path, self.name, *self.first_word))
        if self.texts is None or not few:
            count = f"more than {_MOST_WORDS}" if self.texts is None else len(self.texts)
            return None, (
                f"{title} is left out: {count} different words in {rows:,} rows, an identifier or "
                f"free text. Words that repeat, at most {_MOST_WORDS} different ones, are used."
            )
        line, word = self.first_word
        told = f"{title} has numbers and words, {word.strip()!r} on line {line}: all are words."
        words = (*sorted(self.texts), *([MISSING_WORD] if self.missing else []))
        return Column(self.name, words), told if self.numbers else None


_Key = TypeVar("_Key", str, int)
_Value = TypeVar("_Value", str, int)


def _extended(
    known: dict[_Key, _Value | None], pairs: Iterable[tuple[_Key, _Value]]
) -> dict[_Key, _Value | None]:
    """What goes with each key; None if it has several."""
    for key, value in set(pairs):
        if known.setdefault(key, value) != value:
            known[key] = None
    return known


class _Survey(NamedTuple):
    """What the columns of a table hold."""

    label: str
    domain: str
    labels: _Codes
    domains: _Codes
    columns: list[_Seen]

    @property
    def rows(self) -> int:
        """Below the header."""
        return len(self.labels.codes)


def _survey(
    table: _Table, label: str | None, domain: str | None, report: Callable[[int, int], None]
) -> _Survey:
    """Look at all rows once."""
    at_label = table.place(label, _LABELS, "classes", "--label")
    at_domain = table.place(domain, _DOMAINS, "domains", "--domain")
    if at_label == at_domain:
        raise InputError(
            f"Expected different columns of classes and of domains in {table.path}, got "
            f"{table.header[at_label]!r} for both."
        )
    names = table.header[at_label], table.header[at_domain]
    labels, domains = (_Codes(table.path, name) for name in names)
    columns = [
        _Seen(name, place)
        for place, name in enumerate(table.header)
        if place not in (at_label, at_domain)
    ]
    rows = None
    for rows in table.rows(report):
        cells = tuple(zip(*rows.cells, strict=True))
        what = labels.add(rows.lines, cells[at_label])
        where = domains.add(rows.lines, cells[at_domain])
        for column in columns:
            column.add(table, rows.lines, cells[column.place], what, where)
    if rows is None:
        raise InputError(f"Expected rows in {table.path}, found none below the header.")
    labels.finish(table.comma)
    domains.finish(table.comma)
    return _Survey(*names, labels, domains, columns)


def _form(table: _Table, survey: _Survey) -> TableForm:
    """What features are made of, and what to know about the columns."""
    columns, notes = [], []
    for seen in survey.columns:
        column, note = seen.column(table, survey.rows)
        columns += [] if column is None else [column]
        notes += [] if note is None else [note]
    if not columns:
        raise InputError(
            f"Expected a column to make features of in {table.path}, beside "
            f"{survey.label!r} and {survey.domain!r}, found none. {' '.join(notes)}".rstrip()
        )
    for name in table.repeated:
        notes.append(f"Several columns are called {name!r}: the others have a number behind it.")
    kept = {column.name for column in columns}
    used = [seen for seen in survey.columns if seen.name in kept]
    for find in (_points, _copies, _suspects, _frozen, _gaps):
        notes += find(survey, used)
    return TableForm(survey.label, survey.domain, tuple(columns), tuple(notes))


def _points(survey: _Survey, columns: Sequence[_Seen]) -> Iterator[str]:
    """Points of thousands, perhaps, in a table with decimal commas."""
    if any("," in seen.signs for seen in columns):
        for seen in columns:
            if seen.thousands is not None:
                line, cell = seen.thousands
                yield (
                    f"Column {seen.name!r} has {cell!r} on line {line}, which is read as "
                    f"{float(cell):g}; others have decimal commas. Write thousands without a point."
                )


def _copies(survey: _Survey, columns: Sequence[_Seen]) -> Iterator[str]:
    for alike in grouped(columns, lambda seen: seen.digest.digest()).values():
        names = [repr(seen.name) for seen in alike]
        if len(names) > 1:
            yield f"Columns {' and '.join(names)} hold the same in every row: one is enough."


def _suspects(survey: _Survey, columns: Sequence[_Seen]) -> Iterator[str]:
    """Columns that tell nothing, or too much."""
    for seen in columns:
        if seen.texts is None or survey.rows < 2:
            continue
        if len(seen.texts) == 1 and not seen.missing:
            (value,) = seen.texts
            yield f"Column {seen.name!r} is {value!r} in every row: it tells nothing."
            continue
        if survey.rows < max(_SAFE, 10 * len(seen.texts)):
            continue
        if seen.label_of is not None and len(survey.labels.names) > 1:
            yield (
                f"Column {seen.name!r} tells {survey.label!r} without fail. Is it known before? If "
                "not, remove it."
            )
        if None not in seen.text_of.values():
            yield (
                f"Column {seen.name!r} is the same throughout each {survey.domain!r}: it tells "
                "where a row is from, not what it is."
            )


def _frozen(survey: _Survey, columns: Sequence[_Seen]) -> Iterator[str]:
    """Columns that have one value throughout some domains, and vary elsewhere."""
    sizes = np.bincount(survey.domains.codes)
    for seen in columns:
        texts = {int(survey.domains.order[each]): text for each, text in seen.text_of.items()}
        told = [
            f"{text.strip()!r} in every row of {survey.domains.names[number]}"
            for number, text in sorted(texts.items())
            if text is not None and sizes[number] >= _SAFE and not is_missing(text)
        ]
        if told and len(told) < len(sizes):
            yield f"Column {seen.name!r} is {some(told, _SHOWN)}: is it missing there?"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _gaps(survey: _Survey, columns: Sequence[_Seen]) -> Iterator[str]:
    """How much is missing, in all and where it is half or more."""
    counts = {seen.name: seen.missing.total() for seen in columns if seen.missing}
    if not counts:
        return
    most = sorted(counts, key=lambda name: -counts[name])[:_SHOWN]
    shares = ", ".join(f"{name!r} ({_percent(counts[name], survey.rows)})" for name in most)
    total = sum(counts.values())
    share = _percent(total, survey.rows * len(columns))
    yield f"{total:,} values are missing ({share}), most in {shares}."
    sizes = np.bincount(survey.domains.codes)
    for seen in columns:
        gaps = np.zeros_like(sizes)
        np.add.at(gaps, survey.domains.order[list(seen.missing)], list(seen.missing.values()))
        told = [
            f"{name} ({_percent(gap, size)})"
            for name, gap, size in zip(
                survey.domains.names, gaps.tolist(), sizes.tolist(), strict=True
            )
            if gap >= size / 2
        ]
        if told:
            yield f"Column {seen.name!r} is mostly missing in {some(told, _SHOWN)}."


def _kept(domains: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    """Which rows are kept: all, or as many of each domain, at random."""
    keep = np.ones(len(domains), bool)
    if most is None or len(domains) <= most:
        return keep
    sizes = np.bincount(domains)
    share = bisect_right(range(sizes.max()), most, key=lambda each: np.minimum(sizes, each).sum())
    share, rng = max(1, share - 1), np.random.default_rng(seed)
    for number, size in enumerate(sizes):
        if size > share:
            rows = np.flatnonzero(domains == number)
            keep[rng.choice(rows, size - share, replace=False)] = False
    return keep


def _read_features(
    table: _Table,
    form: TableForm,
    keep: np.ndarray,
    order: np.ndarray,
    report: Callable[[int, int], None],
) -> np.ndarray:
    """The features of the rows that are kept, in the order given."""
    places = [table.header.index(column.name) for column in form.columns]
    target = np.argsort(order)
    x = np.empty((len(order), len(form.features)), np.float32)
    start = done = 0
    for rows in table.rows(report):
        chosen = np.flatnonzero(keep[start : start + len(rows.lines)])
        start += len(rows.lines)
        if len(chosen):
            lines = [rows.lines[each] for each in chosen]
            cells = [rows.cells[each] for each in chosen]
            x[target[done : done + len(chosen)]] = make_features(
                table.path, form.columns, places, lines, cells, comma=table.comma
            )
            done += len(chosen)
    if start != len(keep):
        raise InputError(f"{table.path} was changed while it was read. Give the command again.")
    return x
