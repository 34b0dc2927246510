"""Workbooks keep numbers, formulas and what formulas refer to; texts of cells are translated."""

import random

import pytest
from tests.documents.marked import CHANGES
from tests.documents.test_markup_placement import changed
from tests.documents.test_other_formats import A
from tests.documents.test_word_files import archive, contents
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

S = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
SHEET = (
    f'<worksheet {S}><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1"><v>1.50</v></c><c r="C1" t="str">'
    '<f>IF(A1="Yes, ""sir""","on","off")</f><v>off</v></c><c r="D1" s="2"><v>45123</v></c></row></sheetData>'
    '<dataValidations><dataValidation><formula1>"Low, High"</formula1></dataValidation></dataValidations></worksheet>'
)
TABLE = f'<table {S}><tableColumns><tableColumn id="1" name="Price &amp; tax"/></tableColumns></table>'
PARTS = {
    "[Content_Types].xml": "<Types/>",
    "xl/workbook.xml": f'<workbook {S}><sheets><sheet name="Sheet one" sheetId="1"/></sheets></workbook>',
    "xl/worksheets/sheet1.xml": SHEET,
    "xl/tables/table1.xml": TABLE,
    "xl/media/image1.png": b"\x89PNG",
}


def workbook(strings: str, **parts: str) -> bytes:
    others = {f"xl/{name.replace('__', '/')}.xml": part for name, part in parts.items()}
    shared = f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n<sst {S}>{strings}</sst>'
    return archive({**PARTS, "xl/sharedStrings.xml": shared, **others})


def strings(data: bytes) -> str:
    return contents(data)["xl/sharedStrings.xml"].decode().partition(f"<sst {S}>")[2].removesuffix("</sst>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<si><t>one two</t></si>", "<si><t>ONE TWO</t></si>"),
        ("<si><t>a &amp; b\nC {d} %s\n\n- e</t></si>", "<si><t>A &amp; B\nC {d} %s\n\n- E</t></si>"),
        ("<si><t>Yes, \"sir\"</t></si><si><t>High</t></si><si><t>Price &amp; tax</t></si><si><t>on</t></si>", None),
        ("<si><t>12</t></si><si><t/></si>", None),
        (
            "<si><r><rPr><b/></rPr><t>one</t></r><r><t xml:space=\"preserve\"> two</t></r><rPh><t>x</t></rPh></si>",
            "<si><r><rPr><b/></rPr><t>ONE</t></r><r><t xml:space=\"preserve\"> TWO</t></r><rPh><t>x</t></rPh></si>",
        ),
    ],
)  # fmt: skip
def test_texts_of_cells_are_translated_but_not_what_formulas_need(text: str, expected: str | None) -> None:
    data = workbook(text)
    document = FORMATS[".xlsx"].read(data)
    assert contents(document.with_runs([each.runs for each in document.segments])) == contents(data)
    found = changed(FORMATS[".xlsx"].read(data), str.upper)
    assert strings(found) == (expected or text)
    assert {**contents(found), "xl/sharedStrings.xml": b""} == {**contents(data), "xl/sharedStrings.xml": b""}


def test_comments_inline_texts_charts_and_text_boxes_are_translated() -> None:
    drawing = f'<d xmlns:a="{A}"><a:p><a:r><a:t>one</a:t></a:r></a:p><v>two</v></d>'
    parts = {
        "comments1": f"<comments {S}><author>me</author><text><r><t>one</t></r></text></comments>",
        "threadedComments__threadedComment1": '<T xmlns="urn:t"><text>one</text></T>',
        "worksheets__sheet2": f'<worksheet {S}><c t="inlineStr"><is><t>one</t></is></c><f>two</f></worksheet>',
        "charts__chart1": drawing,
        "drawings__drawing1": drawing,
    }
    found = contents(changed(FORMATS[".xlsx"].read(workbook("", **parts)), str.upper))
    for name, part in parts.items():
        assert found[f"xl/{name.replace('__', '/')}.xml"].decode().endswith(part.replace(">one<", ">ONE<"))


def test_lines_and_placeholders_of_a_cell_stay_in_any_translation() -> None:
    data = workbook("<si><t>One {a} two.\nThree %s\n</t></si><si><t> four</t></si>")
    for change in CHANGES.values():
        found = strings(changed(FORMATS[".xlsx"].read(data), change))
        assert (found.count("{a}"), found.count("%s"), found.count("\n"), found.count("<si>")) == (1, 1, 2, 2)


def test_sheets_without_texts_may_be_large() -> None:
    cells = "".join(f'<c r="A{row}" s="1"><v>{row}</v></c>' for row in range(250_000))
    parts = {"worksheets__sheet2": f"<worksheet {S}>{cells}</worksheet>", "media__x": str(random.Random(1).random())}
    assert len(FORMATS[".xlsx"].read(workbook("<si><t>one</t></si>", **parts)).segments) == 1


def test_other_archives_are_refused() -> None:
    for data, reason in (
        (b"x", "it is not a workbook (xlsx), or it is damaged"),
        (archive({"a": "b"}), "it has no part xl/workbook.xml, expected a workbook (xlsx)"),
        (workbook("<si>"), "xl/sharedStrings.xml is damaged: it is not XML"),
    ):
        with raises(DocumentError, reason):
            FORMATS[".xlsx"].read(data)
