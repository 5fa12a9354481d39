"""Tables in text files: what their columns become, what is said of them, and what is refused."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hessalign.bench.data import find_dataset, read_dataset, read_table
from hessalign.bench.data import tables as module
from hessalign.bench.data.columns import MISSING, Column
from hessalign.bench.data.tables import table_features


def write(folder, text, name="clinics.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def rows_of(data):
    """Features, labels and domains of all rows, domain by domain."""
    x = torch.cat([part.inputs for part in data.domains]).numpy()
    y = [data.classes[label] for part in data.domains for label in part.labels]
    return x, y, [part.name for part in data.domains for _ in range(len(part))]


def rows(count, column):
    """A table of so many rows, half of them ill, in two clinics, with one more column."""
    return "".join(
        f"{i * 7 % 101},{column(i)},{'ill' if i % 3 else 'well'},{'ab'[i % 2]}\n"
        for i in range(count)
    )


# --- what columns become ------------------------------------------------------------------------


def test_columns_in_any_order_names_and_numbers(tmp_path):
    text = "domain,age,label,pulse\nsouth,1,ill,10\nnorth,2,well,20\n\nsouth,3,well,30\n,,,\n"
    data = read_table(write(tmp_path, text))
    assert (data.name, data.domain_names, data.classes) == (
        "clinics",
        ("north", "south"),
        ("ill", "well"),
    )
    south = data.domains[1]
    torch.testing.assert_close(south.inputs, torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    assert south.labels.tolist() == [0, 1]
    assert data.table.features == ("age", "pulse")


def test_numbers_are_sorted_by_value_and_equal_ones_are_one(tmp_path):
    lines = "".join(f"0.5,{y},{d}\n" for y, d in ((10, "02"), (9, 10), ("9.0", 10), (10, 2)))
    data = read_table(write(tmp_path, "x,y,domain\n" + lines))
    assert data.classes == ("9", "10")
    assert data.domain_names == ("02", "10")
    assert [part.labels.tolist() for part in data.domains] == [[1, 1], [0, 0]]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_separators_ends_of_lines_and_byte_order_marks(tmp_path, separator, end, start):
    lines = [["age", "the name", "y", "domain"], ["61", '"1"', "ill", "north"],
             [" 48 ", "2", '"w, e; l\tl"', '"so ""uth"""']]  # fmt: skip
    text = start + end.join(separator.join(line) for line in lines) + end
    data = read_table(write(tmp_path, text))
    assert data.table.features == ("age", "the name")
    x, y, domain = rows_of(data)
    np.testing.assert_array_equal(x, [[61, 1], [48, 2]])
    assert (y, domain) == (["ill", "w, e; l\tl"], ["north", 'so "uth"'])


def test_points_of_thousands_among_decimal_commas_are_refused(tmp_path):
    path = write(tmp_path, "kg;y;domain\n12,5;0;a\n1.250;1;a\n.;0;b\n7;1;b\n")
    with pytest.raises(ValueError, match=r"'kg' of .* '12,5' on line 2 and '1\.250' on line 3\. W"):
        read_table(path)


@pytest.mark.parametrize(
    ("kg", "steps", "told"),
    [("12,5", "1.250", True), ("12.5", "1.250", False), ("12,5", "1.25", False)],
)
def test_points_beside_decimal_commas_are_told(tmp_path, kg, steps, told):
    text = f"kg;steps;y;domain\n{kg};900;0;a\n3;{steps};1;a\n4;?;0;b\n7;2;1;b\n"
    data = read_table(write(tmp_path, text))
    wanted = "Column 'steps' has '1.250' on line 3, which is read as 1.25; others"
    assert any(note.startswith(wanted) for note in data.table.notes) == told
    assert 1.25 in rows_of(data)[0]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas(tmp_path, separator):
    text = "kg;cm;y;domain\n80,5;1,8e2;a;b\n-0,25;170.5;c;d\n".replace(";", separator)
    x, _, _ = rows_of(read_table(write(tmp_path, text, "clinics.tsv")))
    np.testing.assert_array_equal(x, [[80.5, 180], [-0.25, 170.5]])


@pytest.mark.parametrize("missing", [*sorted(MISSING), " ", "NaN", "N/A", "NULL", "None", " ? "])
def test_missing_numbers(tmp_path, missing):
    data = read_table(write(tmp_path, f"age,pulse,y,domain\n1,2,a,b\n3,{missing},a,b\n"))
    np.testing.assert_array_equal(rows_of(data)[0], [[1, 2], [3, np.nan]])
    assert "1 values are missing (25 %), most in 'pulse' (50 %)." in data.table.notes


