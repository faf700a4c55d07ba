"""All mistakes of a manifest are reported together, with line and suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builder.errors import ManifestError
from builder.manifest import load

GOOD = """\
inputs:
  - name: image
    dtype: float32
    shape: [batch, 3, 224, 224]
dims:
  batch: {min: 1, opt: 8, max: 32}
"""

STATE = """\
inputs:
- {name: x, dtype: float32, shape: [batch, 3]}
- {name: h, dtype: float32, shape: [2, batch, 5]}
dims: {batch: {min: 1, opt: 8, max: 32}}
outputs: [y, hn]
state:
- {input: h, output: hn}
"""


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    """(line, message and fix) of every mistake in the manifest's text."""
    (folder / "net.pt").touch()
    (folder / "net.yaml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError) as caught:
        load(folder)
    assert all(
        mistake.file == str(folder / "net.yaml") for mistake in caught.value.mistakes
    )
    assert all(str(mistake) in str(caught.value) for mistake in caught.value.mistakes)
    return [
        (mistake.line, f"{mistake.message} / {mistake.fix}")
        for mistake in caught.value.mistakes
    ]


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    """All five mistakes of a manifest are reported, not only the first."""
    messages = mistakes(
        tmp_path,
        """\
inputs:
  - name: image
    dtype: float
    shape: [batch, 3, hieght, 224]
dims:
  batch: {min: 8, opt: 4, max: 32}
  height: {min: 1, opt: 2, max: 3}
precison: fp16
instances: two
""",
    )
    assert [line for line, _ in messages] == [3, 4, 6, 8, 9]
    for (_, text), part in zip(
        messages,
        [
            "'float32'?",
            "'height'?",
            "min 8 is greater than opt 4",
            "'precision'?",
            'whole number, not text "two"',
        ],
        strict=True,
    ):
        assert part in text


CASES = {
    "unknown key in an input": (GOOD + "outptus: [y]\n", 7, "did you mean 'outputs'?"),
    "a key of a section at the top": (
        GOOD + "require_full: true\n",
        7,
        "move it to 'fallback'",
    ),
    "an unknown key of a section": (
        GOOD + "fallback:\n  op: [aten::add]\n",
        8,
        "did you mean 'ops'?",
    ),
    "a range without opt": (GOOD.replace("opt: 8, ", ""), 6, "dims.batch has no 'opt'"),
    "min below zero": (
        GOOD.replace("min: 1", "min: -1"),
        6,
        "dims.batch.min must be at least 0",
    ),
    "a graph beyond max": (
        GOOD + "batching: {graphs: [8, 64]}\n",
        7,
        "is above the axis's max 32 / remove it, or write max: 64 for the axis",
    ),
    "a static batch beyond max": (
        GOOD + "batch_sizes: [8, 64]\n",
        7,
        "batch size 64 is outside the axis's range, 1 to 32",
    ),
    "another word than auto for batch sizes": (
        GOOD + "batch_sizes: all\n",
        7,
        "batch_sizes must be auto or a list",
    ),
    "a static batch without a batch axis": (
        GOOD.replace("[batch, 3", "[3, batch") + "batch_sizes: auto\n",
        7,
        "first axis with a range in 'dims'",
    ),
    "batch sizes of a model with state": (
        STATE + "batch_sizes: auto\n",
        8,
        "and no state",
    ),
    "opt above max": (
        GOOD.replace("max: 32", "max: 4"),
        6,
        "opt 8 is greater than max 4",
    ),
    "a size in quotes": (GOOD.replace("opt: 8", 'opt: "8"'), 6, "remove the quotes"),
    "-1 for a dynamic axis": (
        GOOD.replace("224, 224", "-1, 224"),
        4,
        "name the axis and write its range",
    ),
    "an axis that is not a valid name": (
        GOOD.replace("224, 224", "'h w', 224"),
        4,
        "'h w' is not a valid name",
    ),
    "a range of no axis": (
        GOOD + "  width: {min: 1, opt: 8, max: 32}\n",
        7,
        "an axis that no input has",
    ),
    "the same input twice": (
        "inputs:\n- {name: x, dtype: bool, shape: []}\n- {name: x, dtype: bool, shape: []}\n",
        3,
        "'x' is used twice / rename it; inputs[0].name on line 2 has it too",
    ),
    "an output named as an input": (
        GOOD + "outputs: [image]\n",
        7,
        "'image' is used twice",
    ),
    "the same key twice": (
        GOOD + "instances: 1\ninstances: 2\n",
        8,
        "'instances' is written twice / remove one; the first is on line 7",
    ),
    "an unknown precision": (GOOD + "precision: float16\n", 7, "did you mean 'fp16'?"),
    "torch's dtype object": (
        GOOD.replace("float32", "torch.float32"),
        3,
        "did you mean 'float32'?",
    ),
    "dims and profiles": (
        GOOD + "profiles:\n- batch: {min: 1, opt: 1, max: 1}\n",
        7,
        "remove 'dims'",
    ),
    "a negative tolerance": (
        GOOD + "tolerance: {rtol: -1}\n",
        7,
        "tolerance.rtol must be at least 0",
    ),
    "a fallback operator without namespace": (
        GOOD + "fallback: {ops: [add]}\n",
        7,
        "for example 'aten::nonzero'",
    ),
    "goldens that are not an .npz": (
        GOOD + "goldens: a.npy\n",
        7,
        "must be an .npz file",
    ),
    "goldens that are not there": (GOOD + "goldens: a.npz\n", 7, "does not exist"),
    "no inputs": ("precision: fp16\n", 1, "the manifest has no 'inputs'"),
    "inputs as a mapping": (
        "inputs: {image: float32}\n",
        1,
        "inputs must be a list, not a mapping of keys",
    ),
    "a list for a manifest": (
        "- inputs\n",
        1,
        "the manifest must be a mapping of keys, not a list",
    ),
    "an empty file": ("", 1, "is empty"),
    "only a comment": ("# nothing\n", 1, "is empty"),
    "a bracket left open": ("inputs: [\n", 2, "not YAML"),
    "Latin-1": (GOOD + "# caf\udce9\n", 7, "not UTF-8 text / save the file as UTF-8"),
    "two documents": (GOOD + "---\na: 1\n", 7, "expected a single document"),
    "a merge key": (
        GOOD.replace("  batch:", "  <<: {a: 1}\n  batch:"),
        6,
        "merge keys (<<) are not supported",
    ),
    "a number for layers": (GOOD + "keep_fp32: 5\n", 7, "must be a list or text"),
    "a text of another file": (
        '"-----BEGIN EC PRIVATE KEY-----" "MHcCAQEEINzee3"'.replace('" "', " "),
        1,
        'text "-----BEGIN EC PRIVATE KEY----- MHcCAQEE... / None',
    ),
    "one pattern for layers": (GOOD + "keep_fp32: '*'\n", 7, 'write ["*"]'),
    "a tab for indentation": ("inputs:\n\t- name: x\n", 2, "indent with spaces"),
    "a preferred batch above max": (
        GOOD + "batching:\n  preferred: [4, 64]\n",
        8,
        "64 is above the axis's max 32",
    ),
    "batching without a dynamic first axis": (
        "inputs: [{name: x, dtype: bool, shape: [1]}]\nbatching: {enabled: true}\n",
        2,
        "batching needs a dynamic first axis",
    ),
    "a size that no tensor has": (
        GOOD.replace("max: 32", "max: 99999999999"),
        6,
        "dims.batch.max must be at most 2147",
    ),
    "a whole number written as a float": (
        GOOD + "instances: 2.0\n",
        7,
        "instances must be a whole number, not 2.0",
    ),
    "more instances than can be counted": (
        GOOD + "instances: 99999999999\n",
        7,
        "instances must be at most 2147483647",
    ),
    "a delay of centuries": (
        GOOD + "batching: {max_queue_delay_us: 1" + "0" * 22 + "}\n",
        7,
        "must be at most 9007199",
    ),
    "more memory than can be counted": (
        GOOD + "limits: {memory_mib: 1" + "0" * 20 + "}\n",
        7,
        "limits.memory_mib must be at most 1073741824",
    ),
    "a stage of centuries": (
        GOOD + "limits: {stage_seconds: 1" + "0" * 20 + "}\n",
        7,
        "limits.stage_seconds must be at most 31536000",
    ),
    "more versions than can be counted": (
        GOOD + "versions: {keep: 99999999999}\n",
        7,
        "versions.keep must be at most 2147483647",
    ),
    "a name longer than file names with it may be": (
        GOOD.replace("image", "i" * 201),
        2,
        "must have at most 200 characters, not 201",
    ),
    "a name that TensorRT refuses": (
        GOOD + "outputs: [_]\n",
        7,
        "'_' is not a valid name / use letters, digits and _, but not _ alone",
    ),
    "a name with a line's end": (
        GOOD + 'outputs: ["y\\n"]\n',
        7,
        "is not a valid name",
    ),
    "an infinite number": (
        GOOD + "tolerance: {rtol: 1e400}\n",
        7,
        "1e400 is too large for a number",
    ),
    "a list for a choice": (
        GOOD + "precision: [fp16]\n",
        7,
        "precision must be one of fp32, tf32",
    ),
    "true for a number": (
        GOOD + "instances: true\n",
        7,
        "instances must be a whole number, not true /",
    ),
    "cached responses without version numbers": (
        GOOD + "triton: {response_cache: {enable: true}}\n",
        7,
        "the replaced model, because the version number is the same / add versions: {keep: 1}",
    ),
    "a library with another suffix": (
        GOOD + "libraries: [ops.cpp]\n",
        7,
        "must be a .py or .so file",
    ),
    "a typo in a required key": (
        GOOD.replace("dtype:", "dtpye:"),
        3,
        "unknown key 'inputs[0].dtpye' / did you mean 'dtype'?",
    ),
    "a typo in the key of the inputs": (
        GOOD.replace("inputs:", "input:"),
        1,
        "unknown key 'input' / did you mean 'inputs'?",
    ),
    "a float beyond the limit of a whole number": (
        GOOD + "limits: {memory_mib: 1e30}\n",
        7,
        "limits.memory_mib must be a whole number, not 1e+30",
    ),
    "no value": (GOOD + "io:\n", 7, "not nothing / write a value, or remove the key"),
    "only null": ("null\n", 1, "the manifest is empty / trt-build init"),
    "a number in quotes": (
        GOOD + "tolerance: {rtol: '1e-3'}\n",
        7,
        'must be a number, not text "1e-3" / remove the quotes',
    ),
    "a number for text": (
        GOOD.replace("image", "1"),
        2,
        'inputs[0].name must be text, not 1 / write "1"',
    ),
    "yes for true": (GOOD + "batching: {enabled: yes}\n", 7, "/ write true"),
    "text for a list of texts": (
        GOOD + "targets: a100\n",
        7,
        'not text "a100" / write ["a100"]',
    ),
    "a list for a range": (
        GOOD.replace("{min: 1, opt: 8, max: 32}", "[1, 8, 32]"),
        6,
        "not a list / for example {min: 1, opt: 8, max: 32}",
    ),
    "an asterisk without quotes": (
        GOOD + "keep_fp32: [*/attention]\n",
        7,
        "/ put text that begins with a special character in quotes",
    ),
    "a brace left open": (
        GOOD.replace("max: 32}", "max: 32") + "io: fp16\n",
        7,
        "/ close the '{' of line 6",
    ),
    "a line indented by one less": (
        "inputs:\n  - name: x\n   dtype: float32\n",
        3,
        "/ indent this line as line 2",
    ),
    "more served versions than kept": (
        GOOD + "versions: {keep: 1, serve: 3}\n",
        7,
        "3 versions cannot be served: 1 are kept / write keep: 3",
    ),
    "a list for a key": (GOOD + "[a]: 1\n", 7, "a list or mapping cannot be a key"),
    "brackets without end": (
        "a: " + "[" * 3000 + "]" * 3000,
        1,
        "nested deeper than 32 levels",
    ),
    "state of no input": (
        STATE.replace("input: h", "input: hidden"),
        7,
        "state[0].input: no input has the name 'hidden'",
    ),
    "state of no output": (
        STATE.replace("output: hn", "output: hnn"),
        7,
        "did you mean 'hn'?",
    ),
    "an input that is state twice": (
        STATE + "- {input: h, output: y}\n",
        8,
        "'h' is used by two states / remove one; the first is state[0]",
    ),
    "an initial state that is no array": (
        STATE.replace("hn}", "hn, initial: ones}"),
        7,
        "must be zeros or an .npy file",
    ),
    "an initial state that is not there": (
        STATE.replace("hn}", "hn, initial: h0.npy}"),
        7,
        "does not exist",
    ),
    "sequences without state": (
        GOOD + "sequences: {max: 4}\n",
        7,
        "there is no 'state' / add state: [{input: h0",
    ),
    "an unknown way to keep state": (
        STATE + "sequences: {mode: implict}\n",
        8,
        "did you mean 'implicit'?",
    ),
    "batching where an input that is no state has no batch": (
        STATE.replace("[batch, 3]", "[3, batch]") + "batching: {enabled: true}\n",
        8,
        "batching needs a dynamic first axis",
    ),
    "an alias that contains itself": (
        "inputs: &a [*a]\n",
        1,
        "once its aliases are expanded",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_mistake_is_reported_once_with_a_fix(tmp_path: Path, case: str) -> None:
    text, line, words = CASES[case]
    messages = mistakes(tmp_path, text)
    assert [at for at, message in messages if words in message] == [line], messages
    assert len(messages) == 1, messages


def test_profile_without_an_axis_is_reported(tmp_path: Path) -> None:
    text = (
        GOOD.split("dims:")[0] + "profiles:\n- batch: {min: 1, opt: 1, max: 1}\n- {}\n"
    )
    assert mistakes(tmp_path, text) == [
        (
            4,
            "axis 'batch' of inputs[0] has no range in 'profiles[1]' / "
            "add 'batch: {min: 1, opt: 8, max: 32}' to 'profiles[1]'",
        )
    ]


def test_exponential_aliases_are_refused(tmp_path: Path) -> None:
    """Ten lines of YAML may represent ten billion values; they are counted, not built."""
    lines = ["a0: &a0 [x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 11)
    ]
    assert any(
        "aliases" in message for _, message in mistakes(tmp_path, "\n".join(lines))
    )


def test_mistakes_of_all_manifests_are_reported_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.pt").touch()
        (tmp_path / f"{name}.yaml").write_text(GOOD + "x: 1\n")
    with pytest.raises(ManifestError) as caught:
        load(tmp_path)
    assert [Path(mistake.file).name for mistake in caught.value.mistakes] == [
        "a.yaml",
        "b.yaml",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "inputs",
                        "dims",
                        "profiles",
                        "name",
                        "dtype",
                        "shape",
                        "batch",
                        "min",
                        "max",
                        "batching",
                        "enabled",
                        "state",
                        "input",
                        "output",
                        "initial",
                        "sequences",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
@example({"inputs": [{"name": []}], "state": [{"input": {}, "output": []}]})
def test_arbitrary_documents_never_crash_the_checks(
    tmp_path_factory: pytest.TempPathFactory, data: object
) -> None:
    """Any manifest results in a model or a list of mistakes, never in another exception."""
    import yaml

    folder = tmp_path_factory.mktemp("any")
    (folder / "net.pt").touch()
    (folder / "net.yaml").write_text(yaml.safe_dump(data))
    try:
        assert load(folder)[0].name == "net"
    except ManifestError as error:
        assert all(mistake.line >= 1 for mistake in error.mistakes)


def test_ranges_of_data_dependent_axes_are_checked(tmp_path: Path) -> None:
    ((line, text),) = mistakes(
        tmp_path,
        GOOD + "fallback:\n  ranges:\n    aten::nonzero: {min: 9, opt: 4, max: 32}\n",
    )
    assert line == 9 and "min 9 is greater than opt 4" in text
    ((line, text),) = mistakes(
        tmp_path,
        GOOD + "fallback:\n  range:\n    aten::nonzero: {min: 1, opt: 4, max: 32}\n",
    )
    assert line == 8 and "did you mean 'ranges'" in text
