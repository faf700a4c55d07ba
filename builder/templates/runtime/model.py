"""Serves one model of a trt-build repository in Triton's Python backend: its TensorRT plan on a GPU, else torch on the
CPU; or, where it is cut into segments, all of them in this one process.

Everything about the model is read from the files beside this one (plan.json, model.plan, lowered.pt, segment_<n>.plan,
segment_<n>.pt) and from the config that Triton hands over; nothing is baked in, and trt-build itself need not be
installed. Every response carries the parameters `trt_build.answered_by` ("plan", "torch", "plan+torch"),
`trt_build.device`, `trt_build.why`, and for segments `trt_build.segments` (which answered each), where the server has
response parameters (25.02 and later). On any server a request with the parameter `trt_build.describe` is answered by an
error whose text ends in the same facts as JSON; that is all an older Python backend can say beside the outputs.
"""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

import contextlib
import importlib
import json
import runpy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

DESCRIBE = "trt_build.describe"
MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
TENSORRT_TO_TORCH = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "FLOAT": torch.float32,
}


class InvalidRequest(Exception):
    """The client's mistake: a shape outside every profile."""


class NoPlan(Exception):
    """Why the plan cannot run here."""


class Description(Exception):
    """Not a failure: the answer to a request that asks who answers."""


class TritonPythonModel:
    """Triton's entry: one object for each instance, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the plan, or the lowered module and say why not the plan."""
        folder = Path(args["model_repository"]) / args["model_version"]
        facts = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.name = args["model_name"]
        self.batching = int(json.loads(args["model_config"]).get("max_batch_size", 0)) > 0
        self.tensors = facts["serving"]
        self.memory = Memory(folder.parent, self.tensors, self.batching)
        for name in facts.get("libraries", ()):
            _load_library(folder / "libraries" / name)
        self.answerer = _answerer(folder, facts, args)
        self.parameters = {
            "trt_build.answered_by": self.answerer.kind,
            "trt_build.device": self.answerer.device,
            "trt_build.why": self.answerer.why,
        }
        if hasattr(self.answerer, "told"):
            self.parameters["trt_build.segments"] = self.answerer.told
        pb_utils.Logger.log_info(f"trt-build: model {self.name!r}: {json.dumps(self.parameters)}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request; those that fit together are run as one batch."""
        self.answerer.lends = len(requests) == 1
        with torch.cuda.stream(self.answerer.stream) if self.answerer.stream else contextlib.nullcontext():
            return self._execute(requests)

    def _execute(self, requests: list[Any]) -> list[Any]:
        responses: list[Any] = [None] * len(requests)
        groups: dict[Any, list[tuple[int, list[torch.Tensor]]]] = {}
        for index, request in enumerate(requests):
            try:
                self._describe_if_asked(request)
                tensors = self._inputs(request)
            except Exception as error:
                responses[index] = self._failure(error)
                continue
            key = tuple(t.shape[1:] for t in tensors) if self.batching else index
            groups.setdefault(key, []).append((index, tensors))
        for group in groups.values():
            for index, answer in self._run_group(group):
                self.memory.keep(requests[index], answer)
                responses[index] = self._respond(requests[index], answer)
        return responses

    def finalize(self) -> None:
        """Let go of the engine before the process ends."""
        self.answerer = None

    def _run_group(self, group: list[tuple[int, list[torch.Tensor]]]) -> list[tuple[int, Any]]:
        """(index, tensors or the exception) of each; if a batch fails, each request is tried alone, so that only the
        bad one fails.
        """
        try:
            return self._run_together(group)
        except Exception as error:
            if len(group) == 1:
                return [(group[0][0], error)]
        return [answer for one in group for answer in self._run_group([one])]

    def _run_together(self, group: list[tuple[int, list[torch.Tensor]]]) -> list[tuple[int, Any]]:
        if len(group) == 1:
            index, tensors = group[0]
            return [(index, self._run(tensors))]
        sizes = [tensors[0].shape[0] for _, tensors in group]
        columns = zip(*(tensors for _, tensors in group))
        outputs = self._run([torch.cat(column) for column in columns])
        for declared, output in zip(self.tensors["outputs"], outputs):
            if output.dim() == 0 or output.shape[0] != sum(sizes):
                raise RuntimeError(
                    f"output {declared['name']!r} has shape {list(output.shape)} for a batch of {sum(sizes)}"
                )
        rows = zip(*(output.split(sizes) for output in outputs))
        return [(index, list(row)) for (index, _), row in zip(group, rows)]

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        _check_shapes(self.name, self.tensors, tensors)
        return self.answerer.run(tensors)

    def _describe_if_asked(self, request: Any) -> None:
        parameters = request.parameters() if hasattr(request, "parameters") else ""
        if DESCRIBE in parameters and json.loads(parameters).get(DESCRIBE):
            raise Description(json.dumps(self.parameters))

    def _inputs(self, request: Any) -> list[torch.Tensor]:
        kept = self.memory.of(request)
        sent = [t for t in self.tensors["inputs"] if t["name"] not in kept]
        given = {t["name"]: _to_torch(pb_utils.get_input_tensor_by_name(request, t["name"]), t) for t in sent}
        tensors = [{**given, **kept}[t["name"]] for t in self.tensors["inputs"]]
        self.parameters["trt_build.inputs_on"] = "+".join(sorted({tensor.device.type for tensor in tensors}))
        return tensors

    def _respond(self, request: Any, answer: Any) -> Any:
        if isinstance(answer, Exception):
            return self._failure(answer)
        try:
            wanted = set(request.requested_output_names())
            pairs = zip(self.tensors["outputs"], answer)
            tensors = [_from_torch(t["name"], tensor, t) for t, tensor in pairs if t["name"] in wanted]
        except Exception as error:
            return self._failure(error)
        return _response(tensors, self.parameters)

    def _failure(self, error: Exception) -> Any:
        code = "INTERNAL" if not isinstance(error, (InvalidRequest, Description)) else "INVALID_ARG"
        text = f"model {self.name!r}: {error}"
        if code == "INTERNAL":
            pb_utils.Logger.log_error(f"trt-build: {text}")
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code)))


