"""Warnings about finished targets, and placeholders that a target must contain."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.config.decoding import PLACEHOLDERS
from translume.errors import SettingsError
from translume.translator.assembly import longest_repetition, quality_warnings, short_by_words
from translume.translator.constraints import lost_placeholders, placeholders_of

ALL = PLACEHOLDERS


@pytest.mark.parametrize(
    ("text", "kinds", "wanted"),
    [
        ("In 1999 he paid 1,000.50 for 3-5 .", ALL, ["1999", "1,000.50", "3-5"]),
        ("a1 1a 2nd B52 x.5 1/1a", ALL, []),
        ("See https://a.org/x?y=1, or www.b.de.", ALL, ["https://a.org/x?y=1", "www.b.de"]),
        ("<b>bold</b> <br/> {name} a < b", ALL, ["<b>", "</b>", "<br/>", "{name}"]),
        ("{{x}} %s %(n)d %", ALL, ["{{x}}", "%s", "%(n)d"]),
        ('<a href="http://a.org/1">5</a>', ALL, ['<a href="http://a.org/1">', "5", "</a>"]),
        ('<a href="http://a.org/1">5</a>', ("number",), ["1", "5"]),
        ("5 and 5", ("number",), ["5", "5"]),
        ("5", (), []),
        ("这个村庄有4,909个居民，1973年。", ("number",), ["4,909", "1973"]),
        ("주민은 4,909명이다. 村には4,909人いる。4คน", ("number",), ["4,909", "4,909", "4"]),
        (
            "<0>a</0> <1/> %1$s {0} {user.name} ${x} %{y} %5.2f %@ {n:N2}",
            ("tag",),
            ["<0>", "</0>", "<1/>", "%1$s", "{0}", "{user.name}", "${x}", "%{y}", "%5.2f", "%@", "{n:N2}"],
        ),
        ("<b>{a}</b> 100% sure, 50 % d'accord, %d{", ("variable",), ["{a}", "%d"]),
        (
            "Ask joe.b+c@example.co.uk, or 请joe@example.com。",
            ("email", "mention"),
            ["joe.b+c@example.co.uk", "joe@example.com"],
        ),
        ("@name and @a.b: (@c_1). 看@name看 x@ @", ("mention",), ["@name", "@a.b", "@c_1", "@name"]),
        ("#tag #日本 C# #1 &#39; /a#b 看#tag", ("hashtag",), ["#tag", "#日本", "#tag"]),
        ("http://a.org/#tag https://x@y.org", ALL, ["http://a.org/#tag", "https://x@y.org"]),
    ],
)
def test_placeholders_are_found_in_order(text: str, kinds: tuple[str, ...], wanted: list[str]) -> None:
    assert placeholders_of(text, kinds) == wanted


def test_placeholders_of_long_texts_take_time_in_proportion() -> None:
    begin = time.process_time()
    assert len(placeholders_of("12 " * 60_000, ALL)) == 60_000
    for repeated in (
        "{",
        "{ ",
        "%",
        "%0",
        "%-",
        "0",
        "a",
        "a.",
        "a@",
        "#",
        "#1",
        "@",
        "@a.",
        "<a ",
        "<",
        "1,",
        "www.",
        "$",
    ):
        placeholders_of(repeated * 60_000, ALL)
        placeholders_of("{" + " " * 60_000 + repeated * 60_000, ALL)
    assert time.process_time() - begin < 5  # the square of the length would take minutes


@given(st.text("15., ab<>/{}@#%$s有:-_", max_size=30))
def test_a_text_contains_its_own_placeholders(text: str) -> None:
    assert lost_placeholders(placeholders_of(text, ALL), text) == []


@pytest.mark.parametrize(
    ("wanted", "target", "lost"),
    [
        (["5"], "150 or 5.5", ["5"]),
        (["5"], "It is 5.", []),
        (["#a"], "#a/1", []),
        (["5", "5"], "5", ["5"]),
        (["<b>"], "x<b>y", []),
        (["www.b.de"], "www.b.de!", []),
        (["4,909"], "这个村庄有4,909个居民。", []),
        (["4,909"], "주민은 4,909명이다", []),
        (["4,909"], "有14,909个", ["4,909"]),
        (["4,909"], "有4,9090个", ["4,909"]),
        (["#tag"], "#tags", ["#tag"]),
        (["%1$s"], "%1$s个", []),
    ],
)
def test_a_placeholder_counts_only_as_a_separate_word(wanted: list[str], target: str, lost: list[str]) -> None:
    assert lost_placeholders(wanted, target) == lost


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_the_longest_repetition_equals_that_of_an_exhaustive_search(words: list[str]) -> None:
    most = 0
    for length in range(1, 9):
        for begin in range(len(words)):
            block, times = words[begin : begin + length], 0
            while len(block) == length and words[begin + times * length : begin + (times + 1) * length] == block:
                times += 1
            most = max(most, times)
    times, loop = longest_repetition(words)
    assert times == most
    assert " ".join(loop * times) in " ".join(words)


@pytest.mark.parametrize(
    ("source", "target", "cut", "wanted"),
    [
        ("a b c", "x y z", False, []),
        ("a b c", "x y z", True, ["truncated: the target reached its limit of tokens before its end"]),
        ("a b", "ha ha ha ha", False, ["repetition: 'ha' stands 4 times in a row"]),
        ("ha ha ha ha", "ha ha ha ha", False, []),
        ("a b", "so a day so a day so a day so a day .", False, ["repetition: 'so a day' stands 4 times in a row"]),
        ("a b", "ha ha ha", False, []),
    ],
)
def test_warnings_of_a_target(source: str, target: str, cut: bool, wanted: list[str]) -> None:
    assert quality_warnings(source, target, cut=cut) == wanted


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        ("a b c d e f g h i j", "x y", ["low_source_use: 2 words for 10 of the source"]),
        ("a b c d e f g h i j", "x y z", []),
        ("a b c d e f g h i", "x", []),
        ("The village has many good and old houses today .", "这个村庄有。", []),
    ],
)
def test_a_target_far_shorter_than_its_source_is_a_warning(source: str, target: str, wanted: list[str]) -> None:
    assert short_by_words(source, target) == wanted


def test_an_unknown_kind_of_placeholder_is_refused() -> None:
    from translume.config import Config

    with pytest.raises(SettingsError) as error:
        Config().change("decoding.placeholders=['numbr']")
    assert "found 'numbr'; did you mean 'number'?" in str(error.value)
    assert DecodingSettings(placeholders=("url",)).placeholders == ("url",)
