"""Documents on the command line: translated as a whole, in their format."""

import io
import os
import re
from pathlib import Path

import pytest

from translume.documents import FORMATS, ZIPPED

docx = pytest.importorskip("docx", reason="python-docx is not installed")


@pytest.fixture(scope="module")
def folder(train_for_a_moment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model `m` and documents."""
    folder = train_for_a_moment(tmp_path_factory.mktemp("documents"), m=1)
    document = docx.Document()
    document.add_paragraph("ab kl. ").add_run("cde").bold = True
    document.save(str(folder / "report.docx"))
    (folder / "page.html").write_text("<p class=x>ab <b>kl</b></p>\n", encoding="utf-8")
    (folder / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nab kl\n", encoding="utf-8")
    (folder / "lines.txt").write_text("ab kl\ncde a\n", encoding="utf-8")
    return folder


def test_a_word_document_is_written_to_standard_output_or_a_file(run, folder: Path) -> None:
    found = run("translate", folder / "m", folder / "report.docx")
    assert (found.exit_code, found.stderr) == (0, "")
    (paragraph,) = docx.Document(io.BytesIO(found.stdout_bytes)).paragraphs
    assert [each.bold for each in paragraph.runs] == [None, True]
    assert run("translate", folder / "m", folder / "report.docx", "--out", folder / "x.docx").stdout == ""
    assert (folder / "x.docx").read_bytes() == found.stdout_bytes


def test_html_and_subtitles_keep_their_markup(run, folder: Path) -> None:
    found = run("translate", folder / "m", folder / "page.html").stdout
    assert re.findall("<.*?>", found) == ["<p class=x>", "<b>", "</b>", "</p>"]
    text = run("translate", folder / "m", text="ab kl\n").stdout
    assert "".join(re.sub("<.*?>", "", found).split()) == "".join(text.split())
    found = run("translate", folder / "m", folder / "film.srt").stdout
    assert found == f"1\n00:00:01,000 --> 00:00:02,000\n{text}"


def test_documents_are_split_into_sentences_as_decoding_split_says(run, folder: Path) -> None:
    (folder / "two.html").write_text("<p>Ab kel. Cde a.</p>", encoding="utf-8")
    texts = ("Ab kel.\nCde a.\n", "Ab kel. Cde a.\n")
    apart, whole = ("".join(run("translate", folder / "m", text=text).stdout.split()) for text in texts)
    for option, wanted in {"always": apart, "never": whole}.items():
        found = run("translate", folder / "m", folder / "two.html", "--split", option).stdout
        assert "".join(re.sub("<.*?>", "", found).split()) == wanted
    assert apart != whole


def test_plain_text_is_translated_line_by_line_also_to_a_file(run, folder: Path) -> None:
    found = run("translate", folder / "m", folder / "lines.txt")
    assert len(found.stdout.splitlines()) == 2
    assert run("translate", folder / "m", folder / "lines.txt", "--out", folder / "o.txt").stdout == ""
    assert (folder / "o.txt").read_text(encoding="utf-8") == found.stdout


def test_faults_of_a_document_are_one_line_that_names_it_and_write_nothing(run, folder: Path) -> None:
    (folder / "broken.docx").write_bytes(b"no zip")
    (folder / "long.html").write_text(f"<p>{'ab ' * 2000}", encoding="utf-8")
    faults = {
        "broken.docx": "it is not a Word document (docx), or it is damaged",
        "gone.docx": "no such file",
        "long.html": "the text has 5,999 tokens, expected at most 1,023; decoding.max_length_action = "
        '"truncate" (--max-length-action truncate) cuts it, decoding.split = "always" (--split always) splits it at '
        "sentences",
    }
    for name, reason in faults.items():
        found = run("translate", folder / "m", folder / name, "--out", folder / "none")
        assert (found.exit_code, found.stderr) == (1, f"Error: {folder / name}: {reason}\n")
        assert not (folder / "none").exists()


@pytest.mark.parametrize("option", ["--json", "--nbest=2"])
def test_options_about_lines_are_refused_for_documents(run, folder: Path, option: str) -> None:
    found = run("translate", folder / "m", folder / "page.html", option)
    reason = f"{option.partition('=')[0]} cannot be combined with {folder / 'page.html'}, which is a document"
    assert (found.exit_code, found.stderr, found.stdout) == (1, f"Error: {reason}\n", "")


def test_an_output_folder_that_does_not_exist_is_refused_before_translating(run, folder: Path) -> None:
    found = run("translate", folder / "none", folder / "page.html", "--out", folder / "gone" / "x.html")
    assert (found.exit_code, found.stderr) == (1, f"Error: {folder / 'gone'}: no such folder\n")


def test_an_archive_is_not_written_to_a_terminal(folder: Path, warm_python: Path) -> None:
    import pty
    import subprocess

    main, terminal = pty.openpty()
    command = [warm_python, "-m", "translume", "translate", "none", str(folder / "report.docx")]
    done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(main)
    os.close(terminal)
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: {folder / 'report.docx'}: a terminal cannot show a .docx file; add `> FILE.docx` or --out FILE\n",
    )


def test_archives_are_formats() -> None:
    assert set(FORMATS) >= ZIPPED
