"""Modules that used to fail, or were refused with a wrong reason, although torch runs them. Each
case has a manifest, and arguments for the original module whose tensors, in order, are those of the
endpoint.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union  # noqa: UP035  # TorchScript's

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = "batch: {min: 1, opt: 2, max: 4}"
N = "n: {min: 3, opt: 4, max: 8}"
PLAIN = (("x", "float32", "batch, n"),)
Inputs = Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Case:
    """One module: `inputs` are the (name, dtype, axes) of the manifest, `ask` returns the arguments
    of a call. With `traced` the module is traced with those, otherwise scripted.
    """

    module: Callable[[], nn.Module]
    ask: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(2, 4),)
    inputs: Inputs = PLAIN
    dims: str = f"{BATCH}\n  {N}"
    more: str = ""
    traced: bool = False
    slow: bool = False
    numbers: bool = False
    """Whether the numbers among the arguments are inputs of the endpoint too."""
    optimized: bool = True
    """Whether torch's graph optimizer keeps what the module does."""

    def sent(self, arguments: Any) -> Iterator[Tensor]:
        """The tensors of a call in order, as a client sends them."""
        if isinstance(arguments, dict):
            arguments = tuple(arguments.values())
        if isinstance(arguments, tuple | list):
            for part in arguments:
                yield from self.sent(part)
        elif isinstance(arguments, Tensor) or (
            self.numbers and isinstance(arguments, float)
        ):
            yield torch.as_tensor(arguments)

    @property
    def name(self) -> str:
        return getattr(self.module, "__name__", "case").lower()

    def save(self, folder: Path) -> Path:
        """The file and its manifest in `folder`; the file is returned."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        module = self.module().eval()
        file = folder / f"{self.name}.pt"
        with torch.no_grad():
            saved = (
                torch.jit.trace(module, self.ask())
                if self.traced
                else torch.jit.script(module)
            )
        saved.save(str(file))
        lines = [
            f"  - {{name: {n}, dtype: {d}, shape: [{axes}]}}"
            for n, d, axes in self.inputs
        ]
        dims = f"dims:\n  {self.dims}\n" if self.dims else ""
        file.with_suffix(".yaml").write_text(
            "\n".join(["inputs:", *lines, dims + self.more])
        )
        return file


# Ifs on sizes and on data.


class ShortenIfLong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) > 5:
            x = x[:, :5]
        return x * 2


class PadIfShort(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) < 6:
            x = F.pad(x, [0, 6 - x.size(1)])
        return x + 1


class MakeEven(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) % 2 == 1:
            x = x[:, :-1]
        return x.relu()


class FactorBySize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.size(1) > 6:
            return x * 2
        elif x.size(1) > 4:
            return x * 3
        else:
            return x.abs() * 4


class PadOrCut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        n = x.size(1)
        if n < 5:
            x = F.pad(x, [0, 5 - n])
        elif n > 5:
            x = x[:, -5:].relu()
        return x * 2


class NestedIfs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            if bool(x.max() > 1):
                y = x * 2
                y = y + 1
            else:
                y = x - 1
        else:
            y = x.abs()
        return y


class NoneInOneBranch(nn.Module):
    """Torch runs the if, and an engine a part of each branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.special.bessel_j0(x)
        more: Optional[Tensor] = None  # noqa: UP045
        if bool(y.sum() > 0):
            z = (y * 2 + 1).relu().sin() * 3 - x
        else:
            z = (y * 3 - 1).abs().cos() * 2 + x
            more = z.exp()
        if more is not None:
            z = z * more
        return torch.special.bessel_j0(z)


