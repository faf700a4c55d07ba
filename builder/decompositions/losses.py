"""Losses, by PyTorch's documented formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import Number, decomposition


def reduced(loss: Tensor, reduction: int) -> Tensor:
    # torch.nn._reduction: 0 is "none", 1 "mean", 2 "sum"
    if reduction == 1:
        loss = loss.mean()
    elif reduction == 2:
        loss = loss.sum()
    return loss


@decomposition("aten::mse_loss")
def mse_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """(self - target)^2"""
    difference = self - target
    return reduced(difference * difference, reduction)


@decomposition("aten::l1_loss")
def l1_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """|self - target|"""
    return reduced(torch.abs(self - target), reduction)


@decomposition("aten::smooth_l1_loss")
def smooth_l1_loss(self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """d^2 / (2 beta) where d = |self - target| < beta, else d - beta / 2"""
    d = torch.abs(self - target)
    if beta == 0.0:
        loss = d
    else:
        loss = torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)
    return reduced(loss, reduction)


@decomposition("aten::huber_loss")
def huber_loss(self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """d^2 / 2 where d = |self - target| <= delta, else delta (d - delta / 2)"""
    d = torch.abs(self - target)
    return reduced(
        torch.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta)), reduction
    )


@decomposition("aten::soft_margin_loss")
def soft_margin_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """log(1 + exp(-target self))"""
    return reduced(torch.log1p(torch.exp(-target * self)), reduction)


@decomposition("aten::kl_div")
def kl_div(self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    """target (log target - self), 0 where target is 0"""
    if log_target:
        loss = torch.exp(target) * (target - self)
    else:
        loss = torch.xlogy(target, target) - target * self
    return reduced(loss, reduction)


@decomposition("aten::binary_cross_entropy")
def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    """-(target log self + (1 - target) log(1 - self)), logarithms not below -100"""
    yes = torch.clamp_min(torch.log(self), -100.0)
    no = torch.clamp_min(torch.log1p(-self), -100.0)
    loss = (target - 1.0) * no - target * yes
    if weight is not None:
        loss = loss * weight
    return reduced(loss, reduction)


@decomposition("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    reduction: int,
) -> Tensor:
    """binary_cross_entropy of sigmoid(self), without saturation"""
    logarithm = torch.ops.aten.log_sigmoid(self)
    if pos_weight is not None:
        factor = (pos_weight - 1.0) * target + 1.0
        loss = (1.0 - target) * self - factor * logarithm
    else:
        loss = (1.0 - target) * self - logarithm
    if weight is not None:
        loss = loss * weight
    return reduced(loss, reduction)


@decomposition("aten::hinge_embedding_loss")
def hinge_embedding_loss(
    self: Tensor, target: Tensor, margin: float, reduction: int
) -> Tensor:
    """self where target is 1, max(0, margin - self) where it is -1"""
    zero = torch.zeros_like(self)
    near = torch.where(target != 1, torch.clamp_min(margin - self, 0.0), zero)
    return reduced(near + torch.where(target != -1, self, zero), reduction)


@decomposition("aten::margin_ranking_loss")
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: int
) -> Tensor:
    """max(0, margin - target (input1 - input2))"""
    return reduced(
        torch.clamp_min(-target * (input1 - input2) + margin, 0.0), reduction
    )


@decomposition("aten::cosine_embedding_loss")
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: int
) -> Tensor:
    """1 - cos where target is 1, max(0, cos - margin) where it is -1"""
    axis = target.dim()
    product = torch.sum(input1 * input2, [axis])
    one = torch.sum(input1 * input1, [axis]) + 1e-12
    two = torch.sum(input2 * input2, [axis]) + 1e-12
    cosine = product / torch.sqrt(one * two)
    zero = torch.zeros_like(cosine)
    loss = torch.where(target == 1, 1.0 - cosine, zero)
    loss = loss + torch.where(target == -1, torch.clamp_min(cosine - margin, 0.0), zero)
    return reduced(loss, reduction)


@decomposition("aten::triplet_margin_loss")
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduction: int,
) -> Tensor:
    """max(0, margin + |anchor - positive| - |anchor - negative|)"""
    near = torch.pairwise_distance(anchor, positive, p, eps)
    far = torch.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, torch.pairwise_distance(positive, negative, p, eps))
    return reduced(torch.clamp_min(margin + near - far, 0.0), reduction)


@decomposition("aten::poisson_nll_loss")
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool,
    full: bool,
    eps: float,
    reduction: int,
) -> Tensor:
    """exp(input) - target input (or input - target log(input + eps)), Stirling's term if full"""
    if log_input:
        loss = torch.exp(input) - target * input
    else:
        loss = input - target * torch.log(input + eps)
    if full:
        stirling = target * torch.log(target) - target
        stirling = stirling + 0.5 * torch.log(6.283185307179586 * target)
        loss = loss + torch.where(target <= 1, torch.zeros_like(stirling), stirling)
    return reduced(loss, reduction)


