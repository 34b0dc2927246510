"""Label smoothing: which share of it each token has, and the mean of the logits that it is spread over.

The loss is (1−ε)·(−log p_y) − ε·Σ_v s_v log p_v with shares s that sum to one. Of a softmax the sum is
Σ_v s_v l_v − lse, and the mean logit is linear in the hidden state, so that no n×V is needed for it.
"""

from torch import Tensor

from translume.heads.precision import wide
from translume.model import LossOptions


def spread(options: LossOptions, vocabulary: int, like: Tensor) -> Tensor | None:
    """[V], which sum to ε: what each token has of the target beside its being the label; None where there is no ε.

    Of the dtype that sums over `like` are kept in.
    """
    if not options.label_smoothing:
        return None
    if options.smoothed is None:
        return like.new_full((vocabulary,), options.label_smoothing / vocabulary, dtype=wide(like))
    return options.label_smoothing * _shares(options.smoothed, like)


class MeanToken:
    """The mean of the tokens that are smoothed over: the logit of its vector and bias is the mean of their logits.

    share: [V], of each token; None for 1/V.  row: [D].  Row and bias are differentiable, in at least fp32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, smoothed: Tensor | None) -> None:
        """weight: [V, D].  bias: [V].  smoothed: [V], as `LossOptions` has it."""
        kept = wide(weight)
        self.share = None if smoothed is None else _shares(smoothed, weight)
        self.bias: Tensor | float = 0.0
        if self.share is None:
            self.row = weight.mean(0, dtype=kept)
            if bias is not None:
                self.bias = bias.mean(dtype=kept)
        else:
            self.row = self.share @ weight.to(kept)
            if bias is not None:
                self.bias = self.share @ bias.to(kept)

    def logit(self, hidden: Tensor) -> Tensor:
        """[n], of hidden states [n, D]."""
        return hidden.to(self.row.dtype) @ self.row + self.bias


def _shares(smoothed: Tensor, like: Tensor) -> Tensor:
    marks = smoothed.to(wide(like))
    return marks / marks.sum()