def _load_library(path: Path) -> None:
    """Custom operators: a shared library, or a Python file that registers them by torch.library."""
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name=path.stem)
    else:
        torch.ops.load_library(str(path))


class Memory:
    """The state of every open sequence of this instance, by correlation id; nothing where the model has no state.

    Triton hands all requests of a sequence to one instance, in order, at most one of them in a batch, and refuses a
    sequence that does not begin with a start. It does not say when it ends one that was silent for too long: such are
    the least recently used, and make room when more are kept than can be open.
    """

    def __init__(self, folder: Path, tensors: dict[str, Any], batching: bool) -> None:
        self.states = tensors.get("state", ())
        self.limit = tensors.get("max_sequences", 0)
        self.places = {t["name"]: place for place, t in enumerate(tensors["outputs"])}
        self.start = {s["input"]: _start(folder, s, batching) for s in self.states}
        self.sequences: OrderedDict[Any, dict[str, torch.Tensor]] = OrderedDict()

    def of(self, request: Any) -> dict[str, torch.Tensor]:
        """The state that the request finds, by input name. A start forgets what the sequence had."""
        if not self.states:
            return {}
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sequences.pop(request.correlation_id(), None)
            return self.start
        if request.correlation_id() not in self.sequences:
            raise InvalidRequest(
                f"sequence {request.correlation_id()} has no state: its start failed, so start it anew"
            )
        return self.sequences[request.correlation_id()]

    def keep(self, request: Any, answer: Any) -> None:
        """Remember what the request leaves; one that failed leaves what it found."""
        if not self.states:
            return
        sequence = request.correlation_id()
        if not isinstance(answer, Exception):
            self.sequences[sequence] = {s["input"]: self._copy(answer, s["output"]) for s in self.states}
            self.sequences.move_to_end(sequence)
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self.sequences.pop(sequence, None)
        while len(self.sequences) > self.limit:
            self.sequences.popitem(last=False)

    def _copy(self, answer: list[torch.Tensor], output: str) -> torch.Tensor:
        """Its own memory: the answer may be a row of a batch, or a buffer that the next run uses again. On the CPU, so
        that sequences whose clients are there and elsewhere still make one batch."""
        return answer[self.places[output]].detach().to("cpu", copy=True).contiguous()


