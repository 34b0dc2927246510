"""A parallel forward pass over a finished target: attention weights, layer states and the steps' distributions.

Layers receive their attention as a function (`DecoderLayer.forward`), so a recording pass passes in other functions.
It registers no hooks on modules: other threads can translate with the same model at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from translume.belief import Bias, NextToken, exact_topk
from translume.config import DecodingSettings
from translume.decoding import Rule, RuleContext, Truncation
from translume.decoding.used_distribution import own_belief, used_log_probs
from translume.inspection.values import Candidate, LensLayer, RuleEffect, Top
from translume.lazy import Tensor, torch
from translume.text import Tokenizer
from translume.translator.planning import NO_TAGS, Tags

if TYPE_CHECKING:
    from translume.model.attention import CrossAttention, SelfAttention
    from translume.model.layers import DecoderLayer, EncoderLayer
    from translume.model.layout import Layout
    from translume.model.state import Selectable
    from translume.model.transformer import Decoder, Encoder, Transformer

SubLayer = Callable[[Tensor], Tensor]
MAX_WEIGHTS = 1 << 22
"""Maximum number of attention weights of one kind in a trace: of all encoder layers, of self- or cross-attention."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """What the encoder reads and target labels [t], on the device; bos: the id of BOS.

    source: ids [S] with EOS, or frames [L, F].
    tags: of the languages; a text begins with its own, and the decoder reads the target's after BOS.
    """

    source: Tensor
    labels: Tensor
    bos: int
    tags: Tags = NO_TAGS

    @property
    def given(self) -> Tensor:
        """The decoder's input [tags + t], BOS first."""
        return torch.cat([self.labels.new_tensor([self.bos, *self.tags.target]), self.labels[:-1]])

    def blank(self, encoder: "Encoder") -> Tensor:
        """Return an empty source: the ids of tags and EOS, or as many frames that say nothing."""
        from translume.model.frames import FrameEmbedding

        if isinstance(encoder.embedding, FrameEmbedding):
            return encoder.embedding.neutral(self.source)
        return torch.cat([self.source[: len(self.tags.source)], self.source[-1:]])


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """Records of a pass over B sentences, by layer.

    encoder: [B, H, S, S].  decoder: [B, H, t, t], None for a layer without self-attention.  cross: [B, H, t, S].
    Of more than `MAX_WEIGHTS`, `encoder` has none, and the others have the mean of the heads as their only head.
    states: [n, D] after each decoder layer, before the decoder's last norm.
    Positions t are those of the labels; the column of BOS in `decoder` includes the tags after it.
    """

    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor | None] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def without_tags(self, count: int) -> "LayerRecord":
        """Return the records of one sentence without the positions of `count` tags after BOS."""
        if not count:
            return self
        return LayerRecord(
            encoder=self.encoder,
            decoder=[None if each is None else _folded(each[:, :, count:], count) for each in self.decoder],
            cross=[each[:, :, count:] for each in self.cross],
            states=[each[count:] for each in self.states],
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over one sentence: memory [1, S, D], hidden states [t, D], the head's context of t rows, layer records."""

    memory: Tensor
    hidden: Tensor
    context: "Selectable | None"
    layers: LayerRecord


def forward(model: "Transformer", sentence: Sentence, *, attention: bool = False) -> Pass:
    """Run one sentence through the model and record decoder states; with `attention` also attention weights."""
    target = sentence.given[None]
    source, mask = front(model.encoder, sentence.source[None])
    source_layout, layout = layout_of(mask), layout_of(torch.ones_like(target, dtype=torch.bool))
    record = LayerRecord()
    embedded = model.encoder.embed(source, source_layout)
    memory = encode(model.encoder, embedded, source_layout, record if attention else None)
    hidden = decode(model.decoder, target, layout, memory, source_layout, record=record, attention=attention)
    hidden, record = hidden[model.target_tags :], record.without_tags(model.target_tags)
    grid = source_layout.unpack(memory)
    return Pass(grid, hidden, context_of(model, (source, mask, grid), torch.zeros_like(sentence.labels)), record)


def layout_of(mask: Tensor) -> "Layout":
    """Return the layout of the positions of sentences whose mask [B, S] is True."""
    from translume.model.layout import Layout

    return Layout.from_mask(mask)


def front(encoder: "Encoder", sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions [B, S] or [B, S, C] and their mask [B, S], of sources [B, S] or [B, L, F] without padding."""
    return encoder.front(sources, torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device))


def positions_in(encoder: "Encoder", source: Tensor) -> Tensor:
    """Return the position, from 0, that each id of a text [S] belongs to: its own, or that of its segment."""
    from translume.model.embedding import Embedding

    assert isinstance(encoder.embedding, Embedding)
    return encoder.embedding.positions_in(source)


def separators_in(encoder: "Encoder", source: Tensor) -> Tensor:
    """Return whether each id of a text [S] ends a segment that is one position."""
    from translume.model.embedding import SegmentEmbedding

    if isinstance(encoder.embedding, SegmentEmbedding):
        return encoder.embedding.separators[source] > 0
    return torch.zeros_like(source, dtype=torch.bool)


def _folded(weights: Tensor, count: int) -> Tensor:
    """Return weights [..., t + count] with the columns of `count` tags added to that of BOS."""
    return torch.cat([weights[..., : 1 + count].sum(-1, keepdim=True), weights[..., 1 + count :]], -1)


def context_of(model: "Transformer", sources: tuple[Tensor, Tensor, Tensor], owners: Tensor) -> "Selectable | None":
    """Return the head's context of (sources, masks [B, S], memories [B, S, D]) for the rows of sentences `owners`."""
    context = model.head.begin(*sources) if model.head.reads_source else None
    return None if context is None else context.select(owners)


def encode(encoder: "Encoder", x: Tensor, layout: "Layout", record: LayerRecord | None = None) -> Tensor:
    """Return the memory [n, D] of embedded sources [n, D], as `Encoder.packed`; `record` gets attention weights."""
    positions, sources = encoder.positions(layout), encoder.sources(layout)
    for layer in encoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=False)
        size = len(list(encoder.stack)) * layer.self_attention.heads * layout.mask.numel() * layout.mask.size(1)
        if record is not None and size <= MAX_WEIGHTS:
            weigh = partial(_weights, attention=layer.self_attention, layout=layout, encoding=encoder, causal=False)
            attend = _recorded(attend, weigh, record.encoder, 1)
        x = _applied(layer, x, attend, sources)
    result: Tensor = encoder.norm(x)
    return result


def _applied(layer: "EncoderLayer | DecoderLayer", *inputs: Any) -> Tensor:
    """Return what a layer makes of its inputs; it is computed again for gradients, to keep only one layer's results."""
    from translume.model.dropout import recomputed

    result: Tensor = recomputed(layer.compute, *inputs) if torch.is_grad_enabled() else layer(*inputs)
    return result


def decode(
    decoder: "Decoder",
    target: Tensor,
    layout: "Layout",
    memory: Tensor,
    memory_layout: "Layout",
    *,
    record: LayerRecord | None = None,
    attention: bool = False,
) -> Tensor:
    """Return hidden states [n, D] of targets [B, t] over memories [m, D], as `Decoder.packed`.

    record: gets the layers' states; with `attention` also their attention weights.
    """
    from translume.model.attention import SelfAttention

    x, positions = decoder.embedding(layout.pack(target), layout.places), decoder.positions(layout)
    grid = memory_layout.unpack(memory) if record is not None and attention else None
    for layer in decoder.stack:
        attend: SubLayer = partial(layer.self_attention.packed, layout=layout, positions=positions, causal=True)
        cross_attend: SubLayer | None = None
        if layer.merged is not None:
            merged = partial(layer.merged.merged_packed, memory=memory, memory_layout=memory_layout)
            attend = partial(merged, layout=layout, positions=positions)
            if record is not None and grid is not None:
                attend = partial(_merged, attend=attend, layout=layout, record=record, layers=len(decoder.layers))
            x = _applied(layer, x, attend, None)
            if record is not None:
                record.states.append(x)
            continue
        if layer.crosses:
            cross_attend = partial(
                layer.cross_attention.packed, memory=memory, layout=layout, memory_layout=memory_layout
            )
        if record is not None and grid is not None:
            if isinstance(layer.self_attention, SelfAttention):
                weigh = partial(_weights, attention=layer.self_attention, layout=layout, encoding=decoder, causal=True)
                attend = _recorded(attend, weigh, record.decoder, len(list(decoder.stack)))
            else:
                record.decoder.append(None)
            if cross_attend is not None:
                weigh = partial(
                    _cross_weights, attention=layer.cross_attention, layout=layout, memory=(grid, memory_layout)
                )
                cross_attend = _recorded(cross_attend, weigh, record.cross, len(list(decoder.stack)))
        x = _applied(layer, x, attend, cross_attend)
        if record is not None:
            record.states.append(x)
    result: Tensor = decoder.norm(x)
    return result


def _merged(x: Tensor, attend: "Callable[..., Tensor]", layout: "Layout", record: LayerRecord, layers: int) -> Tensor:
    """Apply an attention over target and memory, and record its weights of both, which sum to 1."""
    attended: list[Tensor] = []
    result = attend(x, attended=attended)
    count = layout.mask.size(1)  # the grid may be wider
    record.decoder.append(_limited(attended[0][:, :, :count, :count], layers))
    record.cross.append(_limited(attended[0][:, :, :count, layout.grid.size(1) :], layers))
    return result


def _limited(weights: Tensor, layers: int) -> Tensor:
    """Return weights [B, H, t, S], or the mean of the heads if those of so many layers are more than `MAX_WEIGHTS`."""
    return weights.mean(1, keepdim=True) if layers * weights.numel() > MAX_WEIGHTS else weights


def _weights(
    x: Tensor, attention: "SelfAttention", layout: "Layout", encoding: "Encoder | Decoder", causal: bool
) -> Tensor:
    count = layout.mask.size(1)  # the grid of `positions` may be wider
    positions = encoding.positions_for(count, x.device)
    return attention.weights(layout.unpack(x), layout.mask, positions, causal=causal)


def _cross_weights(x: Tensor, attention: "CrossAttention", layout: "Layout", memory: "tuple[Tensor, Layout]") -> Tensor:
    grid, memory_layout = memory
    return attention.weights(layout.unpack(x), attention.read(grid), memory_layout.mask)


def _recorded(
    sublayer: SubLayer, weights: SubLayer, record: list[Tensor] | list[Tensor | None], layers: int
) -> SubLayer:
    """Extend a sub-layer to append `weights(x)` to `record` before it runs.

    layers: how many have such weights. Of more than `MAX_WEIGHTS` in all, the mean of the heads is appended.
    """

    def recorded(x: Tensor) -> Tensor:
        record.append(_limited(weights(x), layers))
        return sublayer(x)

    return recorded


@dataclass(frozen=True, slots=True)
class UsedDistributions:
    """log p_used [t, V] of one sentence, and the rules that changed each step."""

    log_probs: Tensor
    effects: tuple[tuple[RuleEffect, ...], ...]


def used_distributions(
    belief: NextToken, sentence: Sentence, rules: Sequence[Rule], *, limit: int, eos: int, settings: DecodingSettings
) -> UsedDistributions:
    """Apply rules, temperature and truncation to the predicted distributions [t, V] of a finished target.

    belief: reshaped as in the search.  limit: the length limit of the search.
    The rules are evaluated on each prefix of the target, as the search evaluates them.
    """
    prefix = torch.cat([sentence.labels.new_tensor([sentence.bos]), sentence.labels])[None]
    none = sentence.labels.new_zeros(1)
    own = own_belief(belief).log_probs().double()
    biases: list[Bias] = []
    effects: list[list[RuleEffect]] = [[] for _ in sentence.labels]
    for step in range(len(sentence.labels)):
        context = RuleContext(eos=eos, size=belief.size, step=step, sentences=none, limits=none + limit)
        for rule in rules:
            bias = rule(prefix[:, : 1 + step], context)
            if bias is not None:
                effects[step].append(RuleEffect(name=type(rule).__name__, moved=_moved(own[step, None], bias)))
                biases.append(_at(bias, step, len(sentence.labels), belief.size))
    drawing = settings.strategy in ("sampling", "stochastic")
    used = used_log_probs(belief, Bias.join(biases), settings.temperature if drawing else 1.0).double()
    if settings.strategy == "sampling":
        used = _truncated(used, Truncation.from_settings(settings), effects)
    return UsedDistributions(used, tuple(map(tuple, effects)))


def _at(bias: Bias, step: int, steps: int, size: int) -> Bias:
    """Move the bias of a single row to row `step` of `steps` rows."""
    allowed = None
    if bias.allowed is not None:
        allowed = torch.ones(steps, size, dtype=torch.bool, device=bias.allowed.device)
        allowed[step] = bias.allowed
    return Bias(bias.rows + step, bias.ids, bias.values, allowed)


def _moved(log_probs: Tensor, bias: Bias) -> float:
    """Return the total variation between a distribution [1, V] and the same with the bias, renormalised.

    1 if the bias forbids all tokens.
    """
    own = log_probs.softmax(-1)
    biased = bias.add_to(log_probs)
    if bool(biased.isneginf().all()):
        return 1.0
    return min(1.0, float((biased.softmax(-1) - own).abs().sum()) / 2)


def _truncated(used: Tensor, truncation: Truncation, effects: list[list[RuleEffect]]) -> Tensor:
    """Restrict log p_used to the tokens that sampling draws from; record each cut as one more effect."""
    if truncation.nothing:
        return used
    possible = ~used.isneginf().all(-1, keepdim=True)
    kept = truncation.kept(used) | ~possible
    for step, mass in enumerate(used.exp().masked_fill(kept, 0.0).sum(-1).tolist()):
        if mass > 0.0:
            effects[step].append(RuleEffect(name="Truncation", moved=mass))
    return torch.where(possible, used.masked_fill(~kept, -torch.inf).log_softmax(-1), used)


@dataclass(frozen=True, slots=True)
class LabelStatistics:
    """What is known of each label y in its step's distribution p: log p(y), the rank of y, margin and entropy."""

    log_p: float
    rank: int
    margin: float
    entropy: float


def statistics_of(log_probs: Tensor, labels: Tensor) -> list[LabelStatistics]:
    """Return the statistics of labels [t] in distributions with log-probabilities [t, V]."""
    own = log_probs.gather(1, labels[:, None])[:, 0]
    columns = own, ranks(log_probs, labels), margins(log_probs, labels), entropies(log_probs)
    return [LabelStatistics(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def entropies(log_probs: Tensor) -> Tensor:
    """Return the entropies [t], −Σ p log p, of log-probabilities [t, V], in nats."""
    entropy: Tensor = torch.special.entr(log_probs.exp()).sum(-1)
    return entropy


def ranks(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the rank [t] of each label by log-probabilities [t, V], from 1; ties by smaller id."""
    own = log_probs.gather(1, labels[:, None])
    ids = torch.arange(log_probs.size(1), device=labels.device)
    before = (log_probs > own) | ((log_probs == own) & (ids < labels[:, None]))
    return before.sum(-1) + 1


def margins(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return [t]: the probability of each label minus the largest probability of any other token."""
    own = log_probs.gather(1, labels[:, None])[:, 0].exp()
    others = log_probs.scatter(1, labels[:, None], -torch.inf).amax(-1).exp()
    return own - others


def top_candidates(
    log_probs: Tensor, k: int, tokenizer: Tokenizer, model: Tensor, used: Tensor | None = None
) -> list[Top]:
    """Return the k likeliest possible tokens of each row of log-probabilities [t, V], and the mass of all others.

    model, used: log p_model and log p_used [t, V], which every candidate reports; used is None in a logit lens.
    """
    values, ids = exact_topk(log_probs, min(k, log_probs.size(1)))
    tails = log_probs.exp().scatter_(1, ids, 0.0).sum(-1).tolist()
    possible = (~values.isneginf()).sum(-1).clamp_(min=1).tolist()
    before = model.gather(1, ids).exp().tolist()
    after = None if used is None else used.gather(1, ids).exp().tolist()
    texts = tokenizer.tokens(ids.flatten().tolist())
    listed = []
    for row, numbers in enumerate(ids.tolist()):
        candidates = tuple(
            Candidate(
                id=numbers[place],
                text=texts[row * len(numbers) + place],
                p_model=before[row][place],
                p_used=None if after is None else after[row][place],
            )
            for place in range(possible[row])
        )
        listed.append(Top(candidates=candidates, tail=tails[row]))
    return listed


def logit_lens(
    model: "Transformer", computed: Pass, labels: Tensor, k: int, tokenizer: Tokenizer
) -> list[tuple[LensLayer, ...]]:
    """Return the head's prediction of each label [t] after each layer: the logit lens (nostalgebraist 2020).

    In a pre-norm model, states must pass the decoder's last norm before the head; in a post-norm model they are already
    normalised and `decoder.norm` is the identity.
    """
    layers = []
    for number, state in enumerate(computed.layers.states, start=1):
        log_probs = model.head.next_token(model.decoder.norm(state), computed.context).log_probs().double()
        tops = top_candidates(log_probs, k, tokenizer, log_probs)
        layers.append(
            [
                LensLayer(layer=number, log_p=each.log_p, rank=each.rank, entropy=each.entropy, top=top)
                for each, top in zip(statistics_of(log_probs, labels), tops, strict=True)
            ]
        )
    return list(zip(*layers, strict=True))
