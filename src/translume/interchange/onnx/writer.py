"""Export to ONNX: the files of Optimum and transformers.js, and one graph that translates ids by greedy search."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import GraphProto, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from translume.checkpoint import Checkpoint
from translume.decoding import BestHypotheses, Greedy, decode
from translume.decoding.rules import ForbidTokens
from translume.decoding.step import PromptedState, PromptedStep
from translume.errors import SettingsError, TranslumeError
from translume.interchange.certificate import (
    Certificate,
    ForcedTargets,
    forced_targets,
    label_log_probs,
    padded,
    require_linear_head,
    require_settings,
)
from translume.interchange.onnx.graphs import MAX_EMBEDDED_BYTES, Graphs, Traced, save_graph, silenced, trace
from translume.interchange.onnx.stepper import FOLDER, SUFFIXES, OnnxStepper, file_name, open_session
from translume.text.standard import only_tag, write_tokenizers

MIN_SAME = 0.9
"""Smallest accepted share of sentences with equal greedy translations in float32: random sentences can have ties."""
SEARCH_LENGTH = 20
"""Maximum tokens of the greedy translations that are compared."""


def write_onnx(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write the model into the existing empty `folder`, run it with ONNX Runtime and compare.

    dtype: "float32" or "int8". Raises SettingsError for what the graphs cannot express, TranslumeError if the
    log-probabilities or translations differ too much.
    """
    _refuse(checkpoint, dtype)
    traced = trace(checkpoint.model)
    traced = traced if dtype == "float32" else quantized(traced)
    files = folder / FOLDER
    files.mkdir()
    graphs = Graphs(traced)
    for name, graph in _graphs(checkpoint, graphs).items():
        save_graph(graph, files / file_name(name, dtype), graphs.weights)
    _write_tokenizers(checkpoint, folder)
    _write_json(folder / "generation_config.json", generation_values(checkpoint))
    certificate = _compare(checkpoint, folder, dtype)
    facts = certificate.to_dict()
    if languages := checkpoint.target_tokenizer.languages:
        facts["languages"] = dict(languages)  # the ids of the tags, which no standard file names
    _write_json(folder / "config.json", _config(checkpoint, dtype) | {"translume": facts})
    return certificate


def _refuse(checkpoint: Checkpoint, dtype: str) -> None:
    if dtype not in SUFFIXES:
        raise SettingsError(f"export: found weights as {dtype!r}, expected {' or '.join(map(repr, SUFFIXES))} for onnx")
    require_linear_head(checkpoint, "onnx")
    require_settings(checkpoint.config.model, {"decoder_mixing": ("attention",)}, "onnx")


