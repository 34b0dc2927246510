"""How good a classifier is in the middle of a run."""

from collections.abc import Callable, Mapping

import torch

from translume.data import BatchPlan, TokenizedCorpus
from translume.model.classifier import Classifier
from translume.text import Labels
from translume.translator.classifier import SURE


def judge_of(
    model: Classifier, corpus: TokenizedCorpus, max_tokens: int, device: torch.device
) -> Callable[[Callable[[], bool]], Mapping[str, float] | None]:
    """A function that measures accuracy and macro-F1 of `model` as it is then, in per cent, on all of `corpus`.

    None soon after the function it is given turns true.
    """
    from translume.evaluation.classification import accuracy_of, macro_f1_of  # here, since the room brings sacreBLEU

    longest = int(corpus.source_lengths.max(initial=0)) + 1
    plan = BatchPlan(corpus, max_tokens=max(max_tokens, longest), seed=0, epoch=0)
    labels = corpus.target_tokenizer
    assert isinstance(labels, Labels)

    def judge(stop: Callable[[], bool]) -> Mapping[str, float] | None:
        gold, found = [], []
        for index in range(len(plan)):
            if stop():
                return None
            batch = plan.batch(index).to(device)
            with torch.no_grad():
                logs = model.belief(batch.source, batch.source_mask).log_probs()
            wanted = batch.labels[:, 0]
            if labels.several:
                gold += [set(row.nonzero()[:, 0].tolist()) for row in wanted.cpu()]
                found += [set(row.nonzero()[:, 0].tolist()) for row in (logs.exp() > SURE).cpu()]
            else:
                gold += [{each} for each in wanted.tolist()]
                found += [{each} for each in logs.argmax(-1).tolist()]
        return {"accuracy": accuracy_of(gold, found), "macro_f1": macro_f1_of(gold, found)}

    return judge
