"""Forced tokens, "why not" and edited sources, compared with searches under the same constraint."""

import pytest
from tests.errors import raises

import translume
from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, TokenizerSettings
from translume.errors import TranslationError
from translume.text import train_tokenizer
from translume.translator import TextHypothesis, Translator

SOURCE = "the cat sat."


def test_a_forced_token_gives_the_best_target_that_contains_it(make):
    translator = make(options=("decoding.max_length=9",))  # a prefix is not subject to the other limits
    found = translator.translate(SOURCE).hypotheses[0]
    assert len(found.ids) > 3
    forced = translume.force_token(translator, SOURCE, 2, "q")
    assert forced.before.ids == found.ids
    assert forced.before.score == pytest.approx(found.score)
    tokenizer = translator.checkpoint.target_tokenizer
    q = tokenizer.encode("q")[0]
    assert forced.after.ids[:3] == (*found.ids[:2], q)
    prefix = tokenizer.decode(forced.after.ids[:3])
    settings = translator.config.decoding.model_copy(update={"prefix": prefix})
    told = translator.translate(SOURCE, settings=settings).hypotheses[0]
    assert (forced.after.ids, forced.after.text) == (told.ids, told.text)
    assert forced.after.token_log_probs == pytest.approx(told.token_log_probs, abs=1e-5)


def test_a_fork_has_the_numbers_of_the_trace(make):
    translator = make()
    trace = translume.trace(translator, SOURCE, k=1000, show=())
    fork = translume.force_token(translator, SOURCE, 1, "q").fork
    step = trace.steps[1]
    assert (fork.step, fork.chosen.id, fork.chosen.text) == (1, trace.target_tokens[1].id, trace.target_tokens[1].text)
    assert fork.chosen.log_p_model == pytest.approx(step.log_p_model, abs=1e-5)
    assert fork.chosen.rank == step.rank
    place = [candidate.text for candidate in step.top_model.candidates].index("q")
    assert (fork.wanted.rank, fork.wanted.text) == (place + 1, "q")
    assert fork.wanted.p_model == pytest.approx(step.top_model.candidates[place].p_model, abs=1e-6)


def test_forcing_the_chosen_token_changes_nothing(make):
    translator = make(options=("decoding.beam=1",))
    found = translator.translate(SOURCE).hypotheses[0]
    forced = translume.force_token(translator, SOURCE, 3, found.ids[3], target=found)
    assert forced.after.ids == forced.before.ids == found.ids
    assert forced.fork.chosen == forced.fork.wanted


def test_many_forced_tokens_give_what_each_gives_alone(make):
    translator = make(options=("decoding.min_length=3",))
    target = translator.translate(SOURCE).hypotheses[0]
    eos = translator.checkpoint.target_tokenizer.specials.eos
    choices = [(step % len(target.ids), token) for step, token in enumerate(["q", "qx", eos, "z", "</s>"] * 5)]
    together = list(translume.force_tokens(translator, SOURCE, choices))
    assert len(together) == 25
    for (step, token), found in zip(choices, together, strict=True):
        if token in (eos, "</s>") and step < 3:
            assert found is None
            continue
        alone = translume.force_token(translator, SOURCE, step, token)
        assert (found.before, found.after.ids, found.after.text) == (alone.before, alone.after.ids, alone.after.text)
        assert found.after.token_log_probs == pytest.approx(alone.after.token_log_probs, abs=1e-5)
        assert (found.fork.step, found.fork.wanted.id) == (alone.fork.step, alone.fork.wanted.id)
        assert found.fork.wanted.log_p_model == pytest.approx(alone.fork.wanted.log_p_model, abs=1e-5)


def test_a_text_of_several_tokens_is_forced_as_a_whole(make):
    translator = make()
    tokenizer = translator.checkpoint.target_tokenizer
    forced = translume.force_token(translator, SOURCE, 1, "qxz")
    spelt = tuple(tokenizer.encode("qxz"))
    assert len(spelt) == 3
    assert forced.after.ids[1:4] == spelt
    assert forced.after.ids[0] == forced.before.ids[0]
    assert (forced.fork.step, forced.fork.wanted.id) == (1, spelt[0])