def quantized(traced: Traced) -> Traced:
    """Return the trace with int8 weights, one scale for each output, and activations quantised while it runs.

    Weights have 7 bits: on processors with AVX2 or AVX-512 and no VNNI, ONNX Runtime adds two products of 8 bits in 16
    bits, which saturates. See `onnxruntime.quantization.quantize_dynamic`.
    """
    with tempfile.TemporaryDirectory() as folder, silenced():
        whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
        save_graph(Graphs(traced).whole(), whole, traced.weights)
        quantize_dynamic(
            whole,
            small,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=sum(value.nbytes for value in traced.weights.values()) > MAX_EMBEDDED_BYTES,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        graph = onnx.load(small).graph
    weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    return replace(traced, nodes=list(graph.node), weights=weights)


def _graphs(checkpoint: Checkpoint, graphs: Graphs) -> Mapping[str, GraphProto]:
    specials = checkpoint.target_tokenizer.specials
    return {
        "encoder_model": graphs.encoder(),
        "decoder_model": graphs.decoder(),
        "decoder_with_past_model": graphs.decoder_with_past(),
        "decoder_model_merged": graphs.merged(),
        "translate": graphs.greedy(
            bos=specials.bos,
            eos=specials.eos,
            pad=specials.pad,
            banned=_banned(checkpoint),
            vocabulary=len(checkpoint.target_tokenizer),
            tags=checkpoint.config.model.target_tags,
        ),
    }


def _banned(checkpoint: Checkpoint) -> list[int]:
    """Return the tokens that no search of ours chooses."""
    specials = checkpoint.target_tokenizer.specials
    return sorted({specials.pad, specials.bos} - {specials.eos})


def _config(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """Return config.json of a Marian model, which Optimum and transformers.js read for the shapes only."""
    settings = checkpoint.config.model
    values: dict[str, Any] = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": len(checkpoint.source_tokenizer),
        "decoder_vocab_size": len(checkpoint.target_tokenizer),
        "share_encoder_decoder_embeddings": checkpoint.source_tokenizer is checkpoint.target_tokenizer,
        "d_model": settings.width,
        "max_position_embeddings": settings.max_positions,
        **_special_ids(checkpoint),
        "forced_eos_token_id": None,
    }
    for side, layers in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        values[f"{side}_layers"] = layers
        values[f"{side}_attention_heads"] = settings.attention_heads
        values[f"{side}_ffn_dim"] = settings.feed_forward
    if dtype == "int8":
        values["transformers.js_config"] = {"dtype": "q8"}
    return values


def _special_ids(checkpoint: Checkpoint) -> dict[str, int]:
    specials = checkpoint.target_tokenizer.specials
    ids = {"pad": specials.pad, "bos": specials.bos, "eos": specials.eos, "decoder_start": specials.bos}
    return {f"{name}_token_id": id_ for name, id_ in ids.items()}


def generation_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return generation_config.json: greedy search with our bans and, if it is known, the tag of every target."""
    languages = checkpoint.target_tokenizer.languages
    tags: Sequence[int | None] = only_tag(checkpoint.target_tokenizer) or [languages.get(checkpoint.config.decoding.to)]
    return {
        "num_beams": 1,
        "max_length": checkpoint.config.model.max_positions,
        "bad_words_ids": [[number] for number in _banned(checkpoint)],
        **_special_ids(checkpoint),
        "forced_bos_token_id": tags[0] if checkpoint.config.model.target_tags else None,
    }


def _write_tokenizers(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the tokenizers' files and, beside a tokenizer.json, tokenizer_config.json for AutoTokenizer."""
    source, path = checkpoint.source_tokenizer, folder / "tokenizer.json"
    write_tokenizers(folder, source, checkpoint.target_tokenizer)
    if not path.exists():
        return
    pieces, specials = source.pieces(), source.specials
    marks = {"pad": specials.pad, "bos": specials.bos, "eos": specials.eos, "unk": specials.unk}
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": checkpoint.config.model.max_positions,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        **{f"{name}_token": pieces[number] for name, number in marks.items() if number is not None},
    }
    _write_json(folder / "tokenizer_config.json", values)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _compare(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    forced = forced_targets(checkpoint)
    certificate = forced.compare(_score(checkpoint, folder, dtype, forced), "ONNX Runtime", folder, dtype)
    same = _same_translations(checkpoint, folder, dtype, forced.sources)
    if dtype == "float32" and same < MIN_SAME * len(forced.sources):
        raise TranslumeError(
            f"{folder}: ONNX Runtime translates {same} of {len(forced.sources)} random sentences as the model does"
        )
    return replace(certificate, same_translations=same)


def _score(checkpoint: Checkpoint, folder: Path, dtype: str, forced: ForcedTargets) -> list[list[float]]:
    """Return the log-probabilities of the targets: half by the merged decoder, half by the two others.

    Each target is read in two parts, so that every graph reads a past.
    """
    merged = OnnxStepper(folder)
    first, later = (
        open_session(folder / FOLDER / file_name(name, dtype)) for name in ("decoder_model", "decoder_with_past_model")
    )
    outputs = [each.name for each in first.get_outputs()]
    past_names = [name.replace("present", "past_key_values", 1) for name in outputs[1:]]
    log_probs = []
    for number, (source, read, labels) in enumerate(forced.examples(checkpoint)):
        ids = torch.from_numpy(source)
        state, middle = merged.start(ids, torch.ones_like(ids, dtype=torch.bool)), read.shape[1] // 2
        if number % 2:
            one, state = merged.read(read[:, :middle], state)
            two, _ = merged.read(read[:, middle:], state)
        else:
            mask = {"encoder_attention_mask": state.mask}
            inputs = mask | {"encoder_hidden_states": state.memory, "input_ids": read[:, :middle]}
            one, *present = first.run(outputs, inputs)
            past = dict(zip(past_names, present, strict=True))
            (two,) = later.run(["logits"], past | mask | {"input_ids": read[:, middle:]})
        scores = label_log_probs(torch.from_numpy(np.concatenate([one, two], 1)), labels)
        tags = checkpoint.config.model.target_tags  # given, not predicted
        log_probs.append([0.0] * tags + scores[tags:])
    return log_probs


@torch.inference_mode()
def _same_translations(checkpoint: Checkpoint, folder: Path, dtype: str, sources: Sequence[list[int]]) -> int:
    """Return the number of sources that the graph with the search and our greedy search translate to the same ids."""
    specials = checkpoint.target_tokenizer.specials
    rows = padded([np.array([*row, *checkpoint.source_tokenizer.specials.source_end]) for row in sources])
    read, mask = map(torch.from_numpy, rows)
    settings = checkpoint.config.model
    limits = torch.full((len(sources),), min(SEARCH_LENGTH, settings.max_positions - settings.target_tags))
    session = open_session(folder / FOLDER / file_name("translate", dtype))
    inputs = {"input_ids": read, "attention_mask": mask.long(), "max_length": limits[:1]}
    tags = settings.target_tags
    prompts = torch.tensor([[specials.bos, *source[:1] * tags] for source in sources])
    if tags:  # any token can be one
        prompts = prompts.clamp(max=len(checkpoint.target_tokenizer) - 1)
        inputs["target_tags"] = prompts[:, 1:]
    (theirs,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    model, greedy = checkpoint.model, Greedy()
    best = BestHypotheses(greedy, len(sources))
    for beam in decode(
        PromptedStep(model.step),
        PromptedState(model.start(read, mask), prompts),
        bos=specials.bos,
        eos=specials.eos,
        strategy=greedy,
        limits=limits,
        rules=[ForbidTokens(tuple(_banned(checkpoint)))],
    ):
        best.add(beam)
    ours = [list(best.hypotheses(number)[0].tokens) for number in range(len(sources))]
    return sum(wanted == ids[: len(wanted)].tolist() for wanted, ids in zip(ours, theirs, strict=True))
