"""TrOCR: pixels, encoder states, log-probabilities and texts are those of transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.errors import raises

import translume
from translume.config.sources import PatchSettings
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.huggingface.reader import read_family, read_huggingface
from translume.sources import frame_reader

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
tokenizers = pytest.importorskip("tokenizers")
image_module = pytest.importorskip("PIL.Image")

HEIGHT, WIDTH, PATCH, LONGEST = 24, 40, 8, 29
LINES = ("a man rides a bicycle", "two dogs play in the snow", "niemand kennt das café")
VARIANTS = {
    "base": {},
    "small": {"encoder": "DeiT", "decoder": {"activation_function": "relu"}, "pixels": {"do_center_crop": False}},
    "large": {
        "decoder": {
            "use_learned_position_embeddings": False, "layernorm_embedding": False, "scale_embedding": True,
            "tie_word_embeddings": False, "activation_function": "relu",
        },
        "pixels": {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.7, 0.9, 1.1], "resample": 1},
    },
}  # fmt: skip
"""As in the models that Microsoft published."""


def tokenizer():
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(LINES, trainer)
    model = json.loads(library.to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(each) for each in model["merges"]])


def write(folder, encoder="ViT", decoder=None, pixels=None):
    found = tokenizer()
    first = getattr(transformers, f"{encoder}Config")(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=80, image_size=[HEIGHT, WIDTH],
        patch_size=PATCH, qkv_bias=encoder == "DeiT",
    )  # fmt: skip
    second = transformers.TrOCRConfig(
        vocab_size=len(found), d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=112,
        max_position_embeddings=LONGEST, cross_attention_hidden_size=48, **(decoder or {}),
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(first, second)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 1, 2
    torch.manual_seed(3)
    model = transformers.VisionEncoderDecoderModel(config=config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    found.save_pretrained(folder)
    kind = getattr(transformers, f"{encoder}ImageProcessor")
    processor = kind(size={"height": HEIGHT, "width": WIDTH}, **(pixels or {}))
    processor.save_pretrained(folder)
    return model, processor


@pytest.fixture(scope="module", params=VARIANTS)
def imported(request, tmp_path_factory):
    """The model and the image processor of transformers, and the imported model."""
    folder = tmp_path_factory.mktemp("trocr")
    model, processor = write(folder / "theirs", **VARIANTS[request.param])
    assert translume.import_model(folder / "theirs", folder / "ours").certificate.difference < 1e-4
    return model, processor, translume.load(folder / "ours", device="cpu", engine="plain")


def images():
    draw = np.random.default_rng(7)
    for height, width in ((1, 1), (HEIGHT, WIDTH), (61, 17), (13, 90), (200, 300)):
        rough = draw.integers(0, 256, (-(-height // 5), -(-width // 5), 3)).astype(np.uint8)
        yield image_module.fromarray(rough).resize((width, height))


@torch.no_grad()
def test_pixels_states_and_texts_are_those_of_transformers(imported):
    theirs, processor, ours = imported
    config, model = ours.checkpoint.config, ours.checkpoint.model
    reader, family = frame_reader(config.data.source), read_family_of_images()
    fast = translume.load(ours.folder, device="cpu", engine="fast")
    for image in images():
        pixels = processor(image, return_tensors="pt").pixel_values
        frames = torch.from_numpy(reader.read(image))[None]
        assert torch.equal(family.inputs(frames, config.data.source)["pixel_values"], pixels)
        state = model.start(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
        torch.testing.assert_close(state.memory, theirs.encoder(pixels).last_hidden_state, rtol=0, atol=1e-4)
        target = torch.tensor([[2, 7, 11, 100, 23]])
        hidden, _ = model.decoder(target, state)
        found = model.head.next_token(hidden[0], None).log_probs()
        wanted = theirs(pixel_values=pixels, decoder_input_ids=target).logits[0].log_softmax(-1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
        written = theirs.generate(
            pixels, num_beams=3, max_length=16, length_penalty=0.0, early_stopping="never", bad_words_ids=[[1]]
        )[0].tolist()
        search = {"strategy": "beam", "beam": 3, "max_length": 15, "length_penalty": 0.0, "max_length_ratio": 99.0}
        for each in (ours, fast):
            ids = list(each.translate(image, **search).hypotheses[0].ids)
            assert [id_ for id_ in written[1:] if id_ not in (1, 2)] == [id_ for id_ in ids if id_ not in (1, 2)]


def read_family_of_images():
    from translume.interchange.huggingface.trocr import TrOcr

    return TrOcr()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "trocr"
    write(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "trocr"))


def change(path, **values):
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, **values}))


PIXELS = "preprocessor_config.json"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_resize": False}, "do_resize: found false, expected true"),
        ({"do_center_crop": True}, "do_center_crop: found true, expected false"),
        ({"size": 384}, "size: found [384, 384], expected [24, 40], the image_size of the encoder"),
        ({"size": "large"}, 'size: found "large", expected height and width'),
        ({"resample": 6}, "resample: found 6, expected a filter of Pillow, 0 to 5"),
        ({"image_mean": [0.5, 0.5]}, "image_mean: found [0.5, 0.5], expected three numbers"),
        ({"do_rescale": 1}, "do_rescale: found 1, expected true or false"),
    ],
)
def test_a_preparation_of_pixels_that_is_not_supported_is_refused(folder, values, message):
    change(folder / PIXELS, **values)
    with raises(SettingsError, f"{folder / PIXELS}: {message}"):
        read_huggingface(folder)


@pytest.mark.parametrize(
    ("side", "values", "message"),
    [
        ("encoder", {"model_type": "donut-swin"}, 'encoder.model_type: found "donut-swin"; known: vit, deit'),
        ("decoder", {"model_type": "gpt2"}, 'decoder.model_type: found "gpt2"; known: trocr'),
        ("encoder", {"patch_size": 7}, "data.source: patch is 7, expected a divisor of height 24 and width 40"),
        ("encoder", {"patch_size": [8, 4]}, "encoder.patch_size: found [8, 4], expected equal sizes"),
        ("encoder", {"num_channels": 1}, "encoder.num_channels: found 1, expected 3, of colours"),
        ("decoder", {"cross_attention_hidden_size": None},
         "decoder.cross_attention_hidden_size: found null, expected 48, the hidden_size of the encoder"),
    ],
)  # fmt: skip
def test_a_side_that_is_not_supported_is_refused(folder, side, values, message):
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    change(path, **{side: {**stored[side], **values}})
    with raises(SettingsError, f"{path}: {message}"):
        read_huggingface(folder)


def test_a_folder_without_the_preparation_of_pixels_is_refused_and_newer_folders_have_it_elsewhere(folder):
    prepared = json.loads((folder / PIXELS).read_text())
    (folder / PIXELS).unlink()
    with raises(ModelFolderError, f"{folder / PIXELS}: no such file, expected one that says how pixels are prepared"):
        read_huggingface(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": {**prepared, "do_normalize": False}}))
    source = read_huggingface(folder).checkpoint.config.data.source
    assert isinstance(source, PatchSettings)
    assert (source.filter, source.mean, source.deviation) == ("bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_an_older_folder_names_a_feature_extractor_and_one_size(tmp_path, folder):
    path = folder / PIXELS
    path.write_text(json.dumps({"feature_extractor_type": "DeiTFeatureExtractor", "size": [HEIGHT, WIDTH],
                                "do_center_crop": False, "image_mean": 0.5, "image_std": 0.5}))  # fmt: skip
    source = read_huggingface(folder).checkpoint.config.data.source
    assert (source.filter, source.scale, source.mean) == ("bicubic", 1 / 255, (0.5, 0.5, 0.5))


def test_a_family_is_named_by_config_json(folder):
    assert read_family(folder)[0].architecture == "VisionEncoderDecoderModel"
