"""CSV files of numbers with labels and domains."""

import pytest
import torch

from hessalign.bench.data import read_dataset, read_number_table


def write(folder, text, name="clinics.csv"):
    path = folder / name
    path.write_text(text)
    return path


def test_columns_in_any_order_names_and_numbers(tmp_path):
    text = "domain,age,label,pulse\nsouth,1,ill,10\nnorth,2,well,20\n\nsouth,3,well,30\n"
    data = read_number_table(write(tmp_path, text))
    assert (data.name, data.domain_names, data.classes) == (
        "clinics",
        ("north", "south"),
        ("ill", "well"),
    )
    south = data.domains[1]
    torch.testing.assert_close(south.inputs, torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    assert south.labels.tolist() == [0, 1]


def test_numbers_are_sorted_by_value(tmp_path):
    rows = "".join(f"0.5,{y},{d}\n" for y, d in ((10, 2), (9, 10)))
    data = read_number_table(write(tmp_path, "x,y,domain\n" + rows))
    assert data.classes == ("9", "10")
    assert data.domain_names == ("2", "10")


def test_any_source_of_data_includes_tables_but_not_manifests(tmp_path):
    data = read_dataset(write(tmp_path, "x,y,domain\n1,a,b\n"))
    assert data.classes == ("a",)
    manifest = write(tmp_path, "path,class,domain\n1.png,a,b\n", "images.csv")
    with pytest.raises(FileNotFoundError, match="lists files that do not exist"):
        read_dataset(manifest)


@pytest.mark.parametrize("value", ["nan", "inf", "", "high", "1e39", "-1e300"])
def test_a_row_that_is_not_numbers_is_named(value, tmp_path):
    path = write(tmp_path, f"age,pulse,y,domain\n1,2,a,b\n3,{value},a,b\n")
    text = rf"row 2 \(line 3\) has '{value}' in column 'pulse'. Fill it in, or leave the row out"
    with pytest.raises(ValueError, match=text):
        read_number_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,a\n", "one column domain .* found the columns x, y"),
        ("x,y,label,domain\n1,a,a,b\n", "Expected one column y"),
        ("y,domain\na,b\n", "at least one feature"),
        ("", r"found the columns \(none\)"),
        ("x,y,domain\n", "found no lines besides the header"),
        ("x,y,domain\n1,a\n", "Expected 3 values on line 2 of .*, found 2"),
        ("x,y,domain\n1,,b\n", "Expected a value for 'y' on line 2"),
        ('x,y,domain\n"1,a,b\n' + 30000 * "1,a,b\n", "Cannot read line .* quote may not be closed"),
    ],
)
def test_mistakes_are_named(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_number_table(write(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="found no file"):
        read_number_table(tmp_path / "none.csv")
