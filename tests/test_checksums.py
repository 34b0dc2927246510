"""Checksums: every flipped bit is found where it is used, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume import checksums
from translume.checksums import BlockSums, CheckedArray, DamagedBlockError, DigestError, sealed, unsealed

VALUES = st.dictionaries(
    st.text(max_size=3), st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
)


@given(pieces=st.lists(st.binary(max_size=40)), cut=st.integers(0, 9))
def test_sums_do_not_depend_on_the_pieces_in_which_a_file_is_written(pieces: list[bytes], cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "BLOCK", 7)
        whole, first = BlockSums(), BlockSums()
        whole.add(b"".join(pieces))
        for piece in pieces[:cut]:
            first.add(piece)
        rest = BlockSums(first.sums, first.size)  # in another process
        for piece in pieces[cut:]:
            rest.add(piece)
        assert (rest.sums, rest.size) == (whole.sums, whole.size)


@pytest.mark.parametrize("width", [1, 3])
@given(bit=st.integers(0, 8 * 2 * 90 - 1), begin=st.integers(0, 29), length=st.integers(0, 29))
def test_a_flipped_bit_is_found_when_its_block_is_used(width: int, bit: int, begin: int, length: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "BLOCK", 17)
        values = np.arange(90, dtype=np.uint16).reshape(-1, width)
        sums = BlockSums()
        sums.add(values.tobytes())
        values.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
        array = CheckedArray(Path("a"), values, sums.sums)
        end = min(begin + length, len(values))
        step, block = 2 * width, bit // 8 // 17
        used = end > begin and begin * step // 17 <= block <= (end * step - 1) // 17
        wrong = f"a: damaged: the checksum of its block {block + 1} is wrong"
        if used:
            with pytest.raises(DamagedBlockError, match=wrong):
                array.check(np.array([begin]), np.array([end]))
        elif end > begin:
            array.check(np.array([begin]), np.array([end]))
        with pytest.raises(DamagedBlockError, match=wrong):
            array.check_all()


@given(VALUES)
def test_a_sealed_document_is_read_back_and_no_other(values: dict[str, object]) -> None:
    values.pop("sha256", None)
    text = sealed(values)
    assert unsealed(text) == (values, True)
    with pytest.raises(DigestError):
        unsealed(text.replace("{", '{"and one more": 1,', 1))


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=9), changed=st.integers(0, 2**64 - 1))
def test_another_word_or_order_has_another_sum(words: list[int], changed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "BLOCK", 32)
        values = np.array(words, np.uint64)
        expected = checksums.word_sums(values)
        assert len(expected) == -(-len(words) // 4)
        for place in range(len(words)):
            other = values.copy()
            other[place] = changed
            assert (checksums.word_sums(other) == expected).all() == (changed == words[place])
        swapped = values[[1, 0, *range(2, len(words))]]
        assert (checksums.word_sums(swapped) == expected).all() == ((2 * (words[0] - words[1])) % 2**64 == 0)
        assert (checksums.word_sums(values.view(np.uint8)[:-1]) == expected).all() == (words[-1] < 2**56)