def test_words_have_a_feature_each_and_missing_ones_their_own(tmp_path):
    values = ["red", "green", "?", "green"]
    data = read_table(write(tmp_path, "age,ward,y,domain\n" + rows(40, lambda i: values[i % 4])))
    assert data.table.columns == (Column("age"), Column("ward", ("green", "red", "missing")))
    assert data.table.features == ("age", "ward=green", "ward=red", "ward=missing")
    x, _, _ = rows_of(data)
    place = {"green": 0, "red": 1, "?": 2}
    wanted = np.eye(3)[[place[values[i % 4]] for k in (0, 1) for i in range(k, 40, 2)]]
    np.testing.assert_array_equal(x[:, 1:], wanted)


def test_words_and_few_numbers_are_words(tmp_path):
    text = rows(40, lambda i: ("0", "1", "2", "3+")[i % 4])
    data = read_table(write(tmp_path, "age,children,y,domain\n" + text))
    assert data.table.features == (
        "age", "children=0", "children=1", "children=2", "children=3+",
    )  # fmt: skip
    assert any("numbers and words, '3+' on line 5" in note for note in data.table.notes)


def test_domains_keep_the_order_of_their_rows_over_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 7)
    path = write(tmp_path, "x,word,y,domain\n" + rows(100, lambda i: "pqr"[i % 3]))
    x, y, _ = rows_of(read_table(path))
    order = [*range(0, 100, 2), *range(1, 100, 2)]
    np.testing.assert_array_equal(x[:, 0], [i * 7 % 101 for i in order])
    np.testing.assert_array_equal(x[:, 1:].argmax(1), [i % 3 for i in order])
    assert y == ["ill" if i % 3 else "well" for i in order]


def test_named_columns(tmp_path):
    path = write(tmp_path, "y,clinic,outcome\n1,a,well\n2,b,ill\n")
    data = read_table(path, label="outcome", domain="clinic")
    assert (data.classes, data.domain_names, data.table.features) == (
        ("ill", "well"), ("a", "b"), ("y",),
    )  # fmt: skip
    named = read_dataset(Path(f"{path}:label=outcome:domain=clinic"))
    assert named.fingerprint() == data.fingerprint()
    found = find_dataset("clinics:label=outcome:domain=clinic", tmp_path)
    assert found.fingerprint() == data.fingerprint()
    assert found.name == "clinics"
    with pytest.raises(ValueError, match=r"Unknown option of .* 'lable'.*Did you mean 'label'"):
        read_dataset(Path(f"{path}:lable=outcome"))


def test_any_source_of_data_includes_tables_but_not_manifests(tmp_path):
    data = read_dataset(write(tmp_path, "x,y,domain\n1,a,b\n"))
    assert data.classes == ("a",)
    manifest = write(tmp_path, "path,class,domain\n1.png,a,b\n", "images.csv")
    with pytest.raises(FileNotFoundError, match="lists files that do not exist"):
        read_dataset(manifest)


WORDS = st.sampled_from(["red", "blue", 'say "hi"', "a,b", "x;y", "two\nlines", "Zürich", "1 2"])
NUMBERS = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.floats(-(2.0**99), 2.0**99, width=32).map(repr),
    st.sampled_from(["", "?", "NA", "nan", "null"]),
)  # fmt: skip


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, WORDS, st.integers(0, 3)), min_size=2, max_size=30),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_any_table_is_read_as_pandas_reads_it(tmp_path_factory, drawn, separator, end, quoted):
    pandas = pytest.importorskip("pandas")
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerow(["a", "b", "label", "domain"])
    writer.writerows(drawn)
    path = write(tmp_path_factory.mktemp("drawn"), out.getvalue())
    wanted = pandas.read_csv(path, sep=separator, na_values=["?"], dtype={"label": str})
    wanted = wanted.sort_values("domain", kind="stable")
    columns = [name for name in "ab" if wanted[name].notna().any()]
    if not columns:
        with pytest.raises(ValueError, match="a column to make features of"):
            read_table(path)
        return
    data = read_table(path)
    x, y, domain = rows_of(data)
    assert data.table.features == tuple(columns)
    np.testing.assert_allclose(x, wanted[columns].to_numpy(np.float64), rtol=1e-6)
    assert y == wanted["label"].tolist()
    assert domain == wanted["domain"].astype(str).tolist()


