"""Moonshine in: encoder states, log-probabilities and beam searches of seeded sounds, against transformers in fp32.

A small model with random weights and a tokenizer of Llama's kind. Sounds are noise of 0.06 to 12 seconds that gets
louder. Columns: largest |Δ| of encoder states and of the log-probabilities of the whole vocabulary at each of 17 given
tokens; that of the log-probabilities in double precision, and between both precisions of each side, which is what their
rounding alone may differ by; texts of a beam search of width 4 that are equal, how many of them ended before the limit,
and how many are distinct.

    python benchmarks/moonshine.py [--sounds 200] [--layers 3]
"""

import argparse
import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _own_families import trained

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
RATE, SHORTEST, LONGEST = 16_000, 895, 12 * 16_000
LIMIT = 19
LINES = ("a man rides a bicycle", "two dogs play in the snow", "the children sing and people listen") * 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sounds", type=int, default=4 if SHORT else 200)
    parser.add_argument("--layers", type=int, default=1 if SHORT else 3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.sounds, options.layers)


def write(folder: Path, layers: int) -> None:
    """Save a model with random weights, its tokenizer and its feature extractor."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    special = ["<unk>", "<s>", "</s>"]
    spaced = ["\u2581" + line.replace(" ", "\u2581") for line in LINES]
    learned = trained(spaced, pre_tokenizers.Sequence([]), [*special, *(f"<0x{byte:02X}>" for byte in range(256))])
    merges = [tuple(each) for each in learned["merges"]]
    library = Tokenizer(models.BPE(learned["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)
    config = transformers.MoonshineConfig(
        vocab_size=len(tokenizer), hidden_size=144, intermediate_size=160, encoder_num_hidden_layers=layers,
        decoder_num_hidden_layers=layers, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        max_position_embeddings=194,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    for each in (model, tokenizer, transformers.Wav2Vec2FeatureExtractor(do_normalize=False)):
        each.save_pretrained(folder)


def sound(seed: int) -> "np.ndarray":
    """Return samples of a seeded length."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(SHORTEST, LONGEST))
    return (draw.normal(size=count) * np.linspace(0.01, draw.uniform(0.05, 0.5), count)).astype(np.float32)


def measure(folder: Path, sounds: int, layers: int) -> None:
    """Import the model and compare."""
    import torch
    import transformers

    import translume
    from translume.translator.planning import Line

    write(folder / "theirs", layers)
    certificate = translume.import_model(folder / "theirs", folder / "ours").certificate
    theirs = transformers.MoonshineForConditionalGeneration.from_pretrained(folder / "theirs").eval()
    extract = transformers.Wav2Vec2FeatureExtractor.from_pretrained(folder / "theirs")
    ours = translume.load(folder / "ours", device="cpu", engine="plain")
    options = {"strategy": "beam", "beam": 4, "max_length": LIMIT, "length_penalty": 0.0}
    both = ours.checkpoint.model, theirs
    precise = copy.deepcopy(both[0]).double(), copy.deepcopy(theirs).double()
    names = ("encoder", "log_p", "log_p64", "rounding", "their_rounding")
    largest = torch.zeros(len(names), dtype=torch.float64)
    equal, texts = 0, []
    for seed in range(sounds):
        given = extract(sound(seed), sampling_rate=RATE, return_tensors="pt").input_values
        target = torch.randint(3, len(ours.checkpoint.target_tokenizer), (1, 17))
        target[:, 0] = 1
        (plan,) = ours.plans([Line.from_source(sound(seed))], ours.config.decoding)
        read = torch.from_numpy(plan.pieces[0].frames)[None]
        with torch.inference_mode():
            (memory, own), (states, wanted) = forwards(*both, read, given, target)
            (_, own64), (_, wanted64) = forwards(*precise, read.double(), given.double(), target)
            row = theirs.generate(
                given, num_beams=4, max_length=LIMIT + 1, length_penalty=0.0, early_stopping="never",
                bad_words_ids=[[1]], do_sample=False,
            )[0].tolist()  # fmt: skip
        pairs = (memory, states), (own, wanted), (own64, wanted64), (own, own64), (wanted, wanted64)
        largest = largest.maximum(torch.stack([(one.double() - other).abs().max() for one, other in pairs]))
        ids = ours.translate(sound(seed), **options, max_length_ratio=99.0).hypotheses[0].ids
        texts.append([each for each in ids if each != 2])
        equal += texts[-1] == [each for each in row[1:] if each != 2]
    ended, distinct = sum(len(ids) < LIMIT for ids in texts), len({*map(tuple, texts)})
    shown = " ".join(f"{name}={value:.1e}" for name, value in zip(names, largest.tolist(), strict=True))
    assert certificate is not None
    print(f"certificate={certificate.difference:.1e} {shown} texts={equal}/{sounds} ended={ended} distinct={distinct}")


def forwards(model: Any, theirs: Any, read: Any, given: Any, target: Any) -> list[tuple[Any, Any]]:
    """Return the encoder states, and the log-probabilities of each given token, of our model and of theirs."""
    state = model.start(read, read.new_ones(read.shape[:2], dtype=bool))
    hidden, _ = model.decoder(target, state)
    wanted = theirs(input_values=given, decoder_input_ids=target)
    log_probs = model.head.next_token(hidden[0], None).log_probs()
    return [(state.memory, log_probs), (wanted.encoder_last_hidden_state, wanted.logits[0].log_softmax(-1))]


if __name__ == "__main__":
    main()
