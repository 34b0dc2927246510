"""Export to transformers, as the family that a model's settings describe."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

from translume.checkpoint import Checkpoint
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import Certificate
from translume.interchange.huggingface.compare import compare_with_huggingface
from translume.interchange.huggingface.loading import load_tokenizer, suppress_transformers_output
from translume.interchange.huggingface.reader import family_for
from translume.interchange.huggingface.tokenizer import NAME, TOKENIZER_CONFIG, library_tokenizer

GENERIC = "PreTrainedTokenizerFast"
"""The class that runs any tokenizer.json."""


def write_huggingface(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write the model into the existing empty `folder`, load it with the Auto classes and compare.

    Raises SettingsError for what transformers cannot express, TranslumeError if the two differ too much.
    """
    if dtype != "float32":
        raise SettingsError(f"export: found weights as {dtype!r}, expected 'float32' for huggingface")
    with suppress_transformers_output():
        return _write(checkpoint, folder)


def _write(checkpoint: Checkpoint, folder: Path) -> Certificate:
    family = family_for(checkpoint.config.model)
    written = family.written_tokenizer(checkpoint)
    if checkpoint.source_tokenizer is not checkpoint.target_tokenizer and written is None:
        raise SettingsError("tokenizer.shared: found false, expected true for huggingface")
    if checkpoint.source_tokenizer.vocabulary.library is not None:
        _write_library_tokenizer(checkpoint, family.tokenizer_class, folder)
    else:
        (written or _tokenizer(checkpoint)).save_pretrained(str(folder))
    theirs = _model(checkpoint)
    theirs.generation_config = _generation(checkpoint)
    theirs.save_pretrained(str(folder))
    path = folder / "config.json"
    values = json.loads(path.read_text()) | {**family.stored_values(checkpoint.config.model)}
    path.write_text(json.dumps(values, indent=2) + "\n")
    certificate = compare_with_huggingface(checkpoint, folder)
    path.write_text(json.dumps(values | {"translume": certificate.to_dict()}, indent=2) + "\n")
    return certificate


def _model(checkpoint: Checkpoint) -> Any:
    settings, specials = checkpoint.config.model, checkpoint.target_tokenizer.specials
    family = family_for(settings)
    weights = family.weights_to(checkpoint.model, settings)
    values = {
        "vocab_size": len(checkpoint.source_tokenizer),
        "pad_token_id": specials.pad,
        "bos_token_id": checkpoint.target_tokenizer.languages.get("", specials.bos),
        "eos_token_id": specials.eos,
        "decoder_start_token_id": specials.bos,
    }
    config = AutoConfig.for_model(family.model_type, **values | family.config_values(checkpoint))
    theirs: Any = family.prepared(getattr(transformers, family.architecture)(config), settings)
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    missing = {name for name in missing if not name.startswith(family.left_out)} - family.computed(settings)
    if missing or unexpected:
        raise TranslumeError(f"this release of transformers has other weights: {next(iter([*missing, *unexpected]))}")
    return theirs.eval()


def _generation(checkpoint: Checkpoint) -> GenerationConfig:
    specials, decoding = checkpoint.target_tokenizer.specials, checkpoint.config.decoding
    languages = checkpoint.target_tokenizer.languages if checkpoint.config.model.target_tags else {}
    beam = decoding.beam if decoding.strategy == "beam" else 1
    return GenerationConfig(
        num_beams=beam,
        length_penalty=decoding.length_penalty,
        early_stopping=beam > 1 and decoding.stop == "first",
        no_repeat_ngram_size=decoding.no_repeat_ngram,
        min_length=decoding.min_length + 1 + bool(languages) if decoding.min_length else 0,  # with BOS
        max_length=checkpoint.config.model.max_positions,
        suppress_tokens=list(decoding.suppress) or None,
        begin_suppress_tokens=list(decoding.suppress_first) or None,
        bad_words_ids=[[each] for each in dict.fromkeys((specials.pad, specials.bos)) if each != specials.eos],
        pad_token_id=specials.pad,
        bos_token_id=languages.get("", specials.bos),
        forced_bos_token_id=languages.get(decoding.to),
        eos_token_id=specials.eos,
        decoder_start_token_id=specials.bos,
    )


def _write_library_tokenizer(checkpoint: Checkpoint, tokenizer_class: str, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json of a tokenizer that was imported from such files.

    The class is the usual one of the family if it can read the files and makes the same tokenizer of them.
    """
    tokenizer, limit = checkpoint.source_tokenizer, checkpoint.config.longest_source
    library = tokenizer.vocabulary.library
    assert library is not None
    pieces, specials = tokenizer.pieces(), tokenizer.specials
    values: dict[str, object] = {"model_max_length": limit, "model_input_names": ["input_ids", "attention_mask"]}
    values |= {f"{name}_token": pieces[specials.eos] for name in ("eos", "sep")}
    begin = "<s>" if "" not in tokenizer.languages else pieces[tokenizer.languages[""]]
    values |= {f"{name}_token": begin for name in ("bos", "cls") if begin in pieces}
    values |= {"pad_token": pieces[specials.pad], **({"mask_token": "<mask>"} if "<mask>" in pieces else {})}
    values |= {} if specials.unk is None else {"unk_token": pieces[specials.unk]}
    parts = ("normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
    for each in filter(None, (tokenizer_class, GENERIC)):
        values["tokenizer_class"] = each
        for name, document in ((NAME, library.document), (TOKENIZER_CONFIG, values)):
            (folder / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if each != GENERIC:
            with suppress(TranslumeError):  # the class has another kind of model, as Pegasus' for BlenderBot's files
                made = json.loads(load_tokenizer(folder).backend_tokenizer.to_str())
                if all(made[part] == library.document[part] for part in parts):
                    break


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """Return a tokenizer for transformers made from our rules. Raises SettingsError for tags, which it cannot write."""
    if checkpoint.config.model.language_tags == "target":
        raise SettingsError("model.language_tags: found 'target', expected 'none' or 'source' for huggingface")
    tokenizer = checkpoint.source_tokenizer
    pieces, specials = tokenizer.pieces(), tokenizer.specials
    return PreTrainedTokenizerFast(
        tokenizer_object=library_tokenizer(tokenizer),
        pad_token=pieces[specials.pad],
        bos_token=pieces[specials.bos],
        eos_token=pieces[specials.eos],
        unk_token=None if specials.unk is None else pieces[specials.unk],
        model_max_length=checkpoint.config.longest_source,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )
