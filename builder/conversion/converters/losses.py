"""Losses, which networks that score their own answers compute: PyTorch's documented formulas."""

from __future__ import annotations

from builder.conversion.composing import compose, function


def _reduced(*lines: str) -> tuple[str, ...]:
    """A body that ends with the mean (1), the sum (2) or all (0) of `loss`."""
    return (
        *lines,
        "if reduction == 1:",
        "    loss = loss.mean()",
        "elif reduction == 2:",
        "    loss = loss.sum()",
        "return loss",
    )


PAIR = "self: Tensor, target: Tensor, reduction: int"

compose(
    __name__,
    {
        "aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor": (
            "(self - target)^2",
            function(PAIR, *_reduced("d = self - target", "loss = d * d")),
        ),
        "aten::l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor": (
            "|self - target|",
            function(PAIR, *_reduced("loss = torch.abs(self - target)")),
        ),
        "aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor": (
            "d^2 / (2 beta) where d = |self - target| < beta, else d - beta / 2",
            function(
                f"{PAIR}, beta: float",
                *_reduced(
                    "d = torch.abs(self - target)",
                    "if beta == 0.0:",
                    "    loss = d",
                    "else:",
                    "    loss = torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)",
                ),
            ),
        ),
        "aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor": (
            "d^2 / 2 where d = |self - target| <= delta, else delta (d - delta / 2)",
            function(
                f"{PAIR}, delta: float",
                *_reduced(
                    "d = torch.abs(self - target)",
                    "loss = torch.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))",
                ),
            ),
        ),
        "aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor": (
            "log(1 + exp(-target self))",
            function(PAIR, *_reduced("loss = torch.log1p(torch.exp(-target * self))")),
        ),
        "aten::kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False) -> Tensor": (
            "target (log target - self), 0 where target is 0",
            function(
                f"{PAIR}, log_target: bool",
                *_reduced(
                    "if log_target:",
                    "    loss = torch.exp(target) * (target - self)",
                    "else:",
                    "    loss = torch.xlogy(target, target) - target * self",
                ),
            ),
        ),
        "aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor": (
            "-(target log self + (1 - target) log(1 - self)), logarithms not below -100",
            function(
                "self: Tensor, target: Tensor, weight: Optional[Tensor], reduction: int",
                *_reduced(
                    "yes = torch.clamp_min(torch.log(self), -100.0)",
                    "no = torch.clamp_min(torch.log1p(-self), -100.0)",
                    "loss = (target - 1.0) * no - target * yes",
                    "if weight is not None:",
                    "    loss = loss * weight",
                ),
            ),
        ),
        "aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor": (
            "the same of sigmoid(self), which does not saturate",
            function(
                "self: Tensor, target: Tensor, weight: Optional[Tensor], pos_weight:"
                " Optional[Tensor], reduction: int",
                *_reduced(
                    "logarithm = torch.ops.aten.log_sigmoid(self)",
                    "if pos_weight is not None:",
                    "    factor = (pos_weight - 1.0) * target + 1.0",
                    "    loss = (1.0 - target) * self - factor * logarithm",
                    "else:",
                    "    loss = (1.0 - target) * self - logarithm",
                    "if weight is not None:",
                    "    loss = loss * weight",
                ),
            ),
        ),
        "aten::hinge_embedding_loss(Tensor self, Tensor target, float margin=1., int reduction=1) -> Tensor": (
            "self where target is 1, max(0, margin - self) where it is -1",
            function(
                "self: Tensor, target: Tensor, margin: float, reduction: int",
                *_reduced(
                    "near = torch.where(target != 1, torch.clamp_min(margin - self, 0.0),"
                    " torch.zeros_like(self))",
                    "loss = near + torch.where(target != -1, self, torch.zeros_like(self))",
                ),
            ),
        ),
        "aten::margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor": (
            "max(0, margin - target (input1 - input2))",
            function(
                "input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: int",
                *_reduced("loss = torch.clamp_min(-target * (input1 - input2) + margin, 0.0)"),
            ),
        ),
        "aten::cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor": (
            "1 - cos where target is 1, max(0, cos - margin) where it is -1",
            function(
                "input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: int",
                *_reduced(
                    "axis = target.dim()",
                    "product = torch.sum(input1 * input2, [axis])",
                    "one = torch.sum(input1 * input1, [axis]) + 1e-12",
                    "two = torch.sum(input2 * input2, [axis]) + 1e-12",
                    "cosine = product / torch.sqrt(one * two)",
                    "zero = torch.zeros_like(cosine)",
                    "loss = torch.where(target == 1, 1.0 - cosine, zero)",
                    "loss = loss + torch.where(target == -1, torch.clamp_min(cosine - margin, 0.0),"
                    " zero)",
                ),
            ),
        ),
        "aten::triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1., float p=2., float eps=9.9999999999999995e-07, bool swap=False, int reduction=1) -> Tensor": (
            "max(0, margin + |anchor - positive| - |anchor - negative|)",
            function(
                "anchor: Tensor, positive: Tensor, negative: Tensor, margin: float, p: float, eps:"
                " float, swap: bool, reduction: int",
                *_reduced(
                    "near = torch.pairwise_distance(anchor, positive, p, eps)",
                    "far = torch.pairwise_distance(anchor, negative, p, eps)",
                    "if swap:",
                    "    far = torch.minimum(far, torch.pairwise_distance(positive, negative, p,"
                    " eps))",
                    "loss = torch.clamp_min(margin + near - far, 0.0)",
                ),
            ),
        ),
        "aten::poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor": (
            (
                "exp(input) - target input (input - target log(input + eps)), Stirling's term added"
                " for full"
            ),
            function(
                "input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float,"
                " reduction: int",
                *_reduced(
                    "if log_input:",
                    "    loss = torch.exp(input) - target * input",
                    "else:",
                    "    loss = input - target * torch.log(input + eps)",
                    "if full:",
                    "    stirling = target * torch.log(target) - target + 0.5 *"
                    " torch.log(6.283185307179586 * target)",
                    "    loss = loss + torch.where(target <= 1, torch.zeros_like(stirling),"
                    " stirling)",
                ),
            ),
        ),
        "aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor": (
            "the mean over the other classes of max(0, margin - x[target] + x)^p",
            function(
                "self: Tensor, target: Tensor, p: number, margin: number, weight: Optional[Tensor],"
                " reduction: int",
                *_reduced(
                    "x = self",
                    "labels = target.reshape([-1])",
                    "if self.dim() < 2:",
                    "    x = self.reshape([1, -1])",
                    "own = torch.gather(x, 1, labels.unsqueeze(1))",
                    "terms = torch.clamp_min(margin - own + x, 0.0)",
                    "if p == 2:",
                    "    terms = terms * terms",
                    "if weight is not None:",
                    "    terms = terms * torch.index_select(weight, 0, labels).unsqueeze(1)",
                    "others = torch.arange(x.size(1)).unsqueeze(0) != labels.unsqueeze(1)",
                    "loss = torch.sum(torch.where(others, terms, torch.zeros_like(terms)), [1]) /"
                    " x.size(1)",
                    "if self.dim() < 2:",
                    "    loss = loss.reshape(target.size())",
                ),
            ),
        ),
    },
)

