"""Exports to CTranslate2 give the same log-probabilities and translations."""

import json

import ctranslate2
import pytest
import tokenizers
import torch
from tests.errors import raises

from translume.checkpoint import save_model
from translume.config import ProjectedSettings, SoftmaxSettings, TokenizerSettings
from translume.decoding import Greedy, search
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import forced_targets
from translume.interchange.export import export
from translume.text import train_tokenizer

from .conftest import random_checkpoint

TEXTS = ["a man rides a bike.", "the dog runs far away!", "two women sit on a bench"]
OTHER = ["ein Mann fährt Rad.", "der Hund läuft weit weg!", "zwei Frauen sitzen auf einer Bank"]


def checkpoint_of(*, shared=True, unknown="token", **changes):
    settings = TokenizerSettings(kind="character" if unknown == "token" else "bpe", size=307, unknown=unknown)
    source = train_tokenizer(settings, TEXTS)
    return random_checkpoint(source, None if shared else train_tokenizer(settings, OTHER), **changes)


VARIANTS = {
    "pre-norm": {},
    "post-norm": {"norm": "post"},
    "rms": {"normalization": "rms", "norm_epsilon": 1e-3},
    "without-biases": {"bias": False, "head": SoftmaxSettings(bias=False)},
    "gelu": {"activation": "gelu"},
    "swiglu": {"activation": "swiglu"},
    "learned-positions": {"positions": "learned"},
    "fairseq-positions": {"positions": "fairseq"},
    "embedding-norm": {"norm": "post", "embedding_norm": True, "positions": "learned"},
    "rotary": {"positions": "rotary"},
    "t5": {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 13,
        "normalization": "rms",
        "bias": False,
        "activation": "geglu",
        "head_width": 6,
        "head": SoftmaxSettings(tie="embeddings", bias=False),
    },
    "no-positions": {"positions": "none"},
    "unscaled": {"scale_embeddings": False},
    "untied": {"head": SoftmaxSettings(tie="none")},
    "two-vocabularies": {"head": SoftmaxSettings(tie="target"), "shared": False},
    "bytes": {"unknown": "bytes"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_an_export_gives_the_log_probabilities_of_the_model(tmp_path, changes):
    checkpoint = checkpoint_of(**changes)
    save_model(tmp_path / "model", checkpoint)
    certificate = export(tmp_path / "model", "ctranslate2", tmp_path / "out")
    assert certificate.difference < 1e-4
    assert (certificate.sentences, certificate.dtype) == (50, "float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["translume"] == certificate.to_dict()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A checkpoint, its model folder and its exports in float32 and int8, with the certificates."""
    folder, checkpoint = tmp_path_factory.mktemp("exports"), checkpoint_of()
    save_model(folder / "model", checkpoint)
    certificates = [
        export(folder / "model", "ctranslate2", folder / dtype, dtype=dtype) for dtype in ("float32", "int8")
    ]
    return checkpoint, folder, certificates


def test_greedy_search_gives_the_same_text(exported):
    checkpoint, folder, _ = exported
    tokenizer, specials = checkpoint.source_tokenizer, checkpoint.source_tokenizer.specials
    sources = forced_targets(checkpoint).sources
    # Tokens of the exported tokenizer can be passed by name.
    library = tokenizers.Tokenizer.from_file(str(folder / "float32" / "tokenizer.json"))
    pieces = [library.id_to_token(each) for each in range(len(tokenizer))]
    assert json.loads((folder / "float32" / "shared_vocabulary.json").read_text()) == pieces
    translator = ctranslate2.Translator(str(folder / "float32"), compute_type="float32")
    theirs = translator.translate_batch([[pieces[each] for each in row] for row in sources], beam_size=1,
                                        max_decoding_length=20)  # fmt: skip
    for row, found in zip(sources, theirs, strict=True):
        read = torch.tensor([[*row, specials.eos]])
        with torch.inference_mode():
            state = checkpoint.model.start(read, torch.ones_like(read, dtype=torch.bool))
            (ours,) = search(
                checkpoint.model.step, state, bos=specials.bos, eos=specials.eos, strategy=Greedy(),
                limits=torch.tensor([20]),
            )  # fmt: skip
        ids = [each for each in ours[0].tokens if each != specials.eos]
        assert found.hypotheses[0] == [pieces[each] for each in ids]


def test_int8_weights_are_written_and_their_difference_is_reported(exported):
    _, int8 = exported[2]
    assert 1e-4 < int8.difference < 3.0
    assert int8.dtype == "int8"


def test_the_comparison_uses_the_threads_of_torch(exported, tmp_path, monkeypatch):
    told, translator = {}, ctranslate2.Translator

    def noted(*places, **options):
        told.update(options)
        return translator(*places, **options)

    monkeypatch.setattr(ctranslate2, "Translator", noted)
    export(exported[1] / "model", "ctranslate2", tmp_path / "out")
    assert told["intra_threads"] == torch.get_num_threads()


def test_unsupported_settings_are_refused_by_name_and_leave_no_files(tmp_path):
    for place, (changes, message) in enumerate([
        ({"head": ProjectedSettings()},
         "model.head.kind: found 'projected', expected a linear map and a softmax for CTranslate2"),
        ({"segments": 2}, "model.segments: found 2, expected 0 for CTranslate2"),
        ({"decoder_mixing": "ssru"}, "model.decoder_mixing: found 'ssru', expected 'attention' for CTranslate2"),
    ]):  # fmt: skip
        save_model(tmp_path / str(place), checkpoint_of(**changes))
        with raises(SettingsError, message):
            export(tmp_path / str(place), "ctranslate2", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_a_folder_that_is_not_empty_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with raises(TranslumeError, f"{tmp_path / 'out'}: already exists, expected a new or empty folder"):
        export(tmp_path / "model", "ctranslate2", tmp_path / "out")
    with raises(SettingsError, "export: found 'ctranslate'; did you mean 'ctranslate2'?"):
        export(tmp_path / "model", "ctranslate", tmp_path / "new")