@decomposition("aten::multi_margin_loss")
def multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: Number,
    margin: Number,
    weight: Tensor | None,
    reduction: int,
) -> Tensor:
    """the mean over the other classes of max(0, margin - x[target] + x)^p, 0 for NaN"""
    x = self
    labels = target.reshape([-1])
    if self.dim() < 2:
        x = self.reshape([1, -1])
    own = torch.gather(x, 1, labels.unsqueeze(1))
    terms = margin - own + x
    others = torch.arange(x.size(1)).unsqueeze(0) != labels.unsqueeze(1)
    counted = torch.logical_and(others, terms > 0)
    if p == 2:
        terms = terms * terms
    if weight is not None:
        terms = terms * torch.index_select(weight, 0, labels).unsqueeze(1)
    terms = torch.where(counted, terms, torch.zeros_like(terms))
    loss = torch.sum(terms, [1]) / x.size(1)
    if self.dim() < 2:
        loss = loss.reshape(target.size())
    return reduced(loss, reduction)


def weights_of_labels(weight: Tensor, labels: Tensor) -> Tensor:
    return torch.index_select(weight, 0, labels.reshape([-1])).reshape(labels.size())


def weights_along(weight: Tensor, like: Tensor, axis: int) -> Tensor:
    shape = [1] * like.dim()
    shape[axis] = like.size(axis)
    return weight.reshape(shape)


def weighted(loss: Tensor, factor: Tensor, reduction: int) -> Tensor:
    if reduction == 1:
        loss = loss.sum() / factor.sum()
    elif reduction == 2:
        loss = loss.sum()
    return loss


@decomposition("aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss2d")
def nll_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """-x[target], weighted by class; ignored targets have weight 0"""
    axis = 0
    if self.dim() > 1:
        axis = 1
    is_counted = target != ignore_index
    labels = torch.where(is_counted, target, torch.zeros_like(target))
    loss = -torch.gather(self, axis, labels.unsqueeze(axis)).squeeze(axis)
    factor = is_counted.to(self.dtype)
    if weight is not None:
        factor = factor * weights_of_labels(weight, labels)
    loss = torch.where(is_counted, loss * factor, torch.zeros_like(loss))
    return weighted(loss, factor, reduction)


def entropy_of_probabilities(
    logarithms: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    axis: int,
    label_smoothing: float,
) -> Tensor:
    wanted = target
    if label_smoothing > 0.0:
        wanted = target * (1.0 - label_smoothing) + label_smoothing / logarithms.size(
            axis
        )
    terms = logarithms * wanted
    if weight is not None:
        terms = terms * weights_along(weight, logarithms, axis)
    loss = -torch.sum(terms, [axis])
    if reduction == 1:
        loss = loss.sum() / (logarithms.numel() // logarithms.size(axis))
    elif reduction == 2:
        loss = loss.sum()
    return loss


def entropy_spread_over_classes(
    logarithms: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    axis: int,
) -> Tensor:
    # the label smoothing term: all classes have equal weight
    is_counted = target != ignore_index
    terms = logarithms
    factor = is_counted.to(logarithms.dtype)
    if weight is not None:
        terms = terms * weights_along(weight, logarithms, axis)
        labels = torch.where(is_counted, target, torch.zeros_like(target))
        factor = factor * weights_of_labels(weight, labels)
    spread = -torch.sum(terms, [axis])
    spread = torch.where(is_counted, spread, torch.zeros_like(spread))
    return weighted(spread, factor, reduction)


@decomposition("aten::cross_entropy_loss")
def cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """nll_loss of log_softmax(self), for class numbers or probabilities, with label smoothing"""
    axis = 0
    if self.dim() > 1:
        axis = 1
    logarithms = torch.log_softmax(self, axis)
    if torch.is_floating_point(target):
        loss = entropy_of_probabilities(
            logarithms, target, weight, reduction, axis, label_smoothing
        )
    else:
        loss = torch.ops.aten.nll_loss_nd(
            logarithms, target, weight, reduction, ignore_index
        )
        if label_smoothing > 0.0:
            spread = entropy_spread_over_classes(
                logarithms, target, weight, reduction, ignore_index, axis
            )
            loss = loss * (1.0 - label_smoothing) + spread * (
                label_smoothing / self.size(axis)
            )
    return loss