def _start(folder: Path, state: dict[str, Any], batching: bool) -> torch.Tensor:
    """What a sequence starts from, of the model's shape: zeros, or the raw values of a file."""
    dtype, shape = getattr(torch, state["dtype"]), ([1] if batching else []) + state["shape"]
    if state["initial"] == "zeros":
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(bytearray((folder / state["initial"]).read_bytes()), dtype=dtype).reshape(shape)


class TorchAnswerer:
    """A graph in TorchScript, on the CPU unless told otherwise."""

    kind, device = "torch", "cpu"

    def __init__(self, path: Path, why: str, device: str = "cpu") -> None:
        self.why, self.device, self.stream = why, device, None
        self.module = torch.jit.load(str(path), map_location=device).eval()
        if device != "cpu":
            _move(self.module.graph, device)

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Without TorchScript's profiling executor, which recompiles, slowly, for each new shape."""
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            answer = self.module(*(tensor.to(self.device) for tensor in tensors))
        return [answer] if isinstance(answer, torch.Tensor) else list(answer)


def _move(graph: Any, device: str) -> None:
    """Let the graph make its tensors on the device. Devices that stand in it (torch.arange, .to) are the CPU, where it
    was loaded and checked; where none stands (torch.zeros) it would be the CPU too.
    """
    for node in _nodes(graph):
        if node.kind() == "prim::Constant" and str(node.output().type()) == "Device":
            node.s_("value", device)
        elif node.kind().startswith("aten::") and not any(str(v.type()) == "Tensor" for v in node.inputs()):
            names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
            if "device" in names and str(node.inputsAt(names.index("device")).type()) == "NoneType":
                graph.setInsertPoint(node)
                node.replaceInput(names.index("device"), graph.insertConstant(torch.device(device)))


def _nodes(block: Any) -> Any:
    for node in list(block.nodes()):
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


class Engine:
    """One plan on one GPU and stream: CUDA tensors in and out; an execution context for each optimization profile when
    it is first needed. Output buffers are used again by the next run."""

    def __init__(self, path: Path, flavour: str, tensors: dict[str, Any], device: str, stream: Any) -> None:
        self.device, self.tensors, self.stream = device, tensors, stream
        self.trt = importlib.import_module(MODULES[flavour])
        self.runtime = self.trt.Runtime(self.trt.Logger(self.trt.Logger.WARNING))
        self.engine = self.runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise NoPlan("TensorRT refused the plan; its reason stands above in the server's log")
        self.contexts: dict[int, Any] = {}
        self.buffers = {t["name"]: _buffer(self.trt, device) for t in self.tensors["outputs"]}

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Enqueue on the stream, which is the current one; the outputs have the module's element types."""
        moved = {t["name"]: self._place(t["name"], x) for t, x in zip(self.tensors["inputs"], tensors)}
        context = self._context(_profile(self.tensors, tensors))
        for name, tensor in moved.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise InvalidRequest(f"TensorRT refuses shape {list(tensor.shape)} for input {name!r}")
            context.set_tensor_address(name, tensor.data_ptr() or self._nothing())
        for name, buffer in self.buffers.items():
            context.set_output_allocator(name, buffer)
        if not context.execute_async_v3(self.stream.cuda_stream):
            raise RuntimeError("TensorRT could not run the plan; its reason stands above in the server's log")
        return [self._take(t) for t in self.tensors["outputs"]]

    def _place(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, self._dtype(name), non_blocking=True).contiguous()

    def _take(self, declared: dict[str, Any]) -> torch.Tensor:
        name = declared["name"]
        return self.buffers[name].view(self._dtype(name)).to(getattr(torch, declared["dtype"]))

    def _dtype(self, name: str) -> torch.dtype:
        return TENSORRT_TO_TORCH[self.engine.get_tensor_dtype(name).name]

    def _context(self, profile: int) -> Any:
        if profile not in self.contexts:
            context = self.engine.create_execution_context()
            if context is None:
                raise RuntimeError("TensorRT could not make an execution context (usually: not enough GPU memory)")
            context.set_optimization_profile_async(profile, self.stream.cuda_stream)
            self.contexts[profile] = context
        return self.contexts[profile]

    def _nothing(self) -> int:
        """An address for a tensor without elements: TensorRT takes no null."""
        self.one_byte = torch.empty(1, dtype=torch.uint8, device=self.device)
        return self.one_byte.data_ptr()


