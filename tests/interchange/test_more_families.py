"""FSMT, UMT5, PLBart, BlenderBot, pairs of BERT, RoBERTa and GPT-2, T5Gemma, Switch: the same numbers as elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from tests.errors import raises

import translume
from translume.checkpoint import build_model
from translume.config import ModelSettings
from translume.decoding import BeamSearch, Greedy, LengthPenalty, search
from translume.engine import EngineError, build_engine, self_test
from translume.errors import SettingsError
from translume.interchange.huggingface.reader import FAMILIES, family_for, family_named
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
tokenizers = pytest.importorskip("tokenizers")

PLACE, SIZE, LONGEST = Path("config.json"), 61, 24
BART = {
    "vocab_size": SIZE, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40,
    "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": SIZE, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 13, "decoder_start_token_id": 0,
}  # fmt: skip
BERT = {
    "vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 40, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0,
}  # fmt: skip
GPT2 = {
    "vocab_size": SIZE, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 38, "pad_token_id": 1,
    "eos_token_id": 2, "bos_token_id": 0,
}  # fmt: skip
SWITCH = {"num_layers": 4, "num_experts": 3, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1}
LIMITED = {"num_sparse_encoder_layers": 3, "expert_capacity": 2, "dense_act_fn": "gelu"}
NLLB_MOE = {
    "num_experts": 5, "encoder_sparse_step": 2, "decoder_sparse_step": 1, "moe_token_dropout": 0.3,
}  # fmt: skip
GLOBAL = {"local_radius": 2, "encoder_attention_type": "transient-global", "global_block_size": 4}
LED = {"attention_window": [4, 8], "max_encoder_position_embeddings": 48, "max_decoder_position_embeddings": 40}
GEMMA = {
    "vocab_size": SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4, "max_position_embeddings": 64,
    "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "pad_token_id": 1,
    "eos_token_id": 2, "bos_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
}  # fmt: skip
GEMMA_3 = {
    **{name: value for name, value in GEMMA.items() if name != "attn_logit_softcapping"}, "num_hidden_layers": 3,
    "sliding_window_pattern": 2, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
    },
}  # fmt: skip
TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 7, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 4, "patch_size": 2,
}  # fmt: skip


def pair(encoder, decoder, kinds):
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.AutoConfig.for_model(kinds[0], **encoder), transformers.AutoConfig.for_model(kinds[1], **decoder)
    )
    config.pad_token_id, config.eos_token_id, config.decoder_start_token_id = 1, 2, 0
    return config


def config_of(name):
    """The architecture and a small configuration of it."""
    if name in ("bert2bert", "roberta2roberta", "bert2gpt2"):
        kinds = tuple(name.split("2", 1))
        return "EncoderDecoderModel", pair(BERT, GPT2 if kinds[1] == "gpt2" else BERT, kinds)
    if name.startswith("t5gemma2"):
        text = GEMMA_3 if name == "t5gemma2" else {**GEMMA_3, "sliding_window": 7, "intermediate_size": 40}
        encoder = {"text_config": text, "vision_config": TOWER, "eoi_token_index": 7, "mm_tokens_per_image": 4}
        config = transformers.T5Gemma2Config(encoder=encoder, decoder=GEMMA_3)
        return "T5Gemma2ForConditionalGeneration", config
    if name.startswith("t5gemma"):
        encoder = {**GEMMA, "hidden_size": 48, "num_attention_heads": 2} if name == "t5gemma-unequal" else GEMMA
        values = {"encoder": encoder, "decoder": GEMMA, "vocab_size": SIZE}
        return "T5GemmaForConditionalGeneration", transformers.T5GemmaConfig(**values)
    kinds = {
        "fsmt": ("FSMT", {**BART, "src_vocab_size": SIZE, "tgt_vocab_size": SIZE}),
        "plbart": ("PLBart", BART),
        "blenderbot": ("Blenderbot", {**BART, "scale_embedding": True}),
        "blenderbot-small": ("BlenderbotSmall", BART),
        "umt5": ("UMT5", T5),
        "switch": ("SwitchTransformers", {**T5, **SWITCH}),
        "switch-all": ("SwitchTransformers", {**T5, **SWITCH, **LIMITED}),
        "nllb-moe": ("NllbMoe", {**BART, **NLLB_MOE}),
        "longt5": ("LongT5", {**T5, "local_radius": 3, "encoder_attention_type": "local"}),
        "longt5-global": ("LongT5", {**T5, **GLOBAL}),
        "led": ("LED", {**BART, **LED}),
    }
    kind, values = kinds[name]
    if kind == "FSMT":
        values = {each: value for each, value in values.items() if each != "vocab_size"}
    return f"{kind}ForConditionalGeneration", getattr(transformers, f"{kind}Config")(**values)


NAMES = (
    "fsmt", "plbart", "blenderbot", "blenderbot-small", "umt5", "bert2bert", "roberta2roberta", "bert2gpt2", "t5gemma",
    "t5gemma-unequal", "t5gemma2", "t5gemma2-unequal", "longt5", "longt5-global", "led", "switch", "switch-all",
    "nllb-moe",
)  # fmt: skip
NOT_EXPORTED = ("switch", "switch-all", "nllb-moe")
EXPORTED = {"plbart": "BartForConditionalGeneration", "blenderbot": "PegasusForConditionalGeneration"}
"""Families that are exported as another one, which has the same layout."""
ENGINE = ("fsmt", "plbart", "blenderbot")


@pytest.fixture(scope="module", params=NAMES)
def imported(request):
    """Its name, family, the model of transformers, the settings here, and the model made from its weights."""
    architecture, config = config_of(request.param)
    torch.manual_seed(23)
    theirs = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name or request.param != "fsmt":
                parameter.add_(torch.randn_like(parameter) * 0.15)
    family, state = family_named(PLACE, {"architectures": [architecture]}), theirs.state_dict()
    theirs = family.mended(theirs)
    settings = ModelSettings(**family.model_values(family.read_config(PLACE, config.to_dict()), state))
    model = build_model(settings, SIZE, SIZE).eval()
    model.load_state_dict(family.weights_from(state, settings))
    return request.param, family, theirs, settings, model


def sources():
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(17)[None] < torch.tensor([17, 5, 12])[:, None]
    drawn = torch.randint(4, SIZE, (3, 17), generator=generator).masked_fill(~mask, 1)
    return drawn, mask, torch.randint(4, SIZE, (3, 11), generator=generator)


@torch.no_grad()
def test_encoder_states_and_logits_equal_those_of_transformers(imported):
    _, family, theirs, _, model = imported
    source, mask, target = sources()
    given = {**family.inputs(source, None), "attention_mask": mask.long(), "use_cache": False}
    wanted = theirs(**given, decoder_input_ids=target)
    state = model.start(source, mask)
    memory = wanted.encoder_last_hidden_state.masked_fill(~mask[..., None], 0.0)
    torch.testing.assert_close(state.memory, memory, rtol=0, atol=1e-4)
    hidden, _ = model.decoder(target, state)
    belief = model.head.next_token(hidden.flatten(0, 1), None).log_probs()
    torch.testing.assert_close(belief, wanted.logits.flatten(0, 1).log_softmax(-1), rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 4])
def test_searches_find_the_same_targets(imported, width):
    _, family, theirs, _, model = imported
    source, mask, _ = sources()
    config = family.read_config(PLACE, theirs.config.to_dict())
    written = theirs.generate(
        **family.inputs(source, None), attention_mask=mask.long(), num_beams=width, max_length=LONGEST + 1,
        length_penalty=0.0,
        early_stopping="never" if width > 1 else False, do_sample=False, decoder_start_token_id=config.bos,
        pad_token_id=config.pad, eos_token_id=config.eos, no_repeat_ngram_size=0, min_length=0,
        forced_eos_token_id=None, encoder_no_repeat_ngram_size=0,
    )  # fmt: skip
    strategy = Greedy() if width == 1 else BeamSearch(width=width, length_penalty=LengthPenalty(exponent=0.0))
    limits = torch.full((3,), LONGEST)
    found = search(
        model.step, model.start(source, mask), bos=config.bos, eos=config.eos, strategy=strategy, limits=limits
    )
    for row, hypotheses in zip(written.tolist(), found, strict=True):
        tokens = list(hypotheses[0].tokens)
        assert row[1 : 1 + len(tokens)] == tokens


@torch.no_grad()
def test_the_way_back_gives_the_same_model(imported):
    name, _, theirs, settings, model = imported
    family = family_for(settings)
    if name in NOT_EXPORTED:
        with pytest.raises(SettingsError, match=r"^model\.(experts|encoder): found .* for \w+$"):
            family.weights_to(model, settings)
        return
    assert family.architecture == EXPORTED.get(name, type(theirs).__name__)
    weights = family.weights_to(model, settings)
    if family.architecture == type(theirs).__name__ and name not in ("roberta2roberta", "t5gemma", "t5gemma-unequal"):
        known = {each for each in theirs.state_dict() if not each.startswith(family.left_out)}
        assert known - {*weights} <= family.computed(settings)
        assert {*weights} <= {*theirs.state_dict()}
    again = type(family)().weights_from(weights, settings)
    for each, tensor in model.state_dict().items():
        torch.testing.assert_close(again[each], tensor, rtol=0, atol=1e-6)


def test_the_engine_computes_the_model_or_names_what_it_lacks(imported):
    name, *_, model = imported
    if name in ENGINE:
        assert self_test(build_engine(model, "fp32"), model).agrees
    else:
        with pytest.raises(EngineError, match=r"^engine: model\.\w+: found .*, which the kernels do not have$"):
            build_engine(model, "fp32")


EVEN = "expected an even number above 0, or one for each of 2 layers that divides the largest"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bert2bert", {"encoder": {"model_type": "longformer"}},
         'encoder.model_type: found "longformer"; known: bert, roberta, xlm-roberta, camembert'),
        ("bert2bert", {"encoder": {**BERT, "model_type": "bert", "hidden_size": 16}},
         "encoder.hidden_size: found 16, expected 32, that of the decoder"),
        ("t5gemma", {"decoder": {**GEMMA, "attn_logit_softcapping": 3.0}},
         "encoder.attn_logit_softcapping: found 2.0, expected 3.0, that of the decoder"),
        ("t5gemma", {"encoder": {**GEMMA, "attention_bias": True}},
         "encoder.attention_bias: found true, expected false"),
        ("t5gemma2", {"decoder": {**GEMMA_3, "model_type": "t5gemma2_decoder", "attn_logit_softcapping": 50.0}},
         "decoder.attn_logit_softcapping: found 50.0, expected null"),
        ("t5gemma2", {"decoder": {**GEMMA_3, "model_type": "t5gemma2_decoder", "rope_parameters": {
            "full_attention": {"rope_type": "yarn"}}}},
         'decoder.rope_parameters.full_attention.rope_type: found "yarn", expected "default"'),
        ("t5gemma2", {"encoder": {"model_type": "t5gemma2_encoder", "text_config": {
            **GEMMA_3, "model_type": "t5gemma2_text", "query_pre_attn_scalar": 16}}},
         "encoder.text_config.query_pre_attn_scalar: found 16, expected 9, that of the decoder"),
        ("switch", {"num_experts": 3.5}, "num_experts: found 3.5, expected an integer"),
        ("switch", {"dense_act_fn": "gelu_new"}, "dense_act_fn: found 'gelu_new'; did you mean 'gelu'?"),
        ("nllb-moe", {"moe_token_dropout": "0.2"},
         'moe_token_dropout: found "0.2", expected a number from 0 to below 1'),
        ("nllb-moe", {"second_expert_policy": "sampling"},
         'second_expert_policy: found "sampling", expected "all" for NllbMoeForConditionalGeneration'),
        ("nllb-moe", {"moe_eval_capacity_token_fraction": 0.5},
         "moe_eval_capacity_token_fraction: found 0.5, expected 1.0 for NllbMoeForConditionalGeneration"),
        ("longt5", {"encoder_attention_type": "transient_global"},
         "encoder_attention_type: found 'transient_global'; did you mean 'transient-global'?"),
        ("longt5", {"local_radius": -1}, "local_radius: found -1, expected at least 1"),
        ("longt5-global", {"global_block_size": 0}, "global_block_size: found 0, expected at least 1"),
        ("led", {"attention_window": [4, 8, 8]}, f"attention_window: found [4, 8, 8], {EVEN}"),
        ("led", {"attention_window": [4, 6]}, f"attention_window: found [4, 6], {EVEN}"),
        ("led", {"attention_window": 5}, f"attention_window: found 5, {EVEN}"),
        ("led", {"max_encoder_position_embeddings": "48"},
         'max_encoder_position_embeddings: found "48", expected an integer'),
        ("led", {"scale_embedding": True},
         "scale_embedding: found true, expected false for LEDForConditionalGeneration"),
        ("blenderbot", {"normalize_before": False},
         "normalize_before: found false, expected true for BlenderbotForConditionalGeneration"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused_by_name(name, change, message):
    architecture, config = config_of(name)
    family = FAMILIES[architecture]()
    with raises(SettingsError, f"config.json: {message}"):
        family.model_values(family.read_config(PLACE, {**config.to_dict(), **change}), {})


LINES = (
    "a man rides a bicycle", "two dogs play in the snow", "the children sing and people listen",
    "ein mann fährt rad", "niemand kennt das café",
)  # fmt: skip


@torch.no_grad()
def test_a_t5gemma2_reads_texts_by_gemmas_tokenizer_and_an_import_names_the_tower(tmp_path):
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    library.train_from_iterator(
        [line.replace(" ", "▁") for line in LINES],
        tokenizers.trainers.BpeTrainer(vocab_size=310, special_tokens=special, show_progress=False),
    )
    model = json.loads(library.to_str())["model"]
    tokenizer = transformers.GemmaTokenizer(vocab=model["vocab"], merges=[tuple(each) for each in model["merges"]])
    sizes = {
        **GEMMA_3, "vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
        "final_logit_softcapping": None,
    }  # fmt: skip
    encoder = {"text_config": sizes, "vision_config": TOWER, "eoi_token_index": 270, "mm_tokens_per_image": 4}
    torch.manual_seed(5)
    theirs = transformers.T5Gemma2ForConditionalGeneration(transformers.T5Gemma2Config(encoder=encoder, decoder=sizes))
    for parameter in theirs.eval().parameters():
        parameter.add_(torch.randn_like(parameter) * 0.15)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    imported = translume.import_model(tmp_path / "theirs", tmp_path / "out")
    assert imported.certificate.difference < 1e-4
    place = tmp_path / "theirs" / "config.json"
    assert f"{place}: encoder.vision_config is left out: the model reads no images here" in imported.notes
    ours = load(tmp_path / "out")
    options = {"beam": 3, "strategy": "beam", "max_length": 15, "length_penalty": 0.0, "max_length_ratio": 99.0}
    for text in LINES:
        written = theirs.generate(
            **tokenizer(text, return_tensors="pt"), max_length=16, num_beams=3, length_penalty=0.0,
            early_stopping="never", bad_words_ids=[[0], [2]],
        )[0]  # fmt: skip
        found = ours.translate(text, split="never", **options).hypotheses[0].ids
        assert written.tolist()[1 : 1 + len(found)] == list(found)
    assert translume.export(tmp_path / "out", "huggingface", tmp_path / "back").difference < 1e-4


def roberta_tokenizer(opus, folder):
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(LINES, trainer)
    model = json.loads(library.to_str())["model"]
    tokenizer = transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(each) for each in model["merges"]])
    sizes = {**BERT, "vocab_size": len(tokenizer)}
    return tokenizer, pair(sizes, sizes, ("roberta", "roberta"))


def umt5_tokenizer(opus, folder):
    model = opus.sentencepiece_of(LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=60)
    (folder / "spiece.model").write_bytes(model)
    tokenizer = transformers.T5Tokenizer.from_pretrained(str(folder), extra_ids=7)
    return tokenizer, transformers.UMT5Config(**{**T5, "vocab_size": len(tokenizer)})


@torch.no_grad()
@pytest.mark.parametrize(
    ("build", "tied"), [(roberta_tokenizer, True), (umt5_tokenizer, True), (umt5_tokenizer, False)]
)
def test_a_folder_is_imported_with_its_tokenizer_translated_exported_and_imported_again(opus, tmp_path, build, tied):
    folder = tmp_path / "theirs"
    folder.mkdir()
    tokenizer, config = build(opus, folder)
    torch.manual_seed(5)
    kind = transformers.EncoderDecoderModel if build is roberta_tokenizer else transformers.UMT5ForConditionalGeneration
    theirs = kind(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.15)
    if not tied:  # as in the models of Google; transformers 5 ties every new UMT5
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight) * 0.3)
        theirs.all_tied_weights_keys.pop("lm_head.weight")
        theirs.config.tie_word_embeddings = False
    theirs.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert translume.import_model(folder, tmp_path / "out").certificate.difference < 1e-4
    ours = load(tmp_path / "out")
    ids = {} if build is umt5_tokenizer else {"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    for text in LINES:
        written = theirs.generate(
            **{name: each for name, each in tokenizer(text, return_tensors="pt").items() if name != "token_type_ids"},
            max_length=16, num_beams=3, length_penalty=0.0, early_stopping="never",
            bad_words_ids=[[tokenizer.pad_token_id]],
            **ids,
        )[0]  # fmt: skip
        options = {"beam": 3, "strategy": "beam", "max_length": 15, "length_penalty": 0.0, "max_length_ratio": 99.0}
        found = ours.translate(text, split="never", **options).hypotheses[0].ids
        assert written.tolist()[1 : 1 + len(found)] == list(found)
    assert translume.export(tmp_path / "out", "huggingface", tmp_path / "back").difference < 1e-4
    assert translume.import_model(tmp_path / "back", tmp_path / "third").certificate.difference < 1e-4
