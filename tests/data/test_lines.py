"""Lines: only \\n and \\r\\n end them, bytes are decoded strictly, errors name the place."""

import bz2
import gzip
import io
import lzma
import re
import sys

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.data import lines as room
from translume.data.lines import count_lines, read_lines
from translume.errors import DataError

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\ufeff"), max_size=12)
PACKED = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@given(lines=st.lists(TEXT, max_size=9), end=st.sampled_from(["\n", "\r\n"]), block=st.integers(1, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("suffix", list(PACKED))
def test_lines_are_read_back_with_any_block_size(tmp_path, monkeypatch, suffix, lines, end, block):
    monkeypatch.setattr(room, "_BLOCK", block)
    path = tmp_path / f"some.txt{suffix}"
    path.write_bytes(PACKED[suffix]("".join(line + end for line in lines).encode()))
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


def test_only_newlines_end_lines(write):
    text = "one\u2028still\u2029one\x0b\x0c\x1c\x85end\ntwo\rtwo\r\n\nlast"
    assert list(read_lines(write("a.txt", text))) == [
        "one\u2028still\u2029one\x0b\x0c\x1c\x85end",
        "two\rtwo",
        "",
        "last",
    ]
    assert count_lines(write("a.txt", text)) == 4


def test_byte_order_mark_is_removed(write):
    assert list(read_lines(write("a.txt", "\ufeffone\n\ufefftwo\n"))) == ["one", "\ufefftwo"]


def test_broken_utf8_names_file_line_and_column(write):
    content = b"ein Satz\n" * 811 + "schön wäre es \r\n".encode()[:15] + b"\xff!\n" + b"noch einer\n"
    path = write("train.de", content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert one_line(error) == f"{path}:812: not UTF-8 (byte 0xff at column 14)"


@given(lines=st.lists(TEXT, max_size=9), end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_lines_before_a_broken_one_are_read(tmp_path, lines, end, mark):
    path = tmp_path / "some.txt"
    text = "\ufeff" * mark + "".join(line + end for line in lines)
    path.write_bytes(text.encode() + b"so \xff" + end.encode() + b"later" + end.encode())
    found = []
    with pytest.raises(DataError) as error:
        found.extend(read_lines(path))
    assert found == lines
    assert one_line(error).startswith(f"{path}:{len(lines) + 1}: not UTF-8 (byte 0xff at column ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "my pairs.csv",
            "Englisch;Deutsch\r\na;schön\r\n".encode("cp1252"),
            "{path}:2: not UTF-8 (byte 0xf6 at column 6); if it is Windows-1252, convert it: "
            "iconv -f WINDOWS-1252 -t UTF-8 '{path}' > '{home}/my pairs.utf-8.csv'",
        ),
        (
            "train.de.gz",
            gzip.compress("schön\n".encode("cp1252"), mtime=0),
            "{path}:1: not UTF-8 (byte 0xf6 at column 4); if it is Windows-1252, convert it: "
            "zcat {path} | iconv -f WINDOWS-1252 -t UTF-8 > {home}/train.utf-8.de",
        ),
        (
            "a.csv",
            "a;ä\n".encode("utf-16"),
            "{path}:1: not UTF-8 (byte 0xff at column 1) but UTF-16; convert it: "
            "iconv -f UTF-16 -t UTF-8 {path} > {home}/a.utf-8.csv",
        ),
        ("a.csv", "sch\u00f6n ".encode() + b"\xe4!\n", "{path}:1: not UTF-8 (byte 0xe4 at column 7)"),
        (
            "a.xlsx",
            b"PK\x03\x04\x14\x00\xff\xff",
            "{path}: not text: a zip archive, as spreadsheets and office documents are; save the table as CSV in UTF-8",
        ),
        ("a.txt", gzip.compress(b"a\n", mtime=0), "{path}: not text: compressed with gzip; rename it to end in .gz"),
        ("a.txt", bz2.compress(b"a\n"), "{path}: not text: compressed with bzip2; rename it to end in .bz2"),
        ("a.txt", lzma.compress(b"a\n"), "{path}: not text: compressed with xz; rename it to end in .xz"),
    ],
    ids=["cp1252", "gzip of cp1252", "utf-16", "two encodings", "zip", "gzip", "bzip2", "xz"],
)
def test_a_file_in_another_encoding_is_refused_with_the_command_that_converts_it(write, name, content, message):
    path = write(name, content)
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert one_line(error) == message.format(path=path, home=path.rpartition("/")[0])


def test_text_cut_inside_a_character_is_broken(write):
    path = write("train.de", "schö".encode()[:-1])
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert one_line(error) == f"{path}:1: not UTF-8 (byte 0xc3 at column 4)"


def test_missing_files_and_folders_are_one_line_errors(tmp_path):
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / 'no.txt'))}: no such file$"):
        list(read_lines(tmp_path / "no.txt"))
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}: is a folder, expected a file$"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("suffix", list(PACKED)[1:])
def test_truncated_archive_is_an_error(write, suffix):
    whole = PACKED[suffix]("".join(f"line {i}\n" for i in range(5000)).encode())
    path = write(f"a{suffix}", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"^{re.escape(path)}: damaged compression: "):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", list(PACKED)[1:])
