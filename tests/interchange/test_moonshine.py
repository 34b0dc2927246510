"""Moonshine: samples, encoder states, log-probabilities and texts are those of transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.errors import raises
from torch.nn.utils.rnn import pad_sequence

import translume
from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.config.sources import WaveformSettings
from translume.errors import DataError, SettingsError
from translume.interchange.huggingface.reader import family_for, read_huggingface
from translume.sources import frame_reader

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
tokenizers = pytest.importorskip("tokenizers")

LONGEST, SIZE, SHORTEST = 29, 64, 14 * 64 - 1
LINES = ("a man rides a bicycle", "two dogs play in the snow", "niemand kennt das café")
VARIANTS = {
    "tiny": {},
    "biased": {
        "attention_bias": True, "tie_word_embeddings": False, "encoder_hidden_act": "relu",
        "decoder_hidden_act": "gelu_pytorch_tanh",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip


def tokenizer():
    """Of Llama's kind: pieces of words with their spaces, bytes for other characters."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    library.normalizer = tokenizers.normalizers.Sequence(steps)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    library.train_from_iterator(LINES, trainer)
    made = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    library.decoder = tokenizers.decoders.Sequence([*made, tokenizers.decoders.Strip(" ", 1, 0)])
    document = json.loads(library.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    whole = tokenizers.Tokenizer.from_str(json.dumps(document))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, **names)


def write(folder, **changes):
    found = tokenizer()
    config = transformers.MoonshineConfig(**{
        "vocab_size": len(found), "hidden_size": 48, "intermediate_size": 80, "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
        "max_position_embeddings": LONGEST, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0,
                                                                "partial_rotary_factor": 0.75}, **changes,
    })  # fmt: skip
    torch.manual_seed(3)
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    found.save_pretrained(folder)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=False)
    extractor.save_pretrained(folder)
    return model, extractor


@pytest.fixture(scope="module", params=VARIANTS)
def imported(request, tmp_path_factory):
    """The model and the feature extractor of transformers, and the imported model."""
    folder = tmp_path_factory.mktemp("moonshine")
    model, extractor = write(folder / "theirs", **VARIANTS[request.param])
    assert translume.import_model(folder / "theirs", folder / "ours").certificate.difference < 1e-4
    return model, extractor, translume.load(folder / "ours", device="cpu", engine="plain")


def sounds():
    for seed, samples in enumerate((SHORTEST, SHORTEST + 1, 2_000, 5_503, 16_000)):
        noise = np.random.default_rng(seed).normal(size=samples) * np.linspace(0.01, 0.5, samples)
        yield noise.astype(np.float32)


@torch.no_grad()
def test_states_and_texts_are_those_of_transformers(imported):
    theirs, extractor, ours = imported
    model, reader = ours.checkpoint.model, frame_reader(ours.config.data.source)
    frames, texts = [], []
    for sound in sounds():
        given = extractor(sound, sampling_rate=16_000, return_tensors="pt").input_values
        read = torch.from_numpy(reader.read(sound))
        frames.append(read)
        target = torch.tensor([[1, 7, 270, 11, 300, 23]])
        wanted = theirs(input_values=given, decoder_input_ids=target)
        state = model.start(read[None], torch.ones(1, len(read), dtype=torch.bool))
        torch.testing.assert_close(state.memory, wanted.encoder_last_hidden_state, rtol=0, atol=1e-4)
        hidden, _ = model.decoder(target, state)
        found = model.head.next_token(hidden[0], None).log_probs()
        torch.testing.assert_close(found, wanted.logits[0].log_softmax(-1), rtol=0, atol=1e-4)
        written = theirs.generate(
            given, num_beams=3, max_length=16, length_penalty=0.0, early_stopping="never", bad_words_ids=[[1]]
        )[0].tolist()
        texts.append([each for each in written[1:] if each != 2])
    options = {"strategy": "beam", "beam": 3, "max_length": 15, "length_penalty": 0.0, "max_length_ratio": 99.0}
    fast = translume.load(ours.folder, device="cpu", engine="fast")
    for sound, text in zip(sounds(), texts, strict=True):
        for each in (ours, fast):
            assert [id_ for id_ in each.translate(sound, **options).hypotheses[0].ids if id_ != 2] == text
    mask = torch.arange(max(map(len, frames))) < torch.tensor([[len(each)] for each in frames])
    together = model.start(pad_sequence(frames, batch_first=True, padding_value=9.0), mask)
    for row, read in enumerate(frames):
        alone = model.start(read[None], torch.ones(1, len(read), dtype=torch.bool)).memory[0]
        torch.testing.assert_close(together.memory[row][together.memory_mask[row]], alone, rtol=0, atol=1e-5)
    read, there = fast.engine.front.embedded(pad_sequence(frames, batch_first=True).numpy(), mask.numpy())
    states = torch.from_numpy(fast.engine.encoder.encode(read, there.sum(1)))
    torch.testing.assert_close(states, together.memory[together.memory_mask], rtol=0, atol=1e-5 * states.abs().max())