_LIKELIHOOD = (
    "axis = 0",
    "if self.dim() > 1:",
    "    axis = 1",
    "kept = target != ignore_index",
    "labels = torch.where(kept, target, torch.zeros_like(target))",
    "loss = -torch.gather(self, axis, labels.unsqueeze(axis)).squeeze(axis)",
    "factor = kept.to(self.dtype)",
    "if weight is not None:",
    (
        "    factor = factor * torch.index_select(weight, 0,"
        " labels.reshape([-1])).reshape(labels.size())"
    ),
    "loss = torch.where(kept, loss * factor, torch.zeros_like(loss))",
    "if reduction == 1:",
    "    loss = loss.sum() / factor.sum()",
    "elif reduction == 2:",
    "    loss = loss.sum()",
    "return loss",
)
_ENTROPY = (
    "axis = 0",
    "if self.dim() > 1:",
    "    axis = 1",
    "logarithms = torch.log_softmax(self, axis)",
    "if torch.is_floating_point(target):",
    "    wanted = target",
    "    if label_smoothing > 0.0:",
    "        wanted = target * (1.0 - label_smoothing) + label_smoothing / self.size(axis)",
    "    terms = logarithms * wanted",
    "    if weight is not None:",
    "        shape = [1] * self.dim()",
    "        shape[axis] = self.size(axis)",
    "        terms = terms * weight.reshape(shape)",
    "    loss = -torch.sum(terms, [axis])",
    "    if reduction == 1:",
    "        loss = loss.sum() / (self.numel() // self.size(axis))",
    "    elif reduction == 2:",
    "        loss = loss.sum()",
    "else:",
    "    loss = torch.ops.aten.nll_loss_nd(logarithms, target, weight, reduction, ignore_index)",
    "    if label_smoothing > 0.0:",
    "        kept = target != ignore_index",
    "        terms = logarithms",
    "        factor = kept.to(self.dtype)",
    "        if weight is not None:",
    "            shape = [1] * self.dim()",
    "            shape[axis] = self.size(axis)",
    "            terms = terms * weight.reshape(shape)",
    "            labels = torch.where(kept, target, torch.zeros_like(target))",
    "            each = torch.index_select(weight, 0, labels.reshape([-1])).reshape(labels.size())",
    "            factor = factor * each",
    "        spread = -torch.sum(terms, [axis])",
    "        spread = torch.where(kept, spread, torch.zeros_like(spread))",
    "        if reduction == 1:",
    "            spread = spread.sum() / factor.sum()",
    "        elif reduction == 2:",
    "            spread = spread.sum()",
    "        loss = loss * (1.0 - label_smoothing) + spread * (label_smoothing / self.size(axis))",
    "return loss",
)
_LABELLED = (
    "self: Tensor, target: Tensor, weight: Optional[Tensor], reduction: int, ignore_index: int"
)
_NLL = "Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100"

compose(
    __name__,
    {
        f"aten::{name}({_NLL}) -> Tensor": (
            "-x[target], weighted by class; ignored targets count for nothing",
            function(_LABELLED, *_LIKELIHOOD),
        )
        for name in ("nll_loss", "nll_loss_nd", "nll_loss2d")
    },
)
compose(
    __name__,
    {
        f"aten::cross_entropy_loss({_NLL}, float label_smoothing=0.) -> Tensor": (
            (
                "nll_loss of log_softmax(self), for class numbers or probabilities, with label"
                " smoothing"
            ),
            function(f"{_LABELLED}, label_smoothing: float", *_ENTROPY),
        )
    },
)