def test_invalid_archive_is_an_error(write, suffix):
    path = write(f"a{suffix}", "plain text under the wrong name\n")
    with pytest.raises(DataError, match=f"^{re.escape(path)}: damaged compression: "):
        list(read_lines(path))


def test_concatenated_archives_are_read_as_one_file(write):
    for suffix in list(PACKED)[1:]:
        path = write(f"a{suffix}", PACKED[suffix](b"one\n") + PACKED[suffix](b"two\n"))
        assert list(read_lines(path)) == ["one", "two"]


def test_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\nb".encode()), encoding="ascii"))
    assert list(read_lines("-")) == ["ä", "b"]


def test_very_long_line_is_read_in_linear_time(write):
    assert [len(line) for line in read_lines(write("a.txt", "x" * 30_000_000))] == [30_000_000]


def test_messages_name_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntw\xff\n")))
    with pytest.raises(DataError) as error:
        list(read_lines("-"))
    assert one_line(error) == (
        "standard input:2: not UTF-8 (byte 0xff at column 3); if it is Windows-1252, convert it: "
        "iconv -f WINDOWS-1252 -t UTF-8"
    )


OLD = "{path}: lines end with a carriage return only, expected \\n or \\r\\n; convert it: "


@pytest.mark.parametrize(
    ("name", "content", "convert"),
    [
        ("a.en", b"one\rtwo\rthree\r", "tr '\\r' '\\n' < {path} > {home}/a.lines.en"),
        ("a.csv", b"\xef\xbb\xbfone;two\rthree;four", "tr '\\r' '\\n' < {path} > {home}/a.lines.csv"),
        ("a.en.gz", gzip.compress(b"one\rtwo", mtime=0), "zcat {path} | tr '\\r' '\\n' > {home}/a.lines.en"),
        ("a.xz", lzma.compress(b"a\r" * 3_000_000), "xzcat {path} | tr '\\r' '\\n' > {home}/a.lines"),
    ],
)
def test_a_file_of_an_old_mac_is_named_with_the_command_that_converts_it(write, name, content, convert):
    path = write(name, content)
    for reads in (count_lines, lambda file: list(read_lines(file))):
        with pytest.raises(DataError) as error:
            reads(path)
        assert one_line(error) == (OLD + convert).format(path=path, home=path.rpartition("/")[0])


@pytest.mark.parametrize("text", ["one\r", "one\r\r", "\r", "a\rb\n", "a\r\nb\rc\r\n", ""])
def test_carriage_returns_in_other_places_are_no_line_ends(write, text):
    path = write("a.en", text.encode())
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    assert list(read_lines(path)) == (expected[:-1] if text.endswith("\n") or not text else expected)
    assert count_lines(path) == len(list(read_lines(path)))