class PlanAnswerer:
    """The plan of a whole model on one GPU, on a stream of its own, which is the current one when it runs."""

    kind, why = "plan", "a GPU that the plan fits"
    lends = False

    def __init__(self, folder: Path, facts: dict[str, Any], device: str) -> None:
        self.device = device
        torch.cuda.set_device(device)
        self.stream = torch.cuda.Stream(device)
        self.engine = Engine(folder / "model.plan", facts["flavour"], facts["serving"], device, self.stream)
        self.stays = bool(facts.get("step_of"))

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of any device in; see _handed_out for the outputs."""
        stays = self.stays or any(tensor.is_cuda for tensor in tensors)
        return _handed_out(self.engine.run(tensors), self.stream, stays, self.lends)


class SegmentsAnswerer:
    """The pieces of a model one after another, in this process; on a GPU all on one stream."""

    def __init__(self, folder: Path, facts: dict[str, Any], args: dict[str, str]) -> None:
        self.folder, self.stays = folder, bool(facts.get("step_of"))
        self.device, self.why = _device(args)
        self.stream = None
        if self.device != "cpu":
            torch.cuda.set_device(self.device)
            self.stream = torch.cuda.Stream(self.device)
        sides = ([t["name"] for t in facts["serving"][side]] for side in ("inputs", "outputs"))
        self.pieces = Pieces(self, "segment", facts["segments"], *sides)
        answered = dict(self.pieces.answered(""))
        self.kind = "+".join(sorted(set(answered.values())))
        self.told = " ".join(f"{piece}:{who}" for piece, who in answered.items())

    def by_torch(self, stem: str) -> TorchAnswerer:
        """The graph of that name, by torch on the device of all pieces."""
        return TorchAnswerer(self.folder / f"{stem}.pt", self.why, self.device)

    def runner(self, stem: str, piece: dict[str, Any]) -> Any:
        """The piece's plan where it has one and a GPU takes it, else its graph by torch; a branch; or its parts."""
        if piece["kind"] == "branch":
            return Branch(self, stem, piece)
        if piece.get("parts"):
            return Pieces(self, stem, piece["parts"], *([t["name"] for t in piece[s]] for s in ("inputs", "outputs")))
        plan = self.folder / f"{stem}.plan"
        if self.stream is not None and plan.exists():
            try:
                return Engine(plan, piece["plan"]["flavour"], piece, self.device, self.stream)
            except Exception as error:
                self.why = f"{stem.replace('_', ' ')}: the plan cannot run here: {error}"
                pb_utils.Logger.log_warn(f"trt-build: {self.why}")
        return self.by_torch(stem)

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of any device in; CPU tensors out, or see _handed_out."""
        if self.stream is None:
            return self.pieces.run(tensors)
        outputs = self.pieces.run([tensor.to(self.device) for tensor in tensors])
        stays = self.stays or any(tensor.is_cuda for tensor in tensors)
        return _handed_out(outputs, self.stream, stays, lends=False)  # a piece may hand an input on


class Pieces:
    """Pieces one after another. Tensors go from one to the next as they are, without a copy, and are let go after their
    last reader."""

    def __init__(
        self, owner: SegmentsAnswerer, stem: str, pieces: list[dict[str, Any]], inputs: list[str], outputs: list[str]
    ) -> None:
        self.owner, self.stem, self.pieces, self.inputs, self.outputs = owner, stem, pieces, inputs, outputs
        self.runners = [owner.runner(f"{stem}_{number}", piece) for number, piece in enumerate(pieces)]
        self.last_reader = {t["name"]: n for n, piece in enumerate(pieces) for t in piece["inputs"]}
        self.instead: dict[int, TorchAnswerer] = {}

    def answered(self, path: str) -> Any:
        """(the piece, "plan" or "torch") of each, at any depth."""
        for number, (piece, runner) in enumerate(zip(self.pieces, self.runners)):
            if hasattr(runner, "answered"):
                yield from runner.answered(f"{path}{number}.")
            else:
                yield f"{path}{number}.{piece['kind']}", "plan" if isinstance(runner, Engine) else "torch"

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors `outputs` of the tensors `inputs`."""
        values = dict(zip(self.inputs, tensors))
        for number, (piece, runner) in enumerate(zip(self.pieces, self.runners)):
            given = [values[t["name"]] for t in piece["inputs"]]
            if isinstance(runner, Engine) and _profile(piece, given) is None:
                runner = self._instead(number)
            values.update(zip((t["name"] for t in piece["outputs"]), runner.run(given)))
            for name in [n for n in values if n not in self.outputs and self.last_reader.get(n, -1) <= number]:
                del values[name]
        return [values[name] for name in self.outputs]

    def _instead(self, number: int) -> TorchAnswerer:
        """torch for a piece whose plan does not take what the data made this time."""
        if number not in self.instead:
            self.instead[number] = self.owner.by_torch(f"{self.stem}_{number}")
        return self.instead[number]