def test_a_forced_text_starts_a_word_if_the_token_it_replaces_does():
    tokenizer = train_tokenizer(TokenizerSettings(kind="bpe", size=275), ["an ban an ban an"])
    word, inside = map(tokenizer.pieces().index, ("▁an", "an"))
    settings = ModelSettings(width=22, feed_forward=29, encoder_layers=1, decoder_layers=1, attention_heads=11)
    model = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    translator = Translator(
        Checkpoint(config=Config(model=settings), model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    )
    target = TextHypothesis(
        text="ban b",
        tokens=("▁b", "an", "▁b", "</s>"),
        ids=(*map(tokenizer.pieces().index, ("▁b", "an", "▁b")), tokenizer.specials.eos),
        token_log_probs=(-1.0,) * 4,
        log_prob=-4.0,
        score=-1.0,
        finished_by="eos",
    )
    found = [
        translume.force_token(translator, "an", step, text, target=target).fork.wanted.id
        for step, text in ((0, "an"), (1, "an"), (2, "an"), (3, "an"), (1, "▁an"))
    ]
    assert found == [word, inside, word, word, word]


def test_forcing_the_end_ends_the_target(make):
    translator = make()
    forced = translume.force_token(translator, SOURCE, 2, "</s>")
    assert len(forced.after.ids) == 3
    assert (forced.after.ids[-1], forced.after.finished_by) == (
        translator.checkpoint.target_tokenizer.specials.eos,
        "eos",
    )


def test_why_not_gives_the_fork_and_both_continuations(make):
    translator = make()
    found = translator.translate(SOURCE).hypotheses[0]
    tokenizer = translator.checkpoint.target_tokenizer
    text = tokenizer.decode(found.ids[:2]) + "qx"
    why = translume.why_not(translator, SOURCE, text)
    assert (why.found.ids, why.fork.step, why.fork.wanted.text) == (found.ids, 2, "q")
    assert why.fork.chosen.id == found.ids[2]
    assert why.continued.ids[:3] == (*found.ids[:2], why.fork.wanted.id)
    assert why.continued.score >= why.wanted.score
    assert why.wanted.text == text
    score = translator.score(SOURCE, text)
    assert why.wanted.token_log_probs == pytest.approx(score.token_log_probs, abs=1e-5)
    assert why.wanted.score == pytest.approx(score.log_prob / len(score.tokens), abs=1e-5)


def test_why_not_of_the_found_target_has_no_fork(backwards, words):
    found = backwards.translate(words[0])
    why = translume.why_not(backwards, words[0], found.text)
    assert (why.fork, why.continued) == (None, None)
    assert (why.wanted.ids, why.wanted.score) == (why.found.ids, pytest.approx(why.found.score))


def test_a_target_that_rules_forbid_has_a_probability_but_no_score(make):
    translator = make(options=("decoding.min_length=9",))
    why = translume.why_not(translator, SOURCE, "")
    assert (why.fork.step, why.fork.wanted.text, why.continued, why.wanted) == (0, "</s>", None, None)
    assert why.fork.wanted.p_model > 0


def test_moves_of_an_edited_source_equal_forced_decoding(make):
    translator = make()
    edited = translume.edit_source(translator, SOURCE, "the dog sat.")
    before, after = (translator.translate(text).hypotheses[0] for text in (SOURCE, "the dog sat."))
    assert (edited.before.ids, edited.after.ids) == (before.ids, after.ids)
    scores = [translator.score(text, before).token_log_probs for text in (SOURCE, "the dog sat.")]
    assert edited.moves == pytest.approx([b - a for a, b in zip(*scores, strict=True)], abs=1e-5)
    if edited.step is None:
        assert before.ids == after.ids
    else:
        assert before.ids[: edited.step] == after.ids[: edited.step]
        assert before.ids[edited.step : edited.step + 1] != after.ids[edited.step : edited.step + 1]


def test_an_unchanged_source_moves_nothing(make):
    edited = translume.edit_source(make(), SOURCE, SOURCE)
    assert (edited.step, edited.after) == (None, edited.before)
    assert set(edited.moves) == {0.0}


@pytest.mark.parametrize(
    ("step", "token", "message"),
    [
        (99, "q", "step: found 99, expected 0 to {last}, a token of the target"),
        (1, "", "token: found a blank text, expected a piece of the target's vocabulary"),
        (1, " ", "token: found a blank text, expected a piece of the target's vocabulary"),
        (0, "</z>", "token: found '</z>', expected a piece of the target's vocabulary; did you mean '</s>'?"),
        (0, -1, "token: found id -1, expected 0 to 33"),
        (0, "</s>", "target: token 1: every next token is impossible or forbidden, expected one that is neither "
         "(rules: ForbidTokens, MinimumLength, ForcedPrefix)"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_in_one_line(make, step, token, message):
    translator = make(options=("decoding.min_length=9",))
    last = len(translator.translate(SOURCE).hypotheses[0].ids) - 1
    with raises(TranslationError, message.format(last=last)):
        translume.force_token(translator, SOURCE, step, token)
