"""Training a tokenizer, saving and loading it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from translume.checksums import unsealed
from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.text import Tokenizer, train_tokenizer

CORPUS = ["low low low low low lower lower newest newest newest newest newest newest widest widest widest"]
KINDS = ("bpe", "unigram", "wordpiece", "character", "byte", "word")


def test_merges_are_those_worked_out_by_hand():
    """Pairs "e s" and "s t" count 9 (6 newest, 3 widest); of equals, the first in the alphabet. Then "es t" with 9."""
    tokenizer = train_tokenizer(TokenizerSettings(size=259 + 11 + 2), CORPUS)
    assert tokenizer.pieces()[-2:] == ["es", "est"]
    assert tokenizer.tokens(tokenizer.encode("lowest")) == ["▁", "l", "o", "w", "est"]


def test_pieces_come_from_merges_in_order():
    tokenizer = train_tokenizer(TokenizerSettings(size=400), CORPUS)
    assert tokenizer.tokens(tokenizer.encode("low newest lowest")) == ["▁low", "▁newest", "▁low", "est"]


def test_a_unigram_vocabulary_has_the_likely_words():
    tokenizer = train_tokenizer(TokenizerSettings(kind="unigram", size=259 + 11 + 6), CORPUS * 20)
    assert tokenizer.tokens(tokenizer.encode("low newest")) == ["▁low", "▁newest"]
    assert len(tokenizer) <= 276


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_never_exceeded(kind):
    assert len(train_tokenizer(TokenizerSettings(kind=kind, size=280), CORPUS)) <= 280


TRAIN = """
import sys
from translume.checksums import unsealed
from translume.config import TokenizerSettings
from translume.text import train_tokenizer
text = [" ".join(f"{a}{b}" for a in "ab cde fgh".split() for b in "xyzabcde") + " 我喜欢狗 喜欢我"] * 3
for kind in ("bpe", "unigram", "wordpiece", "character", "byte", "word"):
    print(train_tokenizer(TokenizerSettings(kind=kind, size=330), text).digest)
