"""Where CUDA graphs of one TensorRT context, and of Triton's TensorRT backend, answer wrongly.

    python -m benchmarks.cuda_graphs --out graphs.jsonl

The first part runs TensorRT alone. It captures graphs from one execution context, or from one
context for each batch size, and replays them between plain calls of other sizes. The second part
serves one model on one tritonserver for each graph configuration, and sends requests of one size,
then of several sizes. The third part serves several models with graphs at once (TOGETHER). Each
answer is compared with torch. A line of JSON holds the wrong answers and all answers by batch size.
A GPU, full TensorRT and Triton's TensorRT backend are required; without the backend only the first
part runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

Module = tuple[torch.nn.Module, tuple[int, ...]]
"""A module, and the shape of one row of its input."""

SIZES = (1, 2, 4, 8)
BOTH = ("linear", "convolution")
TOGETHER: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one linear": (("linear",), {}),
    "one convolution": (("convolution",), {}),
    "one linear, two instances": (("linear",), {"instances": 2}),
    "two linear": (("linear", "linear"), {}),
    "two convolutions": (("convolution", "convolution"), {}),
    "one of both": (BOTH, {}),
    "three of both": (BOTH * 3, {}),
    "three of both, loaded in turn": (BOTH * 3, {"in_turn": True}),
    "three of both, warm-up": (BOTH * 3, {"warm_up": True}),
}
"""The models that one server has at once, and how, by the name of the case. All have graphs for
batches of 1 and 4.
"""
LIMIT = 1e-2
"""The largest difference for a correct output of layers of two, relative to the largest value."""

SPECS: dict[str, tuple[int, ...] | None] = {
    "none": None,
    "default": (),
    "1": (1,),
    "4": (4,),
    "8": (8,),
    "1,4": (1, 4),
    "1,2,4,8": SIZES,
}
"""The batch sizes of `graph_spec` by name. () leaves the sizes to the backend."""

MANIFEST = """\
inputs:
  - {{name: x, dtype: float32, shape: [batch, {sizes}]}}
dims:
  batch: {{min: 1, opt: 4, max: 8}}
outputs: [y]
"""


def modules() -> dict[str, Module]:
    """The module and the shape of one row of its input, by name."""
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh()).eval()
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
    images = torch.nn.Sequential(
        convolution, torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    ).eval()
    return {"linear": (linear, (16,)), "convolution": (images, (3, 16, 16))}


def is_wrong(output: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether the shapes differ or a value exceeds LIMIT."""
    if output.shape != truth.shape:
        return True
    return bool((output - truth).abs().max() > LIMIT * truth.abs().max())


def plan(module: torch.nn.Module, row: tuple[int, ...]) -> bytes:
    """Build the plan for a batch of 1 to 8, with one profile for each of SIZES.

    In TensorRT 8.6 a profile belongs to one context at a time.
    """
    import builder
    from builder.engine import BuildOptions, build

    sizes = {"batch": (1, 4, 8)}
    spec = builder.TensorSpec("float32", ("batch", *row), dims=sizes, name="x")
    traced = torch.jit.trace(module, torch.randn(2, *row))
    conversion = builder.convert(traced, [spec], profiles=[sizes] * len(SIZES))
    return build(conversion, BuildOptions(optimization_level=0)).data


