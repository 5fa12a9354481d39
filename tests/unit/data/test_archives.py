"""Archives of data sets: unpacked where asked, and nowhere else."""

import io
import tarfile
import zipfile

import pytest

from hessalign.data import extract_archive


def make_zip(path, names):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, name)
    return path


def make_tar(path, names, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            entry.size = len(name) if kind == tarfile.REGTYPE else 0
            entry.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
            file.addfile(entry, io.BytesIO(name.encode()))
    return path


@pytest.mark.parametrize(("make", "name"), [(make_zip, "a.zip"), (make_tar, "a.tar.gz")])
def test_files_are_unpacked(tmp_path, make, name):
    archive = make(tmp_path / name, ["kfold/photo/dog/1.png", "kfold/readme..txt"])
    files = extract_archive(archive, tmp_path / "out")
    assert [str(file.relative_to(tmp_path / "out")) for file in files] == [
        "kfold/photo/dog/1.png",
        "kfold/readme..txt",
    ]
    assert files[0].read_text() == "kfold/photo/dog/1.png"


@pytest.mark.parametrize(("make", "name"), [(make_zip, "a.zip"), (make_tar, "a.tar.gz")])
@pytest.mark.parametrize(
    "evil", ["../evil", "good/../../evil", "/tmp/evil", "..\\evil", "C:\\evil"]
)
def test_paths_that_climb_out_are_refused_before_anything_is_written(tmp_path, make, name, evil):
    archive = make(tmp_path / name, ["good.txt", evil])
    with pytest.raises(
        ValueError, match=r"Refused to unpack .* leads out of the folder. Nothing w"
    ):
        extract_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    archive = make_tar(tmp_path / "a.tar.gz", ["link"], kind)
    with pytest.raises(ValueError, match="'link' is a link or a device"):
        extract_archive(archive, tmp_path / "out")


def test_links_in_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        file.writestr(entry, "/etc")
    with pytest.raises(ValueError, match="'link' is a link or a device"):
        extract_archive(tmp_path / "a.zip", tmp_path / "out")


def test_what_is_no_archive(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected an archive, found no file"):
        extract_archive(tmp_path / "a.zip", tmp_path)
    (tmp_path / "a.zip").write_text("text")
    with pytest.raises(ValueError, match="Expected a zip or tar file"):
        extract_archive(tmp_path / "a.zip", tmp_path)


def test_a_damaged_archive_is_named(tmp_path):
    archive = make_zip(tmp_path / "a.zip", ["a" * 100])
    content = bytearray(archive.read_bytes())
    content[140] ^= 1
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.zip is damaged: .*Obtain it again"):
        extract_archive(archive, tmp_path / "out")