class OneValueTwice(nn.Module):
    """A branch inside a loop returns one loop-carried value twice."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x, x + 1
        for _ in range(x.size(0)):
            if bool(a.sum() > 0):
                a, b = b, b
            else:
                a, b = a - 1, b + 1
        return a + b


class EarlyReturns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 2):
            return x * 2
        if bool(x.min() < -1):
            return x.abs()
        if x.size(1) > 6:
            return x - 1
        return x


class CausalTransformer(nn.Module):
    """Scripted nn.Transformer with the usual mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        size = target.size(1)
        mask = torch.triu(torch.full((size, size), float("-inf")), diagonal=1)
        return self.inner(source, target, tgt_mask=mask)


class MaskedTransformer(nn.Module):
    """With PyTorch's own mask, and a target of dynamic length: a branch leaves a value unset."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        return self.inner(source, target, tgt_mask=mask)


class IntegerBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + torch.arange(3)


# Results that are None, numbers or lists.


class NoneOnOnePath(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = False

    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        if self.weights:
            return (x, x * 2)
        return (x * 3, None)


class NoneByArgument(nn.Module):
    def forward(
        self,
        x: Tensor,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        y = x.relu()
        if need_weights:
            return (y, y.mean(1))
        else:
            return (y, None)


class Found(NamedTuple):
    values: Tensor
    aux: Optional[Tensor]  # noqa: UP045


class NoneInNamedTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = False

    def forward(self, x: Tensor) -> Found:
        if self.training or self.weights:
            return Found(x, x.mean(1))
        return Found(x + 1, None)


class ReturnsList(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, List[int]]:  # noqa: UP006
        return x * 2, [8, 16]


class ReturnsAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = [8, 16, 32]

    def forward(self, x: Tensor) -> Tuple[Tensor, List[int]]:  # noqa: UP006
        return x * 2, self.strides


class ReturnsSizes(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, List[int]]:  # noqa: UP006
        return x * 2, [8, x.size(0)]


# Dictionaries and lists that are built in loops.


class OverItems(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        d = {"a": x, "b": x * 2}
        out: Dict[str, Tensor] = {}  # noqa: UP006
        for k, v in d.items():
            out[k] = v + 1
        return out


class DictComprehension(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        d = {"a": x, "b": x * 2}
        return {k: v.relu() for k, v in d.items()}


class ListComprehension(nn.Module):
    def forward(self, x: Tensor) -> List[Tensor]:  # noqa: UP006
        d = {"a": x, "b": x * 2}
        return [v + 1 for v in d.values()]


class Pyramid(nn.Module):
    """As torchvision's feature pyramids: zip of names and results into a dictionary."""

    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        names = ["p2", "p3"]
        results = [x + 1]
        results.insert(0, x * 2)
        out: Dict[str, Tensor] = {}  # noqa: UP006
        for name, value in zip(names, results):  # noqa: B905
            out[name] = value
        return out


