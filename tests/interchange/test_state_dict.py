"""State dicts of torch.nn.Transformer and of the Annotated Transformer are imported; others are refused by name."""

import importlib.util
import json
import math
import pickle
import random
import warnings
from pathlib import Path

import pytest
import torch
from tests.errors import raises
from torch import nn

import translume
from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.engine import build_engine, self_test
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.interchange.state_dict import StateDict
from translume.translator import load

WIDTH, HEADS, INNER = 16, 4, 24
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
SOURCE, TARGET = [*SPECIAL, *"abc d"], [*SPECIAL, *"xyz w é"][:9]
PLAIN = StateDict(layout="nn.Transformer", heads=HEADS)


class Tutorial(nn.Module):
    """The network of PyTorch's tutorial on translation, by its names."""

    def __init__(self, **options):
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")
            self.transformer = nn.Transformer(WIDTH, HEADS, 2, 3, INNER, dropout=0.0, batch_first=True, **options)
        self.generator = nn.Linear(WIDTH, len(TARGET))
        self.src_tok_emb, self.tgt_tok_emb = nn.Embedding(len(SOURCE), WIDTH), nn.Embedding(len(TARGET), WIDTH)
        steps = torch.exp(-torch.arange(0, WIDTH, 2) * math.log(10000) / WIDTH)
        angles = torch.arange(50).reshape(50, 1) * steps
        table = torch.zeros(50, WIDTH)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("pos_embedding", table.unsqueeze(-2))

    def forward(self, source, target):
        read, given = (
            table(ids) * math.sqrt(WIDTH) + self.pos_embedding[: ids.size(1), 0]
            for table, ids in ((self.src_tok_emb, source), (self.tgt_tok_emb, target))
        )
        later = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        return self.generator(self.transformer(read, given, tgt_mask=later))


def network(**options):
    torch.manual_seed(3)
    model = Tutorial(**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.fixture
def vocabularies(tmp_path):
    (tmp_path / "src.json").write_text(json.dumps({token: id_ for id_, token in enumerate(SOURCE)}))
    (tmp_path / "tgt.json").write_text(json.dumps(TARGET))
    return tmp_path / "src.json", tmp_path / "tgt.json"


@pytest.mark.parametrize(
    ("options", "overrides"),
    [({}, ()), ({"norm_first": True, "activation": "gelu"}, ("model.norm=pre", "model.activation=gelu"))],
)
@torch.no_grad()
def test_a_tutorial_model_translates_as_in_pytorch(tmp_path, vocabularies, options, overrides):
    theirs = network(**options)
    torch.save({"epoch": 3, "model_state_dict": theirs.state_dict()}, tmp_path / "model.pt")
    layout = StateDict(layout="nn.Transformer", heads=HEADS, overrides=overrides)
    found = translume.import_model(tmp_path / "model.pt", tmp_path / "out", vocabularies=vocabularies, layout=layout)
    assert found.certificate.difference < 1e-4
    settings = load(tmp_path / "out").checkpoint.config.model
    assert (settings.positions, settings.max_positions, settings.final_norm) == ("interleaved", 50, not options)
    for engine in ("plain", "auto"):
        ours = load(tmp_path / "out", dtype="fp32", engine=engine)
        for text in ("abc", "d cab", "bad"):
            source, target = torch.tensor([[2, *map(SOURCE.index, text), 3]]), torch.tensor([[2]])
            while target.size(1) < 9 and target[0, -1] != 3:
                logits = theirs(source, target)[:, -1]
                logits[:, 1:3] = -math.inf
                target = torch.cat([target, logits.argmax(-1, keepdim=True)], 1)
            wanted = [id_ for id_ in target[0, 1:].tolist() if id_ != 3]
            (said,) = ours.translate(text, beam=1, max_length=8, max_length_ratio=99.0).hypotheses
            assert [id_ for id_ in said.ids if id_ != 3] == wanted
            assert said.text == "".join("\ufffd" if id_ == 0 else TARGET[id_] for id_ in wanted)


@torch.no_grad()
def test_the_annotated_transformer_is_read(tmp_path, vocabularies):
    torch.manual_seed(5)
    state = {f"{side}_embed.0.lut.weight": torch.randn(size, WIDTH) for side, size in
             (("src", len(SOURCE)), ("tgt", len(TARGET)))}  # fmt: skip
    shapes = {"generator.proj": (len(TARGET), WIDTH)}
    for side, blocks in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "src_attn"))):
        for layer in (f"{side}.layers.{number}" for number in range(2)):
            shapes |= {f"{layer}.{block}.linears.{place}": (WIDTH, WIDTH) for block in blocks for place in range(4)}
            shapes |= {f"{layer}.feed_forward.w_1": (INNER, WIDTH), f"{layer}.feed_forward.w_2": (WIDTH, INNER)}
            norms = [f"{layer}.sublayer.{place}.norm" for place in range(1 + len(blocks))]
            state |= {f"{name}.{part}": torch.rand(WIDTH) + 0.5 for name in norms for part in ("a_2", "b_2")}
        state |= {f"{side}.norm.{part}": torch.rand(WIDTH) for part in ("a_2", "b_2")}
    for name, shape in shapes.items():
        state |= {f"{name}.weight": torch.randn(shape) * 0.3, f"{name}.bias": torch.randn(shape[0]) * 0.3}
    torch.save(state, tmp_path / "model.pt")
    layout = StateDict(layout="annotated", heads=HEADS)
    found = translume.import_model(tmp_path / "model.pt", tmp_path / "out", vocabularies=vocabularies, layout=layout)
    assert found.certificate.difference < 1e-4
    assert load(tmp_path / "out").checkpoint.config.model.norm == "pre"