# --- what is pointed out ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "column", "told", "used"),
    [
        ("patient_id", str, "'patient_id' is left out: whole numbers that hardly repeat", False),
        ("PatientID", lambda i: 10**9 - i, "'PatientID' is left out", False),
        ("", str, "'column 2' is left out", False),
        ("code", lambda i: f"p{i}", "more than 32 different words in 200 rows, an ident", False),
        ("note", lambda i: "", "'note' is left out: it has no value", False),
        ("x", lambda i: i * 7 % 101, "Columns 'x' and 'x (2)' hold the same in every row", True),
        ("x", lambda i: i * 7 % 101, "Several columns are called 'x'", True),
        ("unit", lambda i: "mg", "'unit' is 'mg' in every row: it tells nothing", True),
        ("treated", lambda i: int(i % 3 > 0), "'treated' tells 'y' without fail", True),
        ("scanner", lambda i: i % 2 + 3, "'scanner' is the same throughout each 'domain'", True),
        ("chol", lambda i: i % 2 and i, "'chol' is '0' in every row of a: is it missing", True),
        ("late", lambda i: "" if i % 2 else i, "'late' is mostly missing in b (100 %)", True),
    ],
)  # fmt: skip
def test_what_a_reader_should_know(tmp_path, header, column, told, used):
    data = read_table(write(tmp_path, f"x,{header},y,domain\n" + rows(200, column)))
    assert any(told in note for note in data.table.notes), data.table.notes
    assert (len(data.table.columns) == 2) == used


def test_nothing_is_pointed_out_of_plain_columns(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    data = read_table(write(tmp_path, "x,z,y,domain\n" + rows(200, lambda i: values[i])))
    assert data.table.notes == ()
    visits = read_table(write(tmp_path, "x,id,y,domain\n" + rows(200, lambda i: i % 5)))
    assert visits.table.features == ("x", "id")  # which repeats


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["inf", "high", "1e39", "-1e300", "1_000", "12 kg"])
def test_a_value_that_is_no_number_is_named(value, tmp_path):
    path = write(tmp_path, f"age,pulse,y,domain\n1,2,a,b\n\n3,{value},a,b\n")
    with pytest.raises(ValueError, match=rf"column 'pulse' of .*clinics.csv; line 4 has '{value}'"):
        read_table(path)


@pytest.mark.parametrize("value", ["<5", "7,5 %", "1.234,5", "12O"])
def test_what_was_meant_as_a_number_is_named(value, tmp_path):
    text = "".join(f"{i};{value if i == 70 else i / 7};a;b\n" for i in range(100))
    with pytest.raises(ValueError, match=r"Expected numbers in column 'ldl' .*; line 72 has"):
        read_table(write(tmp_path, f"age;ldl;y;domain\n{text}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,a\n", r"column 'domain' with the domains in .* found the columns x, y.*--domain"),
        ("x,z,domain\n1,a,b\n", r"column 'y' or 'label' with the classes in .* x, z, domain.*--la"),
        ("x,y,label,domain\n1,a,a,b\n", "Expected one column 'y' or 'label'"),
        ("x,y,y,domain\n1,a,a,b\n", r"Expected one column 'y' .* x, y, y \(2\), domain"),
        ("y,domain\na,b\n", "Expected a column to make features of in .*, beside 'y' and 'domain'"),
        ("", r"found the columns \(none\)"),
        ("1,2,3\n4,5,6\n", "Expected the names of columns on line 1 of .*, found only numbers"),
        ("x,y,domain\n", "Expected rows in .*, found none below the header"),
        ("x,y,domain\n1,a\n", "Expected 3 values on line 2 of .*, found 2. Leave the place"),
        ("x,y,domain\n\n1,a,b,c\n", "3 values on line 3 .*found 4. Put values that contain a com"),
        ("x;y;domain\n1;a;b\n1,5;a\n", "Expected 3 values on line 3 of .*, found 2"),
        ("x,y,domain\n1,,b\n", "a value in column 'y' of .* on line 2, found none. Fill it in"),
        ("x,y,domain\n1,a,b\n1,a, ? \n", r"in column 'domain' of .* on line 3, found '\?'"),
        ('x,y,domain\n1,"a,b\n2,a,b\n', "on line 2 of .*the row goes on to line 3: a quote may"),
        ('x,y,domain\n"1,a,b\n' + 30000 * "1,a,b\n", "begins on line 2 .* quote may not be closed"),
        ("x,y,domain\n" + "".join(f"1,{i / 7},{i % 2}\n" for i in range(60)),
         "60 different ones in 60 rows"),
        ("a,b,y,domain\n" + "".join(f"u{i},v{i},{i % 2},d\n" for i in range(9)),
         "features of in .* found none. Column 'a' is left out: 9 different words"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, text))