def test_an_export_names_what_it_lacks(imported):
    model = imported[2].checkpoint.model
    family = family_for(model.settings)
    with pytest.raises(SettingsError, match=r"^model\.\w+: found .* for PegasusForConditionalGeneration$"):
        family.weights_to(model, model.settings)


def test_a_sound_shorter_than_a_position_is_filled_up_with_silence():
    source, settings = WaveformSettings(), ModelSettings(width=6, attention_heads=1, positions="rotary")
    model, reader = build_model(settings, 5, 5, source).eval(), frame_reader(source)
    sound = next(sounds())[:700]
    short, filled = (
        torch.from_numpy(reader.read(each))[None] for each in (sound, np.pad(sound, (0, SHORTEST - len(sound))))
    )
    read = [model.encoder.front(each, torch.ones(each.shape[:2], dtype=torch.bool)) for each in (short, filled)]
    torch.testing.assert_close(*(each[0] for each in read))
    assert [source.positions_of(each.size(1)) for each in (short, filled)] == [1, 1]
    assert len(reader.read(sound[:0])) == source.positions_of(0) == 0
    assert source.positions_of(15 * source.rate) == read_positions(model, 15 * 16_000)


def read_positions(model, samples):
    frames = torch.zeros(1, samples // SIZE, SIZE)
    return model.encoder.front(frames, torch.ones(frames.shape[:2], dtype=torch.bool))[1].sum()


def test_a_longer_sound_than_the_model_reads_is_refused_by_its_seconds(tmp_path):
    reader = frame_reader(WaveformSettings(max_seconds=0.5))
    message = "<ndarray 8001>: has 0.5 seconds, expected at most 0.5 (data.source.max_seconds)"
    with raises(DataError, message):
        reader.read(np.zeros(8001, np.float32))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "moonshine"
    write(folder)
    return folder


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config.json", {"encoder_num_key_value_heads": 1}, "encoder_num_key_value_heads: found 1, expected 2"),
        ("config.json", {"head_dim": 16}, "head_dim: found 16, expected 24"),
        ("config.json", {"decoder_hidden_act": "gelu"},
         "decoder_hidden_act: found 'gelu'; known: silu, swish, gelu_pytorch_tanh"),
        ("config.json", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.8}},
         'rope_parameters: found {"rope_type": "default", "partial_rotary_factor": 0.8}, expected type "default" and a '
         "part of the 24 components of a head that is an even number"),
        ("preprocessor_config.json", {"do_normalize": True}, "do_normalize: found true, expected false"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate: found 8000, expected 16000"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(original, tmp_path, file, values, message):
    folder = Path(shutil.copytree(original, tmp_path / "moonshine"))
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    with raises(SettingsError, f"{path}: {message}"):
        read_huggingface(folder)