def test_the_engine_and_ctranslate2_normalise_the_output_of_both_stacks(tmp_path, vocabularies):
    settings = ModelSettings(
        width=32, feed_forward=48, attention_heads=2, encoder_layers=2, decoder_layers=2, norm="post", final_norm=True,
        positions="interleaved",
    )  # fmt: skip
    torch.manual_seed(1)
    model = build_model(settings, 31, 31).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    assert self_test(build_engine(model), model).agrees
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")
    torch.save(network().state_dict(), tmp_path / "model.pt")
    translume.import_model(tmp_path / "model.pt", tmp_path / "out", vocabularies=vocabularies, layout=PLAIN)
    assert translume.export(tmp_path / "out", "ctranslate2", tmp_path / "exported").difference < 1e-4


def test_a_final_norm_needs_post_norm():
    message = "model: final_norm has no effect with norm 'pre', which has one; expected norm 'post'"
    with raises(SettingsError, message):
        ModelSettings(norm="pre", final_norm=True)


class Hostile:
    def __reduce__(self):
        return print, ("run",)


def refused(tmp_path, vocabularies, kind, layout=PLAIN):
    with pytest.raises(kind) as raised:
        translume.import_model(tmp_path / "model.pt", tmp_path / "out", vocabularies=vocabularies, layout=layout)
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt", "src.json", "tgt.json"}
    (line,) = str(raised.value).splitlines()
    return line.removeprefix(f"{tmp_path / 'model.pt'}: ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("generator.weight", torch.full((9, WIDTH), math.nan), "generator.weight has numbers that are not finite"),
        ("transformer.encoder.layers.1.linear1.weight", torch.zeros(INNER + 1, WIDTH),
         "encoder.layers.1.feed_forward.inner.weight is [25, 16], expected [24, 16] by the settings"),
        ("transformer.encoder.layers.0.self_attn.in_proj_weight", torch.zeros(3 * WIDTH + 1, WIDTH),
         "encoder.layers.0.self_attention.query_key_value.weight is [49, 16], expected [48, 16] by the settings"),
        ("transformer.decoder.layers.0.multihead_attn.in_proj_weight", torch.zeros(WIDTH + 1, WIDTH),
         "decoder.layers.0.multihead_attn is [17, 16], expected three times the width, 16"),
        ("transformer.decoder.layers.2.norm3.bias", None,
         "no transformer.decoder.layers.2.norm3.bias, expected it by the layout"),
        ("transformer.decoder.layers.0.gate.weight", torch.zeros(2),
         "holds transformer.decoder.layers.0.gate.weight, which the layout does not have"),
        ("transformer.encoder.layers.0.self_attn.in_proj_weight", None,
         "found 0 tensors encoder.layers.0.self_attn.in_proj_weight, expected one for the layout nn.Transformer"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(tmp_path, vocabularies, name, value, message):
    state = network().state_dict()
    state[name] = value
    if value is None:
        del state[name]
    torch.save(state, tmp_path / "model.pt")
    assert refused(tmp_path, vocabularies, TranslumeError) == message


def test_damaged_and_hostile_files_are_one_line_errors(tmp_path, vocabularies, capfd):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"a": Hostile()}))
    assert "refused by torch's weights-only reader" in refused(tmp_path, vocabularies, ModelFolderError)
    assert "run" not in capfd.readouterr().out
    torch.save(network().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-999])
    assert refused(tmp_path, vocabularies, ModelFolderError).startswith("damaged: ")
    torch.save([torch.zeros(3)], path)
    assert refused(tmp_path, vocabularies, ModelFolderError) == (
        "expected a state dict, tensors by name, alone or as model_state_dict, state_dict, model"
    )


