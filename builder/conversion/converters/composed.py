"""Operators composed of others, of no family: conjugates, membership, sums to a shape, group norms,
unpooling.
"""

from __future__ import annotations

from builder.conversion.composing import compose, function

SAME = "the tensor itself: no network has complex or lazily negated tensors"

compose(
    __name__,
    {
        f"aten::{name}(Tensor{alias} self) -> Tensor{alias}": (
            SAME,
            function("self: Tensor", "return self"),
        )
        for name, alias in (
            ("resolve_conj", "(a)"),
            ("resolve_neg", "(a)"),
            ("real", "(a)"),
            ("conj_physical", ""),
        )
    },
)
compose(
    __name__,
    {
        "aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor": (
            "whether each element is among the others, every pair compared",
            function(
                "elements: Tensor, test_elements: Tensor, assume_unique: bool, invert: bool",
                "found = torch.any(elements.unsqueeze(-1) == test_elements.reshape([-1]), -1)",
                "if invert:",
                "    found = torch.logical_not(found)",
                "return found",
            ),
        ),
        "aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor": (
            "whether each element is the number",
            function(
                "elements: Tensor, test_element: number, assume_unique: bool, invert: bool",
                "found = elements == test_element",
                "if invert:",
                "    found = torch.logical_not(found)",
                "return found",
            ),
        ),
        "aten::sum_to_size(Tensor self, SymInt[] size) -> Tensor": (
            "summed over the axes that `size` has not, or has as 1",
            function(
                "self: Tensor, size: List[int]",
                "x = self",
                "more = self.dim() - len(size)",
                "if len(size) == 0:",
                "    return torch.sum(self)",
                "for i in range(more):",
                "    x = torch.sum(x, [0])",
                "for i in range(len(size)):",
                "    if size[i] == 1:",
                "        x = torch.sum(x, [i], True)",
                "return x",
            ),
        ),
        "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)": (
            "group_norm, each group's mean and the reciprocal of its deviation",
            function(
                "input: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], N: int, C: int,"
                " HxW: int, group: int, eps: float",
                "groups = input.reshape([input.size(0), group, -1])",
                "mean = torch.mean(groups, [2])",
                "apart = groups - mean.unsqueeze(2)",
                "variance = torch.mean(apart * apart, [2])",
                "return torch.group_norm(input, group, weight, bias, eps), mean,"
                " torch.rsqrt(variance + eps)",
            ),
        ),
    },
)

_UNPOOL = (
    "spatial = len(output_size)",
    "batch = self.size()[:-spatial]",
    "volume = 1",
    "for n in output_size:",
    "    volume = volume * n",
    "flat = torch.zeros([], dtype=self.dtype).expand(batch + [volume])",
    (
        "flat = torch.scatter(flat, -1, torch.flatten(indices, -spatial), torch.flatten(self,"
        " -spatial))"
    ),
    "return flat.reshape(batch + output_size)",
)
compose(
    __name__,
    {
        "aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor": (
            "values put back where pooling found them, zeros elsewhere",
            function("self: Tensor, indices: Tensor, output_size: List[int]", *_UNPOOL),
        ),
        "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor": (
            "values put back where pooling found them, zeros elsewhere",
            function(
                "self: Tensor, indices: Tensor, output_size: List[int], stride: List[int], padding:"
                " List[int]",
                *_UNPOOL,
            ),
        ),
    },
)
