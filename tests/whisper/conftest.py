"""A Whisper with random weights, as transformers saves it, and the model folder made of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

POSITIONS, LONGEST, MELS = 53, 31, 7
CODES = ("en", "de", "zh", "haw")
TEXTS = ("The quick brown fox jumps over the lazy dog.", "Two dogs play in the snow.", "Die Kinder singen im Park.")


def tokenizer_of(codes: tuple[str, ...], positions: int):
    """Whisper's tokenizer with few merges: byte-level BPE, special tokens, times that are no special tokens."""
    from tokenizers import AddedToken, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as LibraryTokenizer

    learned = LibraryTokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(learned.to_str())["model"]
    found = transformers.WhisperTokenizer(vocab=model["vocab"], merges=[tuple(each) for each in model["merges"]])
    names = ("startoftranscript", *codes, "translate", "transcribe", "startoflm", "startofprev", "nospeech")
    special = [f"<|{name}|>" for name in (*names, "notimestamps")]
    found.add_special_tokens({"additional_special_tokens": special})
    times = [f"<|{number * 0.02:.2f}|>" for number in range(positions + 1)]
    found.add_tokens([AddedToken(time, special=False, normalized=False) for time in times])
    return found


def write_whisper(folder: Path, *, multilingual: bool = True, positions: int = POSITIONS, **generation: object) -> Path:
    """Save a folder with random weights.  positions: of a window.  generation: changes of generation_config.json."""
    tokenizer = tokenizer_of(CODES, positions)
    ids = tokenizer.get_vocab()
    eos, begin = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    special = {"pad_token_id": eos, "bos_token_id": eos, "eos_token_id": eos, "decoder_start_token_id": begin}
    config = transformers.WhisperConfig(
        vocab_size=len(ids), num_mel_bins=MELS, d_model=48, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=80, decoder_ffn_dim=80,
        max_source_positions=positions, max_target_positions=LONGEST, begin_suppress_tokens=None, **special,
    )  # fmt: skip
    torch.manual_seed(8)  # without times, no target has a token of a time, which would end a window in transformers
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoder.embed_positions" not in name:
                parameter.copy_(torch.randn_like(parameter) * (0.25 if parameter.ndim > 1 else 0.1))
                parameter += "layer_norm.weight" in name
    tasks = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
    values = {
        "is_multilingual": multilingual, "no_timestamps_token_id": ids["<|notimestamps|>"], "max_length": LONGEST,
        "suppress_tokens": [3, 7, begin, *tasks.values()], "begin_suppress_tokens": [5, eos],
        "max_initial_timestamp_index": 11, "return_timestamps": False, **special,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in CODES}, "task_to_id": tasks, **generation,
    }  # fmt: skip
    model.generation_config = transformers.GenerationConfig(**values)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sound(samples: int, seed: int = 3) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=samples) * np.linspace(0.01, 0.5, samples)
    return noise.astype(np.float32)


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """folder: of transformers; ours: the model folder; model, tokenizer: of transformers; translator: plain."""
    import translume
    from translume.interchange.importing import import_model

    folder = write_whisper(tmp_path_factory.mktemp("whisper") / "theirs")
    ours = folder.parent / "ours"
    imported = import_model(folder, ours)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    translator = translume.load(ours, engine="plain")
    return SimpleNamespace(
        folder=folder, ours=ours, imported=imported, model=model, tokenizer=tokenizer, translator=translator
    )


def features(samples: np.ndarray, *, whole: bool = False) -> torch.Tensor:
    """Whisper's features [1, F, L].  whole: of a long recording, not of its first window."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=MELS)
    extractor.n_samples = 320 * POSITIONS
    more = {"truncation": False, "padding": "longest"} if whole else {}
    return extractor(samples, sampling_rate=16_000, return_tensors="pt", **more).input_features