def test_vocabularies_and_options_that_do_not_fit_are_named(tmp_path, vocabularies):
    torch.save(network().state_dict(), tmp_path / "model.pt")
    source, target = vocabularies
    target.write_text(json.dumps(TARGET[:-1]))
    assert refused(tmp_path, vocabularies, SettingsError) == (
        f"{target}: found 8 tokens, expected 9 by tgt_tok_emb.weight"
    )
    target.write_text(json.dumps([*TARGET[:-1], TARGET[0]]))
    assert refused(tmp_path, vocabularies, DataError) == f"{target}: a token occurs twice"
    target.write_text(json.dumps(TARGET))
    layout = StateDict(layout="nn.Transformer", heads=5)
    assert (
        refused(tmp_path, vocabularies, SettingsError, layout)
        == "--heads: found 5, expected a divisor of the width, 16"
    )
    layout = StateDict(layout="nn.Transformer", heads=4, specials=(0, 1, 2, 9))
    assert refused(tmp_path, vocabularies, SettingsError, layout) == (
        f"--specials: found 9, expected an id of {source}, 0 to 8"
    )
    with raises(
        SettingsError, f"{tmp_path / 'model.pt'}: found no vocabularies, expected them with --vocabs SOURCE TARGET"
    ):
        translume.import_model(tmp_path / "model.pt", tmp_path / "out", layout=PLAIN)


@torch.no_grad()
def test_a_trained_model_of_the_tutorial_transliterates_as_its_package_does(tmp_path):
    """tg2fa-translit 1.0: 3 + 3 layers, width 64, from Tajik to Persian, by characters."""
    if importlib.util.find_spec("tg2fa_translit") is None:
        pytest.skip("tg2fa-translit is not installed (pip install --no-deps tg2fa-translit)")
    from tg2fa_translit import decode, transformer

    (tmp_path / "src.json").write_text(json.dumps(decode.tg_voc))
    (tmp_path / "tgt.json").write_text(json.dumps(decode.fa_values))
    translume.import_model(
        Path(transformer.filename), tmp_path / "out", vocabularies=(tmp_path / "src.json", tmp_path / "tgt.json"),
        layout=StateDict(layout="nn.Transformer", heads=8),
    )  # fmt: skip
    ours, draw = load(tmp_path / "out", dtype="fp32"), random.Random(1)
    letters = [each for each in decode.tg_keys[4:] if each.strip()]
    for _ in range(20):
        text = "".join(draw.choices(letters, k=draw.randrange(1, 20)))
        found = ours.translate(text, max_length=len(text) + 10, max_length_ratio=99.0, letterless="translate")
        assert found.text == decode.decode(transformer.transformer, text)
