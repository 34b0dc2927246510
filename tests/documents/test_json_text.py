"""JSON keeps everything but the strings of its values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents.marked import CHANGES, translated, variants
from tests.errors import raises

from translume.documents import FORMATS
from translume.errors import DocumentError

CASES = {
    "values, but no keys": (
        '{\n\t"a b": ["c", {"d" : "e"}],"f":1.50e3, "g": null}',
        '{\n\t"a b": ["C", {"d" : "E"}],"f":1.50e3, "g": null}',
    ),
    "plurals": (
        '{"a_one": "{{count}} b", "a_other": "{{count}} bs $t(c)"}',
        '{"a_one": "{{count}} B", "a_other": "{{count}} BS $t(c)"}',
    ),
    "messages of ICU": (
        '["a {n, plural, =0 {b} one {# c {d}} other {{e, select, x {# \\"f\\"} other {}}}} g", "{h, number} # i"]',
        '["A {n, plural, =0 {B} one {# C {d}} other {{e, select, x {# \\"F\\"} other {}}}} G", "{h, number} # I"]',
    ),
    "escapes": ('"a \\"b\\" \\/ c\\\\d é"', '"A \\"B\\" / C\\\\D É"'),
    "escapes in ASCII": (
        '"\\u00e9 \\u003cb\\u003ea\\u003c/b\\u003e \\ud83d\\ude00"',
        '"\\u00c9 \\u003cb\\u003eA\\u003c/b\\u003e \\ud83d\\ude00"',
    ),
    "lines": ('"a b\\nC d\\n\\n- e\\r\\n"', '"A B\\nC D\\n\\n- E\\r\\n"'),
    "half of a surrogate pair": ('"a \\ud83d b"', '"A \\ud83d B"'),
    "no texts": ('["", "1.0", "{{a}}", " ", "%s"]', '["", "1.0", "{{a}}", " ", "%s"]'),
    "a text only": ('"a"', '"A"'),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_translated_and_all_else_stays(name: str) -> None:
    text, expected = CASES[name]
    assert translated(".json", text) == expected


def test_each_placeholder_is_in_every_translation_once() -> None:
    for found in variants(".json", '["b {{c}}, {d} <1>e %s</1> <2/> f", "{{h}} i"]'):
        assert len(json.loads(found)) == 2
        assert all(found.count(tag) == 1 for tag in ("<1>", "</1>", "<2/>"))


values = st.recursive(
    st.text() | st.integers() | st.none() | st.floats(allow_nan=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)


@given(values, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(sorted(CHANGES)))
def test_any_json_keeps_its_structure(value: Any, narrow: bool, indent: int | None, change: str) -> None:
    text = json.dumps(value, ensure_ascii=narrow, indent=indent)
    assert without_texts(json.loads(translated(".json", text, CHANGES[change]))) == without_texts(value)


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_texts(each) for key, each in value.items()}
    return [*map(without_texts, value)] if isinstance(value, list) else "" if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON at line 1, column 1: Expecting value"),
        ('{\n "a": "b",}', "it is not JSON at line 2, column 11: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "its lists or objects are nested too deeply"),
        ('{"a":' * 100_000, "its lists or objects are nested too deeply"),
    ],
    ids=["empty", "comma", "lists", "objects"],
)
def test_other_files_are_refused(text: str, reason: str) -> None:
    with raises(DocumentError, reason):
        FORMATS[".json"].read(text.encode())


def test_numbers_of_any_length_stay() -> None:
    text = f'["a", {"9" * 10_000}]'
    assert translated(".json", text) == text.replace("a", "A")