class PyramidAttribute(nn.Module):
    """The names are an attribute, and one is appended; the results come from a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["p2", "p3"]
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        names: List[str] = []  # noqa: UP006
        for name in self.names:
            names.append(name)
        results: List[Tensor] = []  # noqa: UP006
        for layer in self.layers:
            results.append(layer(x))
        names.append("pool")
        results.append(results[-1].mean(1, keepdim=True))
        out: Dict[str, Tensor] = {}  # noqa: UP006
        for name, value in zip(names, results):  # noqa: B905
            out[name] = value
        return out


class ZipComprehension(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        names = ["a", "b"]
        results = [x, x * 2]
        return {k: v for k, v in zip(names, results)}  # noqa: B905, C416


class Ordered(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        return OrderedDict([("out", x * 2), ("aux", x + 1)])


class OrderedOfZip(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        pairs: List[Tuple[str, Tensor]] = []  # noqa: UP006
        for name, value in zip(["a", "b"], [x, x * 2]):  # noqa: B905
            pairs.append((name, value))
        return OrderedDict(pairs)


class EnumerateIntoDict(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        found: Dict[str, Tensor] = {}  # noqa: UP006
        for index, value in enumerate([x, x * 2]):
            found[str(index)] = value
        return found


class EnumerateFormatted(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        found: Dict[str, Tensor] = {}  # noqa: UP006
        for index, value in enumerate([x, x * 2]):
            found[f"level{index}"] = value
        return found


class EnumerateIntoNumbers(nn.Module):
    def forward(self, x: Tensor) -> Dict[int, Tensor]:  # noqa: UP006
        found: Dict[int, Tensor] = {}  # noqa: UP006
        for index, value in enumerate([x, x * 2]):
            found[index] = value
        return found


class RepeatedKey(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        return {"a": x * 2, "b": x, "a": x + 1}  # noqa: F601


class KeyOfData(nn.Module):
    """The sum of [[1, 1, 1]] is 3, so the dictionary has one entry."""

    def forward(self, x: Tensor) -> Tensor:
        entries: Dict[int, Tensor] = {int(x.sum()): x, 3: x * 2}  # noqa: UP006
        return torch.stack(list(entries.values())).sum(0)


class KeyOfPairs(nn.Module):
    """Tuples in a list, which no pass can lower."""

    def forward(self, x: Tensor) -> Tensor:
        return x * len(OrderedDict([(int(x.sum()), x), (3, x * 2)]))


class ReturnsTuples(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tuple[Tensor, Tensor]]:  # noqa: UP006
        return {"a": (x, x * 2), "b": (x + 1, x - 1)}


class CountedKeys(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        counts: Dict[str, int] = {}  # noqa: UP006
        for i in range(x.size(1)):
            key = str(int(x[0, i]) % 3)
            counts[key] = counts.get(key, 0) + 1
        return x * len(counts)


class WritesElement(nn.Module):
    """torch's graph optimizer drops this write; Python does it."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        y = x.clone()
        held = [y]
        z = torch.tanh(x)
        held[0].mul_(0.5)
        return z, torch.stack(held).mean(0)


# Optional and nested inputs.