"""


def test_training_again_gives_the_same_file():
    found = {
        subprocess.run(
            [sys.executable, "-c", TRAIN],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character", "word"])
@pytest.mark.parametrize("texts", [[], ["", "   "]])
def test_training_on_empty_text_is_refused(kind, texts):
    with pytest.raises(DataError) as error:
        train_tokenizer(TokenizerSettings(kind=kind), texts)
    wanted = f"tokenizer: found no text to learn from in {len(texts)} lines, expected at least one character"
    assert str(error.value) == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"size": 200}, "270 (3 special tokens, 256 bytes, 11 characters)"),
        ({"size": 12, "unknown": "token"}, "15 (4 special tokens, 11 characters)"),
        ({"size": 12, "unknown": "token", "kind": "unigram"}, "15 (4 special tokens, 11 characters)"),
        ({"size": 259, "kind": "word"}, "260 (3 special tokens, 256 bytes, 1 word)"),
        (
            {"size": 262, "languages": ("de", "en", "fr")},
            "273 (3 special tokens, 256 bytes, 3 languages, 11 characters)",
        ),
    ],
)
def test_a_size_too_small_says_what_it_must_hold(values, wanted):
    languages = values.get("languages", ())
    chosen = TokenizerSettings(**{name: value for name, value in values.items() if name != "languages"})
    with pytest.raises(SettingsError) as error:
        train_tokenizer(chosen, CORPUS, languages)
    assert str(error.value) == f"tokenizer.size: found {values['size']}, expected at least {wanted}"


def test_rare_characters_become_bytes_in_a_small_vocabulary():
    texts = ["abcdefgh " * 1000, "我"]
    tokenizer = train_tokenizer(TokenizerSettings(size=259 + 12), texts)
    assert tokenizer.tokens(tokenizer.encode("我")) == ["<0xE6>", "<0x88>", "<0x91>"]
    roomy = train_tokenizer(TokenizerSettings(size=259 + 30), texts)
    assert roomy.tokens(roomy.encode("我")) == ["我"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unknown", ["bytes", "token"])
def test_a_saved_tokenizer_is_the_same_tokenizer(kind, unknown, tmp_path: Path):
    settings = TokenizerSettings(
        kind=kind, unknown=unknown, size=300, lowercase=True, whitespace="keep", normalization="nfkc"
    )
    tokenizer = train_tokenizer(settings, [*CORPUS, "▁ \x01 \u2028 我喜欢"])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.settings == tokenizer.settings == settings
    assert again.specials == tokenizer.specials
    assert again.pieces() == tokenizer.pieces()
    assert again.to_json() == tokenizer.to_json()
    written = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert unsealed(written) == (json.loads(tokenizer.to_json()), True)
    assert again.digest == hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
    text = "LOWEST ☃ ▁ 我喜  x"
    assert again.encode(text) == tokenizer.encode(text)
    if kind == "bpe":
        assert again.drop(again.encode(text), 0.5, 3) == tokenizer.drop(tokenizer.encode(text), 0.5, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_tokenizer_digest_ignores_dropout_sharing_and_path():
    plain = train_tokenizer(TokenizerSettings(size=300), CORPUS)
    other = train_tokenizer(TokenizerSettings(size=300, dropout=0.1, shared=False, path="x.json"), CORPUS)
    assert other.digest == plain.digest


@pytest.fixture(scope="module")
def good() -> dict[str, object]:
    document = json.loads(train_tokenizer(TokenizerSettings(size=300), CORPUS).to_json())
    assert isinstance(document, dict)
    return document


def changed(good, path: str, value: object) -> str:
    document = json.loads(json.dumps(good))
    inner, *keys = document, *path.split(".")
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("kind", "other", "t.json: is other JSON; expected a tokenizer written by Translume"),
        ("format", 7, "t.json: found format 7, expected 1; a newer Translume may read it"),
        (
            "settings.kind",
            "bqe",
            "t.json: damaged: settings.kind: Input should be 'bpe', 'unigram', 'wordpiece', 'character', 'byte', "
            "'word', 'sentencepiece', 'library' or 'split', found 'bqe'",
        ),
        (
            "settings",
            3,
            "t.json: damaged: settings: Input should be a valid dictionary or instance of TokenizerSettings, found 3",
        ),
        ("specials.pad", 5, "t.json: damaged: the special ids are not those of the vocabulary"),
        ("specials", {}, "t.json: damaged: 'pad' is missing"),
        ("tokenizer", None, "t.json: damaged: 'NoneType' object is not subscriptable"),
        ("tokenizer.model.vocab", {}, "t.json: damaged: the merge of 'e' and 's' is not in the vocabulary"),
        ("tokenizer.model.vocab", {"a": 1}, "t.json: damaged: ids of the vocabulary are not 0, 1, 2, …"),
        ("tokenizer.model.merges", [["q", "q"]], "t.json: damaged: the merge of 'q' and 'q' is not in the vocabulary"),
    ],
)
def test_damaged_file_is_a_one_line_error(good, path, value, wanted):
    with pytest.raises(DataError) as error:
        Tokenizer.from_json(changed(good, path, value), "t.json")
    assert str(error.value) == wanted


def test_file_without_a_tokenizer_is_a_one_line_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    cases = {
        b"": "not a tokenizer of Translume: not JSON: Expecting value: line 1 column 1 (char 0)",
        b"\xff\xfe": "not a tokenizer of Translume: not UTF-8 text",
        b"[1]": "is other JSON; expected a tokenizer written by Translume",
        b'{"version": "1.0", "model": {}}': "is other JSON; expected a tokenizer written by Translume",
    }
    for content, wanted in cases.items():
        path.write_bytes(content)
        with pytest.raises(DataError) as error:
            Tokenizer.load(path)
        assert str(error.value) == f"{path}: {wanted}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer.json", "cannot be read: No such file or directory"),
        ("vocab.spm", "found a SentencePiece model, expected a tokenizer.json of Translume; "
         "tokenizer.kind = 'unigram' without a path trains one"),
    ],
)  # fmt: skip
def test_a_missing_file_and_a_sentencepiece_model_are_named(tmp_path, name, message):
    with pytest.raises(DataError) as error:
        Tokenizer.load(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {message}"