def test_a_row_is_named_by_the_line_on_which_it_begins(tmp_path):
    text = 'x,note,y,domain\n1,"two\nlines",a,b\n2,"three\nmore\nlines",,b\n'
    with pytest.raises(ValueError, match=r"column 'y' of .* on line 4, found none"):
        read_table(write(tmp_path, text))


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path):
    path = write(tmp_path, "x,outcome,clinic\n1,a,b\n")
    with pytest.raises(ValueError, match=r"Unknown column of .* 'outcom'.*mean 'outcome'\?"):
        read_table(path, label="outcom", domain="clinic")
    with pytest.raises(ValueError, match=r"different columns of classes and of domains .*'clinic'"):
        read_table(path, label="clinic", domain="clinic")


def test_other_encodings_are_named(tmp_path):
    text = "x,y,domain\n1,a,b\n2,a,Zürich\n"
    with pytest.raises(ValueError, match=r"UTF-8 in .*, found the byte 0xfc on line 3.*Latin-1"):
        read_table(write(tmp_path, text, encoding="latin-1"))
    with pytest.raises(ValueError, match=r"found the byte 0xff on line 1.*UTF-16"):
        read_table(write(tmp_path, text, encoding="utf-16"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="found no file"):
        read_table(tmp_path / "none.csv")


# --- large ones ---------------------------------------------------------------------------------


def test_of_many_rows_as_many_of_each_domain_are_drawn(tmp_path):
    sizes = {"a": 10, "b": 100, "c": 300}
    lines = [f"{k},{'pq'[k % 2]},{name}\n" for name, size in sizes.items() for k in range(size)]
    path = write(tmp_path, "x,y,domain\n" + "".join(lines))
    drawn = [read_table(path, most=150, seed=seed) for seed in (0, 0, 1)]
    assert [len(part) for part in drawn[0].domains] == [10, 70, 70]
    for data in drawn:
        for part in data.domains:  # in their order, each once, with its own label
            values = part.inputs[:, 0].long()
            assert (values.diff() > 0).all()
            assert torch.equal(part.labels, values % 2)
    prints = [data.fingerprint() for data in drawn]
    assert prints[0] == prints[1] != prints[2]
    assert "150 of 410 rows were drawn, as many of each 'domain'." in drawn[0].table.notes
    assert read_table(path, most=410).table.notes == ()
    assert [len(part) for part in read_table(path, most=1).domains] == [1, 1, 1]


def test_large_files_show_how_far_they_are(tmp_path, monkeypatch, capsys):
    path = write(tmp_path, "x,z,y,domain\n" + rows(200, str))
    read_table(path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "_LARGE", 100)
    read_table(path)
    assert "reading clinics.csv [" in capsys.readouterr().err


# --- for a model that was trained on one --------------------------------------------------------


def test_features_of_another_table_with_the_same_columns(tmp_path):
    columns = (Column("age"), Column("ward", ("green", "red")))
    path = write(tmp_path, "ward;extra;age\nred;?;1,5\n\n?;x;NA\n")
    found = list(table_features(path, columns))
    assert [line for line, _ in found] == [2, 4]
    np.testing.assert_array_equal([x for _, x in found], [[1.5, 0, 1], [np.nan, 0, 0]])
    with pytest.raises(ValueError, match=r"it lacks ward, and has age"):
        list(table_features(write(tmp_path, "age\n1\n"), columns))
    with pytest.raises(ValueError, match=r"one of 'green', 'red' .*'ward' .*line 3 has 'blue'"):
        list(table_features(write(tmp_path, "age,ward\n1,red\n2,blue\n"), columns))
    with pytest.raises(ValueError, match=r"Expected numbers in column 'age' .*; line 2 has 'old'"):
        list(table_features(write(tmp_path, "age,ward\nold,red\n"), columns))
