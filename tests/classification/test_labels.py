"""Labels and their ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.errors import DataError, ModelFolderError
from translume.text import Labels

NAMES = st.lists(
    st.text("abcdé -", min_size=1).map(lambda name: " ".join(name.split())).filter(bool), min_size=2, unique=True
)


@given(NAMES, st.sampled_from(["", "|"]))
def test_labels_round_trip_through_json_and_ids(names, separator):
    labels = Labels.collect(names, separator)
    assert list(labels.names) == sorted(names)
    again = Labels.from_json(labels.to_json())
    assert (again, again.digest) == (labels, labels.digest)
    for name in names:
        assert labels.decode(labels.encode(name, "here")) == name


def test_labels_are_split_at_the_separator_if_there_is_one():
    assert Labels.collect(["b, a", "c"], ",").names == ("a", "b", "c")
    assert Labels.collect(["b, a", "c"]).names == ("b, a", "c")
    assert Labels(("a", "b", "c"), ",").encode("c,a, c,", "here") == [0, 2]


@pytest.mark.parametrize(
    ("names", "text", "wanted"),
    [
        (("cat", "dog"), "cot", "f:3: label 'cot' is not in the training data; did you mean 'cat'?"),
        (("cat", "dog"), " ", "f:3: no label, expected one"),
        (("cat", "dog"), "7", "f:3: label '7' is not in the training data; known: cat, dog"),
        (tuple(map(str, range(100, 199))), "x", "f:3: label 'x' is not in the training data; it has 99 others"),
    ],
)
def test_an_unknown_label_is_an_error_with_its_place(names, text, wanted):
    with pytest.raises(DataError) as error:
        Labels(names).encode(text, "f:3")
    assert str(error.value) == wanted


def test_a_single_label_is_an_error():
    with pytest.raises(DataError) as error:
        Labels.collect(["a", "a"])
    assert str(error.value) == "data: 1 label in the training data, expected at least 2"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"labels": ["b", "a"], "separator": ""}', '{"labels": "ab", "separator": ""}']
)
def test_a_damaged_file_is_an_error(text):
    with pytest.raises(ModelFolderError) as error:
        Labels.from_json(text, "m/labels.json")
    assert str(error.value) == "m/labels.json: damaged: not labels as Translume writes them"