class Recurrent(nn.Module):
    """The standard signature of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 4, batch_first=True)

    def forward(
        self,
        x: Tensor,
        hc: Optional[Tuple[Tensor, Tensor]] = None,  # noqa: UP006, UP045
    ) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:  # noqa: UP006
        return self.inner(x, hc)


class Sent(NamedTuple):
    values: Tensor
    mask: Optional[Tensor]  # noqa: UP045


class OptionalField(nn.Module):
    def forward(self, sent: Sent) -> Tensor:
        mask = sent.mask
        if mask is not None:
            return sent.values * mask
        return sent.values * 2


class ListInput(nn.Module):
    def forward(self, xs: List[Tensor]) -> Tensor:  # noqa: UP006
        return torch.stack([x.relu() for x in xs]).sum(0)


class DictInput(nn.Module):
    def forward(self, features: Dict[str, Tensor]) -> Tensor:  # noqa: UP006
        return features["p3"] - features["p2"]


class NestedInputs(nn.Module):
    """Lists, tuples and dictionaries within dictionaries."""

    def forward(
        self,
        maps: Dict[str, List[Tensor]],  # noqa: UP006
        pairs: Dict[str, Tuple[Tensor, Tensor]],  # noqa: UP006
        more: Dict[str, Dict[str, Tensor]],  # noqa: UP006
    ) -> Dict[str, Tuple[Tensor, List[Tensor]]]:  # noqa: UP006
        first, second = pairs["a_1"]
        xs = maps["x"]
        return {
            "o": (xs[0] + first, [second, xs[1] * more["b"]["c"]]),
            "p": (xs[1], xs),
        }


class UnionArgument(nn.Module):
    def forward(self, x: Tensor, scale: Union[int, float] = 2.5) -> Tensor:  # noqa: UP007
        if isinstance(scale, float):
            return x * scale
        return x + scale


class NotTensors(nn.Module):
    def forward(
        self, x: Tensor, threshold: float, n: int, flag: bool, mode: str
    ) -> Tensor:
        if flag:
            x = x * n
        if mode == "relu":
            x = x.relu()
        return x - threshold


class ReturnsNumber(nn.Module):
    """No user of the number has a source location."""

    def forward(self, x: Tensor, n: float) -> Tuple[float, Tensor]:  # noqa: UP006
        return n, x


# Operators.


class Pool1d(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(x, 2) + F.avg_pool1d(x, 2)


class AdaptivePool1d(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x, 2)


class AreaPool1d(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (
            F.interpolate(x, size=2, mode="area")
            + F.lp_pool1d(x.abs(), 2.0, 8)[..., :1]
        )


class FarthestPoints(nn.Module):
    """The inner loop of PointNet++: `dist[mask] = d[mask]`, then a reduction."""

    def forward(self, x: Tensor) -> Tensor:
        distance = torch.ones(x.size(0), x.size(1)) * 1e10
        farthest = torch.zeros(x.size(0), dtype=torch.long)
        rows = torch.arange(x.size(0))
        chosen: List[Tensor] = []  # noqa: UP006
        for _ in range(2):
            chosen.append(farthest)
            center = x[rows, farthest, :].view(-1, 1, 3)
            d = torch.sum((x - center) ** 2, -1)
            mask = d < distance
            distance[mask] = d[mask]
            farthest = torch.max(distance, -1)[1]
        return torch.stack(chosen, 1)


class Cache(nn.Module):
    def forward(self, cache: Tensor, new: Tensor, position: Tensor) -> Tensor:
        p = int(position)
        cache = cache.clone()
        cache[:, :, p : p + 1] = new
        return cache


class Decoder(nn.Module):
    """A list of tokens that a while loop fills."""

    def forward(self, x: Tensor) -> Tensor:
        tokens: List[int] = [1]  # noqa: UP006
        while len(tokens) < 5 and tokens[-1] != 0:
            tokens.append(int((x.sum() * tokens[-1]).abs()) % 4)
        return torch.tensor(tokens)


class Viterbi(nn.Module):
    """A loop in torch reads the list of a loop in TensorRT: the partition did not terminate."""

    def forward(self, x: Tensor) -> Tensor:
        score = x[:, 0]
        history: List[Tensor] = []  # noqa: UP006
        for t in range(1, x.size(1)):
            score, best = (score.unsqueeze(2) + x[:, t].unsqueeze(1)).max(1)
            history.append(best)
        tag = score.argmax(1)
        path = [tag]
        for best in history[::-1]:
            tag = best.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.insert(0, tag)
        return torch.stack(path, 1)


class NumberFromLoop(nn.Module):
    """The number is unset where the loop ends without a return."""

    def forward(self, x: Tensor) -> Tuple[Tensor, int]:  # noqa: UP006
        total = x.sum()
        for i in range(3):
            if bool(total > 3):
                return total, i
            total = total + 1
        return total, -1


class NumberInTuple(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pair = (x, 1) if bool(x.sum() > 0) else (x + 1, 2)
        return pair[0] * pair[1]


class OptionalTuple(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pair: Optional[Tuple[Tensor, int]] = None  # noqa: UP006, UP045
        if bool(x.sum() > 0):
            pair = (x, 3)
        return x if pair is None else pair[0] * pair[1]


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.size(0) << 2)


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * sorted([x.size(0), x.size(1)])[0]


class AffineGrid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        theta = torch.tensor([[[1.0, 0.0, 0.1], [0.0, 1.0, 0.0]]]).expand(
            x.size(0), 2, 3
        )
        grid = F.affine_grid(
            theta, [x.size(0), 1, x.size(2), x.size(3)], align_corners=False
        )
        return F.grid_sample(x, grid, align_corners=False)


class OneArgumentWhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0)[0]


class AdaptiveIndices(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        return F.adaptive_max_pool2d(x, 2, return_indices=True)


@torch.jit.script
class Pair:
    def __init__(self, a: Tensor, b: Tensor):
        self.a = a
        self.b = b

    def total(self) -> Tensor:
        return self.a + self.b


class WithClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pair = Pair(x, x * 2)
        return pair.total()


@torch.jit.script
class Scaled:
    def __init__(self, n: int):
        self.n = n

    def of(self, x: Tensor) -> Tensor:
        return x * self.n if self.n > 1 else x


class WithNumberInClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Scaled(x.size(0)).of(x)


@torch.jit.script
class Moved:
    def __init__(self, value: Tensor):
        self.value = value

    def move(self, by: float):
        self.value = self.value + by


class ObjectsInList(nn.Module):
    """A write to an attribute of an object in a list is not state of the module."""

    def forward(self, x: Tensor) -> Tensor:
        objects = [Moved(x), Moved(x * 2)]
        for one in objects:
            one.move(0.5)
        return objects[0].value - objects[1].value


@torch.jit.script
class Images:
    def __init__(self, tensors: Tensor, sizes: List[Tuple[int, int]]):  # noqa: UP006
        self.tensors = tensors
        self.sizes = sizes


@torch.jit.script
class Coder:
    def __init__(self, weights: Tuple[float, float]):  # noqa: UP006
        self.weights = weights

    def decode(self, x: Tensor) -> Tensor:
        return x * self.weights[0] + self.weights[1]


class Detector(nn.Module):
    """The interface of torchvision's detection models, with their objects and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.coder = Coder((2.0, 1.0))
        self.anchors = [torch.ones(4), torch.zeros(4)]
        self.layer = nn.Conv2d(3, 4, 1)
        self.warned = False

    def batched(
        self,
        images: List[Tensor],  # noqa: UP006
        targets: Optional[List[Dict[str, Tensor]]],  # noqa: UP006, UP045
    ) -> Tuple[Images, Optional[List[Dict[str, Tensor]]]]:  # noqa: UP006, UP045
        for i in range(len(images)):
            target = targets[i] if targets is not None else None
            if target is not None:
                target["boxes"] = target["boxes"].mul_(2.0)
            if targets is not None and target is not None:
                targets[i] = target
        size = [len(images), 3, images[0].size(1), images[0].size(2)]
        sizes: List[Tuple[int, int]] = []  # noqa: UP006
        batch = images[0].new_full(size, 0)
        for i in range(len(images)):
            image = images[i]
            batch[i, :, : image.shape[1], : image.shape[2]].copy_(image)
            sizes.append((image.size(1), image.size(2)))
        return Images(batch, sizes), targets

    def forward(
        self,
        images: List[Tensor],  # noqa: UP006
        targets: Optional[List[Dict[str, Tensor]]] = None,  # noqa: UP006, UP045
    ) -> Tuple[Dict[str, Tensor], List[Dict[str, Tensor]]]:  # noqa: UP006
        losses: Dict[str, Tensor] = {}  # noqa: UP006
        batch, targets = self.batched([image for image in images], targets)  # noqa: C416
        scores = self.coder.decode(self.layer(batch.tensors)).flatten(2)
        found: List[Dict[str, Tensor]] = []  # noqa: UP006
        for i, size in enumerate(batch.sizes):
            kept = scores[i].amax(0) * self.anchors[i % 2].sum() > 0
            boxes = scores[i].t()[kept].clamp_(max=float(size[0]))
            found.append({"boxes": boxes})
        if not self.warned:
            print("losses and detections")
            self.warned = True
        return losses, found


