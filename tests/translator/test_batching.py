"""Windows keep the order of items; batches respect the token budget."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.engine.search import NativeSearch
from translume.errors import DataError
from translume.kernels.loading import has_kernels
from translume.parallel import in_order
from translume.translator import search
from translume.translator.planning import batches, windows


@given(sizes=st.lists(st.integers(0, 50)), lines=st.integers(1, 7), characters=st.integers(1, 99))
def test_windows_contain_the_items_in_order_and_are_bounded(sizes: list[int], lines: int, characters: int) -> None:
    found = list(windows(list(enumerate(sizes)), lines=lines, characters=characters))
    assert [item for window in found for item in window] == list(range(len(sizes)))
    for window in found:
        assert 0 < len(window) <= lines
        assert len(window) == 1 or sum(sizes[item] for item in window) <= characters


@given(lengths=st.lists(st.integers(1, 40)), max_tokens=st.integers(1, 200), shortest=st.integers(1, 30))
def test_batches_contain_each_text_once_within_the_budget(lengths: list[int], max_tokens: int, shortest: int) -> None:
    found = list(batches(lengths, max_tokens, shortest=shortest))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(shortest, *(lengths[index] for index in batch))
        assert len(batch) == 1 or len(batch) * longest <= max_tokens
    order = [lengths[index] for batch in found for index in batch]
    assert order == sorted(lengths, reverse=True)


def test_batches_of_an_example() -> None:
    assert list(batches([3, 9, 2, 3], 9)) == [[1], [0, 3, 2]]
    assert list(batches([3, 9, 2, 3], 9, shortest=4)) == [[1], [0, 3], [2]]


@given(st.lists(st.integers(0, 9), max_size=13), st.integers(1, 5))
def test_an_error_while_reading_items_is_raised_after_all_of_them(sizes: list[int], lines: int) -> None:
    def items() -> Iterator[tuple[int, int]]:
        yield from enumerate(sizes)
        raise DataError("line 14: broken")

    found: list[list[int]] = []
    with pytest.raises(DataError, match=r"^line 14: broken$"):
        found.extend(windows(items(), lines=lines, characters=17))
    assert [item for window in found for item in window] == list(range(len(sizes)))


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
@pytest.mark.parametrize("error", [ZeroDivisionError("of the caller"), OSError("no disk"), TypeError("wrong")])
def test_all_items_before_an_error_of_the_callers_generator_are_given_back(count: int, error: Exception) -> None:
    def items() -> Iterator[tuple[int, int]]:
        yield from ((number, 1) for number in range(count))
        raise error

    found: list[int] = []
    with pytest.raises(type(error)) as caught:
        found.extend(item for window in windows(items()) for item in window)
    assert caught.value is error
    assert found == list(range(count))
    shared: list[int] = []
    with pytest.raises(type(error)):
        shared.extend(in_order(lambda item: lambda: item[0], items(), 3))
    assert shared == list(range(count))


def test_a_stopped_reader_is_no_error_of_the_items() -> None:
    reader = windows((number, 1) for number in range(2000))
    next(reader)
    reader.close()


@pytest.mark.skipif(not has_kernels(), reason="no kernels")
def test_sentences_that_are_searched_at_once_have_bounded_keys_and_values(make, monkeypatch):
    translator, texts = make("decoding.beam=3").compile("fp32"), [f"a b{'c' * size}" for size in range(12)]
    expected, held = [each.text for each in translator.translate_all(texts)], []
    begin = NativeSearch.enter

    def enter(self, state, last, limits, *rest):
        held.append(sum(translator.engine.cache_bytes(state.cache.cross.shape[3], int(each), 3) for each in limits))
        return begin(self, state, last, limits, *rest)

    monkeypatch.setattr(NativeSearch, "enter", enter)
    assert [each.text for each in translator.translate_all(texts)] == expected
    [together] = held
    held.clear()
    tokens = translator.config.decoding.max_tokens
    monkeypatch.setattr(search, "TOKEN_CACHE_BYTES", together / 2 / tokens)
    assert [each.text for each in translator.translate_all(texts)] == expected
    assert len(held) > 2
    assert max(held) <= together / 2
