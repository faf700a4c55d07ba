# ruff: noqa: E501 (lines of a log)
"""Reading the log of tritonserver; the texts are those of 2.51."""

from __future__ import annotations

from builder.serving import log

LOG = """\
W1121 13:59:01.000001 77 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
I1121 13:59:01.100000 77 model_lifecycle.cc:472] "loading: slow:1"
I1121 13:59:01.100001 77 model_lifecycle.cc:472] "loading: fine:1"
I1121 13:59:01.100002 77 model_lifecycle.cc:472] "loading: broken:1"
E1121 13:59:01.200000 77 model_repository_manager.cc:1460] "Poll failed for model directory 'typo': foo: Cannot find field."
I1121 13:59:02.000000 77 model_lifecycle.cc:839] "successfully loaded 'fine'"
E1121 13:59:02.300000 77 model_lifecycle.cc:642] "failed to load 'broken' version 1: Internal: ModuleNotFoundError: No module named 'torch'

At:
  /models/broken/1/model.py(18): <module>
"
"""


def test_every_failed_model_is_found_with_its_full_reason() -> None:
    typo, broken = log.failures(LOG)
    assert (typo.model, typo.reason) == ("typo", "foo: Cannot find field.")
    assert (
        broken.model == "broken"
        and "No module named 'torch'" in broken.reason
        and "model.py(18)" in broken.reason
    )


def test_known_reason_has_a_hint() -> None:
    typo, broken = log.failures(LOG)
    assert typo.hint is None
    assert "install trt-build" in (broken.hint or "") and "fix:" in str(broken)


def test_model_that_neither_loaded_nor_failed_is_unfinished() -> None:
    assert log.unfinished(LOG) == ("slow",)


def test_log_entries_may_span_lines() -> None:
    assert len(log.entries(LOG)) == 7
    assert log.entries("no prefix at all") == []


def test_missing_step_or_version_is_a_failure_of_its_model() -> None:
    """The server logs the failure and unloads the other steps."""
    text = """\
E1122 06:41:48.765145 77 model_repository_manager.cc:703] "Invalid argument: ensemble parts contains models that are not available or ambiguous: parts.0.tensorrt"
E1122 06:42:15.741790 77 model_repository_manager.cc:724] "failed to load model 'small': at least one version must be available under the version policy of model 'small'"
I1122 06:42:15.741791 77 model_lifecycle.cc:624] "successfully unloaded 'parts.1.torch' version 1"
"""
    parts, small = log.failures(text)
    assert (parts.model, parts.reason.endswith("ambiguous: parts.0.tensorrt")) == (
        "parts",
        True,
    )
    assert (small.model, small.reason.startswith("at least one version")) == (
        "small",
        True,
    )
    assert all("publish" in (one.hint or "") for one in (parts, small))