class Branch:
    """One of two arms, as the data decide; the other one does not run."""

    def __init__(self, owner: SegmentsAnswerer, stem: str, piece: dict[str, Any]) -> None:
        inputs, outputs = ([t["name"] for t in piece[side]] for side in ("inputs", "outputs"))
        self.reads = [inputs.index(t["name"]) for t in piece["condition"]]
        self.condition = owner.by_torch(f"{stem}_condition")
        named = zip(("yes", "no"), piece["arms"])
        self.arms = {name: Pieces(owner, f"{stem}_{name}", arm, inputs, outputs) for name, arm in named}

    def answered(self, path: str) -> Any:
        """As of Pieces, of both arms."""
        for name, arm in self.arms.items():
            yield from arm.answered(f"{path}{name}.")

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The arm's answer."""
        decided = bool(self.condition.run([tensors[index] for index in self.reads])[0])
        return self.arms["yes" if decided else "no"].run(tensors)


def _handed_out(outputs: list[torch.Tensor], stream: torch.cuda.Stream, stays: bool, lends: bool) -> list[torch.Tensor]:
    """The outputs once the stream has made them. In a step of an ensemble, and where an input came on the GPU (CUDA
    shared memory), they stay there, and nothing goes through the host; else they go to the CPU, where the answer is
    wanted. Triton copies them after `execute` and before the next one: the engine's own buffers are lent for one
    request, copied for more.
    """
    if not stays:
        return [output.cpu() for output in outputs]
    kept = outputs if lends else [output.clone() for output in outputs]
    stream.synchronize()
    return kept


def _device(args: dict[str, str]) -> tuple[str, str]:
    """The device of all segments, and why that one."""
    if not torch.cuda.is_available():
        return "cpu", "torch sees no GPU"
    if args["model_instance_kind"] == "CPU":
        return "cpu", "the instance is of KIND_CPU"
    return f"cuda:{args['model_instance_device_id']}", "a GPU"