class Captured:
    """A graph of one batch size with separate buffers, in the given context."""

    def __init__(self, engine: Any, context: Any, shape: tuple[int, ...]) -> None:
        self.engine, self.context = engine, context
        self.x = torch.zeros(shape, device="cuda")
        self._bind()
        self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run()

    def _bind(self) -> None:
        names = [self.engine.get_tensor_name(i) for i in range(2)]
        self.context.set_input_shape(names[0], tuple(self.x.shape))
        shape = tuple(self.context.get_tensor_shape(names[1]))
        if not hasattr(self, "y"):
            self.y = torch.empty(shape, device="cuda")
        self.context.set_tensor_address(names[0], self.x.data_ptr())
        self.context.set_tensor_address(names[1], self.y.data_ptr())

    def run(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        assert self.context.execute_async_v3(stream)

    def __call__(self, x: torch.Tensor, *, replay: bool) -> torch.Tensor:
        self.x.copy_(x)
        self.y.zero_()
        if replay:
            self.graph.replay()
        else:
            self._bind()
            self.run()
        torch.cuda.synchronize()
        return self.y.cpu()


def _context(engine: Any, profile: int) -> Any:
    context = engine.create_execution_context()
    context.set_optimization_profile_async(
        profile, torch.cuda.current_stream().cuda_stream
    )
    torch.cuda.synchronize()
    return context


def alone(name: str, shared: bool) -> dict[str, Any]:
    """Return the incorrect outputs of TensorRT without a server.

    Graphs are replayed at sizes 1 and 4, and plain calls run at sizes 2 and 8, alternately. With
    `shared`, all use one context.
    """
    from builder.engine.flavor import trt
    from builder.engine.network import logger

    module, row = modules()[name]
    engine = trt.Runtime(logger()).deserialize_cuda_engine(plan(module, row))
    one = _context(engine, 0) if shared else None
    calls = {}
    for profile, size in enumerate(SIZES):
        context = one if shared else _context(engine, profile)
        calls[size] = Captured(engine, context, (size, *row))
    wrong: Counter[int] = Counter()
    with torch.inference_mode():
        for step in range(24):
            size = SIZES[step % len(SIZES)]
            x = torch.randn(size, *row)
            wrong[size] += is_wrong(calls[size](x, replay=size in (1, 4)), module(x))
    return {
        "part": "TensorRT",
        "model": name,
        "contexts": "one" if shared else "one for each size",
        "answers": 6,
        "wrong": dict(wrong),
    }


def publish(folder: Path) -> None:
    """Publish both models for Triton's TensorRT backend, without graphs."""
    from builder.engine import BuildOptions
    from builder.repository import build_repository

    models = folder / "models"
    models.mkdir()
    for name, (module, row) in modules().items():
        torch.jit.trace(module, torch.randn(2, *row)).save(str(models / f"{name}.pt"))
        sizes = ", ".join(map(str, row))
        (models / f"{name}.yaml").write_text(MANIFEST.format(sizes=sizes))
    options = BuildOptions(optimization_level=0)
    results = build_repository(
        models,
        folder / "plain",
        serve_as="tensorrt_plan",
        options=options,
        isolate=False,
    )
    assert all(result.ok for result in results), [
        str(result.error) for result in results
    ]


def configure(
    folder: Path,
    name: str,
    sizes: tuple[int, ...] | None,
    copy_stream: bool,
    warm_up: bool = False,
    instances: int = 1,
) -> None:
    """Write the graph settings into the published configuration, and the folder's name.

    With `warm_up`, also a warm-up request of random data for each of the sizes.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    path = folder / name / "config.pbtxt"
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    config.ClearField("model_warmup")
    config.name = name
    for group in config.instance_group:
        group.count = instances
    row = modules()[name.split("_")[0]][1]
    warm_up_sizes = sizes if warm_up and sizes is not None else ()
    for size in warm_up_sizes:
        request = config.model_warmup.add(name=f"batch-{size}", batch_size=size)
        warm_up_input = request.inputs["x"]
        warm_up_input.data_type = model_config_pb2.TYPE_FP32
        warm_up_input.dims.extend(row)
        warm_up_input.random_data = True
    if sizes is not None:
        config.optimization.cuda.graphs = True
        config.optimization.cuda.output_copy_stream = copy_stream
        for size in sizes:
            spec = config.optimization.cuda.graph_spec.add(batch_size=size)
            spec.input["x"].dim.extend(row)
    path.write_text(text_format.MessageToString(config))


def served(
    folder: Path, name: str, spec: str, copy_stream: bool
) -> Iterator[dict[str, Any]]:
    """Return the incorrect outputs of one server with one model: first one size at a time, then
    alternating sizes.
    """
    import numpy as np
    from tritonclient import grpc

    from builder.serving import FREE_PORTS, serve

    repository = folder / f"{name}-{spec}-{copy_stream}"
    repository.mkdir()
    shutil.copytree(folder / "plain" / name, repository / name)
    configure(repository, name, SPECS[spec], copy_stream)
    module, row = modules()[name]
    facts = {
        "part": "Triton",
        "model": name,
        "graph_spec": spec,
        "output_copy_stream": copy_stream,
    }
    graphs = SPECS[spec] or SIZES
    orders = {f"size {size} only": [size] * 8 for size in graphs}
    orders["sizes in turn"] = list(SIZES) * 6
    for order, requests in orders.items():
        wrong: Counter[int] = Counter()
        errors: Counter[str] = Counter()
        with (
            torch.inference_mode(),
            serve(repository, **FREE_PORTS) as server,
        ):
            client = grpc.InferenceServerClient(server.grpc_url)
            for size in requests:
                x = torch.randn(size, *row)
                sent = grpc.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(
                    x.numpy()
                )
                try:
                    output = client.infer(name, [sent]).as_numpy("y")
                except Exception as refusal:
                    errors[str(refusal)[:120]] += 1
                    continue
                wrong[size] += is_wrong(torch.from_numpy(np.array(output)), module(x))
        yield {
            **facts,
            "requests": order,
            "answers": dict(Counter(requests)),
            "wrong": dict(wrong),
            "errors": dict(errors),
        }


def many(folder: Path, case: str) -> Iterator[dict[str, Any]]:
    """Return the incorrect outputs of a server with the models of a case of TOGETHER.

    The requests are those of one client, then of one client for each model at the same time.
    """
    from tritonclient import grpc

    from builder.serving import FREE_PORTS, serve

    names, settings = TOGETHER[case]
    repository = folder / case.replace(" ", "-")
    models = _copied(folder / "plain", repository, names, settings)
    in_turn = settings.get("in_turn", False)
    with serve(repository, explicit=in_turn, **FREE_PORTS) as server:
        client = grpc.InferenceServerClient(server.grpc_url)
        if in_turn:
            for name in models:
                client.load_model(name)
        for clients in sorted({1, max(len(models), settings.get("instances", 1))}):
            targets = list(models.items()) * (clients if len(models) == 1 else 1)
            with ThreadPoolExecutor(clients) as pool:
                counts_by_target = list(
                    pool.map(partial(_wrong_answers, server.grpc_url), targets)
                )
            by_model = zip(targets, counts_by_target, strict=True)
            yield {
                "part": "Triton, models together",
                "case": case,
                "clients": clients,
                "answers": {size: 6 * len(targets) for size in SIZES},
                "wrong": dict(sum(counts_by_target, Counter())),
                "by_model": [
                    f"{name}: {dict(counts)}" for (name, _), counts in by_model
                ],
            }


def _copied(
    published: Path, repository: Path, names: Sequence[str], settings: dict[str, Any]
) -> dict[str, Module]:
    """Copy the published models into a new repository, with graphs. Returns the module of each."""
    repository.mkdir()
    models = {}
    for number, name in enumerate(names):
        copy = f"{name}_{number}"
        shutil.copytree(published / name, repository / copy)
        configure(
            repository,
            copy,
            SPECS["1,4"],
            copy_stream=False,
            warm_up=settings.get("warm_up", False),
            instances=settings.get("instances", 1),
        )
        models[copy] = modules()[name]
    return models


def _wrong_answers(url: str, model: tuple[str, Module]) -> Counter[int]:
    """Send requests of all sizes in turn to one model. Returns the wrong answers by size."""
    import numpy as np
    from tritonclient import grpc

    name, (module, row) = model
    client = grpc.InferenceServerClient(url)
    wrong: Counter[int] = Counter(dict.fromkeys(SIZES, 0))
    with torch.inference_mode():
        for size in list(SIZES) * 6:
            x = torch.randn(size, *row)
            sent = grpc.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(
                x.numpy()
            )
            output = client.infer(name, [sent]).as_numpy("y")
            wrong[size] += is_wrong(torch.from_numpy(np.array(output)), module(x))
    return wrong


def has_backend() -> bool:
    """Whether the installed tritonserver has the TensorRT backend."""
    from builder.serving.installation import find

    backends = find().backends()
    return backends is not None and "tensorrt" in backends


def main() -> int:
    """Write a line for each measurement, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4, help="servers at a time")
    parser.add_argument(
        "--only-many", action="store_true", help="measure only the third part"
    )
    args = parser.parse_args()
    with args.out.open("a") as out, tempfile.TemporaryDirectory() as folder:

        def note(row: dict[str, Any]) -> None:
            line = json.dumps(row)
            out.write(line + "\n")
            out.flush()
            print(line, flush=True)

        for name in () if args.only_many else modules():
            for shared in (True, False):
                note(alone(name, shared))
        if not has_backend():
            return 0
        publish(Path(folder))
        cases = [
            (name, spec, copy_stream)
            for name in modules()
            for spec in SPECS
            for copy_stream in (False, True)
            if not args.only_many
            and not (spec == "none" and copy_stream)
            and (not copy_stream or spec in ("1", "1,4"))
        ]
        with ThreadPoolExecutor(args.jobs) as pool:
            for case_rows in pool.map(lambda case: _rows(Path(folder), *case), cases):
                for row in case_rows:
                    note(row)
        for case in TOGETHER:
            for row in _rows_of_many(Path(folder), case):
                note(row)
    return 0


def _rows(
    folder: Path, name: str, spec: str, copy_stream: bool
) -> list[dict[str, Any]]:
    try:
        return list(served(folder, name, spec, copy_stream))
    except Exception as failure:
        case = {"model": name, "graph_spec": spec, "output_copy_stream": copy_stream}
        return [
            {
                "part": "Triton",
                **case,
                "failed": f"{type(failure).__name__}: {failure}"[:300],
            }
        ]


def _rows_of_many(folder: Path, case: str) -> list[dict[str, Any]]:
    try:
        return list(many(folder, case))
    except Exception as failure:
        reason = f"{type(failure).__name__}: {failure}"[:300]
        return [{"part": "Triton, models together", "case": case, "failed": reason}]


if __name__ == "__main__":
    raise SystemExit(main())