class ComparisonTimesNumber(nn.Module):
    """torch's optimizer keeps the traced product in bool."""

    def forward(self, x: Tensor) -> Tensor:
        return (x > 0) * 3


class WriteBetweenCats(nn.Module):
    """torch's optimizer merges the `cat` calls and reads the written tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1
        first = torch.cat([x, y])
        y.fill_(0)
        return torch.cat([first, x[:1]])


class Autocast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x * 2
        return y + 1


class DoublePrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Training(nn.Module):
    """Saved in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(x), 0.5, self.training)

    def eval(self) -> nn.Module:
        return self


class AutocastOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.inner(x)
        return y.float() + 1


def floats(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(*shape),)


RECURRENT: Inputs = (
    ("x", "float32", "batch, n, 4"),
    ("hc_0", "float32", "1, batch, 4"),
    ("hc_1", "float32", "1, batch, 4"),
)
SENT: Inputs = (
    ("sent.values", "float32", "batch, n"),
    ("sent.mask", "float32", "batch, n"),
)
ROWS: Inputs = (("x", "float32", "batch, n, 8"),)
IMAGE: Inputs = (("x", "float32", "batch, 3, n, n"),)

CASES = (
    Case(ShortenIfLong, slow=True),
    Case(PadIfShort, slow=True),
    Case(MakeEven, slow=True),
    Case(FactorBySize, slow=True),
    Case(PadOrCut),
    Case(NoneInOneBranch, more="fallback: {min_block_size: 1}\n"),
    Case(NestedIfs, slow=True),
    Case(OneValueTwice, slow=True),
    Case(EarlyReturns, slow=True),
    Case(
        CausalTransformer,
        lambda: (torch.randn(2, 4, 8), torch.randn(2, 3, 8)),
        (("source", "float32", "batch, n, 8"), ("target", "float32", "batch, 3, 8")),
        slow=True,
    ),
    Case(
        MaskedTransformer,
        lambda: (torch.randn(2, 3, 8), torch.randn(2, 4, 8)),
        (("source", "float32", "batch, 3, 8"), ("target", "float32", "batch, n, 8")),
        slow=True,
    ),
    Case(IntegerBias, floats(2, 3), (("x", "float32", "batch, 3"),), BATCH),
    Case(NoneOnOnePath),
    Case(NoneByArgument),
    Case(NoneInNamedTuple),
    Case(ReturnsList),
    Case(ReturnsAttribute),
    Case(ReturnsSizes),
    Case(OverItems),
    Case(DictComprehension),
    Case(ListComprehension),
    Case(Pyramid),
    Case(PyramidAttribute, inputs=(("x", "float32", "batch, 4"),), dims=BATCH),
    Case(ZipComprehension),
    Case(Ordered),
    Case(OrderedOfZip),
    Case(EnumerateIntoDict),
    Case(EnumerateFormatted),
    Case(EnumerateIntoNumbers),
    Case(RepeatedKey),
    Case(KeyOfData, lambda: (torch.ones(1, 3),)),
    Case(KeyOfPairs, lambda: (torch.ones(1, 3),)),
    Case(ReturnsTuples),
    Case(CountedKeys),
    Case(WritesElement, optimized=False),
    Case(
        Recurrent,
        lambda: (torch.randn(2, 3, 4), (torch.randn(1, 2, 4), torch.randn(1, 2, 4))),
        RECURRENT,
    ),
    Case(
        type("RecurrentWithoutState", (Recurrent,), {}),
        floats(2, 3, 4),
        RECURRENT[:1],
    ),
    Case(OptionalField, lambda: (Sent(torch.randn(2, 4), torch.randn(2, 4)),), SENT),
    Case(
        type("OptionalFieldLeftOut", (OptionalField,), {}),
        lambda: (Sent(torch.randn(2, 4), None),),
        SENT[:1],
    ),
    Case(
        ListInput,
        lambda: ([torch.randn(2, 4), torch.randn(2, 4)],),
        (("xs_0", "float32", "batch, n"), ("xs_1", "float32", "batch, n")),
    ),
    Case(
        DictInput,
        lambda: ({"p3": torch.randn(2, 4), "p2": torch.randn(2, 4)},),
        (
            ("features.p3", "float32", "batch, n"),
            ("features.p2", "float32", "batch, n"),
        ),
    ),
    Case(
        NestedInputs,
        lambda: (
            {"x": [torch.randn(2, 4), torch.randn(2, 4)]},
            {"a_1": (torch.randn(2, 4), torch.randn(2, 4))},
            {"b": {"c": torch.randn(2, 4)}},
        ),
        tuple(
            (name, "float32", "batch, n")
            for name in "maps.x_0 maps.x_1 pairs.a_1_0 pairs.a_1_1 more.b.c".split()
        ),
    ),
    Case(UnionArgument, lambda: (torch.randn(2, 4), 3), more="constants: {scale: 3}\n"),
    Case(
        NotTensors,
        lambda: (torch.randn(2, 4), 0.5, 2, True, "relu"),
        more="constants: {threshold: 0.5, n: 2, flag: true, mode: relu}\n",
    ),
    Case(
        type("NumberAsTensor", (NotTensors,), {}),
        lambda: (torch.randn(2, 4), 0.5, 2, True, "relu"),
        (*PLAIN, ("threshold", "float32", "")),
        more="constants: {n: 2, flag: true, mode: relu}\n",
        numbers=True,
    ),
    Case(
        ReturnsNumber,
        lambda: (torch.randn(2, 4), 7.0),
        (*PLAIN, ("n", "float32", "")),
        numbers=True,
    ),
    Case(Pool1d, floats(2, 4, 8), ROWS, slow=True),
    Case(type("Pool1dUnbatched", (Pool1d,), {}), floats(2, 4), PLAIN, slow=True),
    Case(
        type("Pool1dOfOne", (Pool1d,), {}),
        floats(1, 2, 4),
        (("x", "float32", "1, batch, n"),),
        slow=True,
    ),
    Case(AdaptivePool1d, floats(2, 4, 8), ROWS, slow=True),
    Case(AreaPool1d, floats(2, 4, 8), ROWS, slow=True),
    Case(
        FarthestPoints, floats(2, 4, 3), (("x", "float32", "batch, n, 3"),), slow=True
    ),
    Case(
        Cache,
        lambda: (torch.randn(2, 4, 6, 2), torch.randn(2, 4, 1, 2), torch.tensor(1)),
        (
            ("cache", "float32", "batch, n, 6, 2"),
            ("new", "float32", "batch, n, 1, 2"),
            ("position", "int64", ""),
        ),
        slow=True,
    ),
    Case(Decoder, slow=True),
    Case(Viterbi, floats(2, 4, 3), (("x", "float32", "batch, n, 3"),)),
    Case(NumberFromLoop),
    Case(NumberInTuple, slow=True),
    Case(OptionalTuple),
    Case(Shifted, slow=True),
    Case(Sorted, slow=True),
    Case(AffineGrid, floats(2, 3, 4, 4), IMAGE, slow=True),
    Case(OneArgumentWhere, slow=True),
    Case(AdaptiveIndices, floats(2, 3, 4, 4), IMAGE, slow=True),
    Case(WithClass),
    Case(WithNumberInClass),
    Case(ObjectsInList),
    Case(
        Detector,
        lambda: ([torch.randn(3, 4, 6)],),
        (("images_0", "float32", "3, n, 6"),),
        f"{N}",
        "max_lengths: {output_1: 1}\n",
    ),
    Case(ComparisonTimesNumber, traced=True, optimized=False),
    Case(WriteBetweenCats, traced=True, optimized=False),
    Case(Autocast),
    Case(
        DoublePrecision,
        lambda: (torch.randn(2, 4).double(),),
        (("x", "float64", "batch, 4"),),
        BATCH,
    ),
    Case(Training, inputs=(("x", "float32", "batch, 4"),), dims=BATCH),
    Case(AutocastOn, inputs=(("x", "float32", "batch, 4"),), dims=BATCH),
)