def _buffer(trt: Any, device: str) -> Any:
    """An output allocator: one growing torch buffer, and the output's shape, which may depend on the data."""

    class Buffer(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.storage = torch.empty(0, dtype=torch.uint8, device=device)
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            if self.storage.numel() < max(size, 1):
                self.storage = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
            return self.storage.data_ptr()

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def view(self, dtype: torch.dtype) -> torch.Tensor:
            size = torch.Size(self.shape).numel() * torch.empty(0, dtype=dtype).element_size()
            return self.storage[:size].view(dtype).view(self.shape)

    return Buffer()


def _answerer(folder: Path, facts: dict[str, Any], args: dict[str, str]) -> Any:
    if "segments" in facts:
        return SegmentsAnswerer(folder, facts, args)
    try:
        return PlanAnswerer(folder, facts, _gpu_for(folder, facts, args))
    except Exception as error:
        why = str(error) or type(error).__name__
        if not isinstance(error, NoPlan):
            pb_utils.Logger.log_warn(f"trt-build: model {args['model_name']!r}: the plan cannot run here: {why}")
        return TorchAnswerer(folder / "lowered.pt", why)


def _gpu_for(folder: Path, facts: dict[str, Any], args: dict[str, str]) -> str:
    """The device to run the plan on; NoPlan, with the reason, where there is none."""
    plan = folder / "model.plan"
    if not plan.exists() or not plan.stat().st_size:
        raise NoPlan("no plan was built")
    if not torch.cuda.is_available():
        raise NoPlan("torch sees no GPU")
    if args["model_instance_kind"] == "CPU":
        raise NoPlan("the instance is of KIND_CPU")
    if facts.get("flavour") not in MODULES:
        raise NoPlan(f"plan.json names no known flavour ({facts.get('flavour')!r})")
    return f"cuda:{args['model_instance_device_id']}"


def _check_shapes(model: str, declared: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    """Refuse what an engine would refuse, whoever answers; InvalidRequest names the axis and its range."""
    if declared["profiles"] and _profile(declared, tensors) is None:
        raise InvalidRequest(_outside(declared, tensors))


def _profile(declared: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
    """The index of the profile that holds all shapes and has the nearest opt; None where no profile holds them."""
    names = [t["name"] for t in declared["inputs"]]
    shapes = dict(zip(names, (tuple(x.shape) for x in tensors)))
    fitting = [i for i, p in enumerate(declared["profiles"]) if all(_fits(p[n], s) for n, s in shapes.items())]
    return min(fitting, key=lambda i: _distance(declared["profiles"][i], shapes), default=None)


def _fits(span: dict[str, list[int]], shape: tuple[int, ...]) -> bool:
    return len(shape) == len(span["min"]) and all(a <= n <= b for a, n, b in zip(span["min"], shape, span["max"]))


def _distance(profile: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(abs(a - b) for name, shape in shapes.items() for a, b in zip(profile[name]["opt"], shape))


def _outside(declared: dict[str, Any], tensors: list[torch.Tensor]) -> str:
    lines = []
    for tensor, x in zip(declared["inputs"], tensors):
        spans = [profile[tensor["name"]] for profile in declared["profiles"]]
        if not any(_fits(span, tuple(x.shape)) for span in spans):
            allowed = " or ".join(f"{span['min']} to {span['max']}" for span in spans)
            lines.append(f"input {tensor['name']!r} has shape {list(x.shape)}, and the model was built for {allowed}")
    together = "; ".join(f"{t['name']!r} {list(x.shape)}" for t, x in zip(declared["inputs"], tensors))
    return "; ".join(lines) or f"no single optimization profile of the model holds these shapes together: {together}"


def _to_torch(tensor: Any, declared: dict[str, Any]) -> torch.Tensor:
    """Through DLPack, without a copy; bool through numpy, since DLPack has it only from Triton 24.x on."""
    if tensor is None:
        raise InvalidRequest(f"input {declared['name']!r} is missing")
    by_numpy = declared["dtype"] == "bool" and tensor.is_cpu()
    value = torch.from_numpy(tensor.as_numpy()) if by_numpy else torch.from_dlpack(tensor.to_dlpack())
    if declared["dtype"] == "bool" and value.dtype != torch.bool:
        value = value.view(torch.bool)  # DLPack had no bool when the server was made: a byte each
    return value.reshape(()) if not declared["shape"] else value


def _from_torch(name: str, tensor: torch.Tensor, declared: dict[str, Any]) -> Any:
    value = tensor.detach().contiguous()
    value = value.reshape(1) if value.dim() == 0 else value
    if value.dtype == torch.bool and not value.is_cuda:
        return pb_utils.Tensor(name, value.numpy())
    try:
        return pb_utils.Tensor.from_dlpack(name, torch.utils.dlpack.to_dlpack(value))
    except Exception:
        if value.dtype != torch.bool:
            raise
        return pb_utils.Tensor(name, value.cpu().numpy())  # a server whose DLPack has no bool


def _response(tensors: list[Any], parameters: dict[str, str]) -> Any:
    """With parameters where the server's Python backend has them (25.02 and later)."""
    try:
        return pb_utils.InferenceResponse(output_tensors=tensors, parameters=parameters)
    except TypeError:
        return pb_utils.InferenceResponse(output_tensors=tensors)
