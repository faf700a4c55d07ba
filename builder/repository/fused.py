"""A model in pieces as one model, whose runtime runs all segments in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.repository import arms, single
from builder.repository.cut import Pieces
from builder.repository.cut_model import Cut, inputs_of, mixes, named, outputs_of, segment_files

if TYPE_CHECKING:
    from builder.engine import Plan
    from builder.lowering import LoweredGraph
    from builder.triton import BranchFiles, ModelArtifact, SegmentFiles


def fused(cut: Cut, serve_as: str) -> ModelArtifact:
    """One model whose runtime runs all segments in one process."""
    from builder import triton

    facts = next((plan.facts for plan in cut.built), {})
    return triton.ModelArtifact(
        spec=named(cut),
        inputs=inputs_of(cut),
        outputs=outputs_of(cut),
        profiles=cut.spec.profiles,
        plan=None,
        plan_facts={
            key: facts[key]
            for key in ("flavour", "tensorrt", "compute_capabilities")
            if key in facts
        },
        lowered=b"",
        goldens=cut.goldens,
        serve_as=serve_as,
        segments=_pieces(cut.pieces, cut.plans, cut.arm_plans),
        mixes=mixes(cut, cut.segments),
    )


def _pieces(
    pieces: Pieces,
    plans: Sequence[Plan | None],
    arm_plans: Mapping[arms.Place, Plan],
    place: arms.Place = (),
) -> tuple[SegmentFiles, ...]:
    """Every segment's files; of torch segments with engines in the arms of branches, those of their
    parts.
    """
    found = map(segment_files, pieces.partition.segments, pieces.conversions, plans)
    return tuple(
        replace(files, parts=_parts(pieces.parts.get(number, ()), arm_plans, (*place, number)))
        for number, files in enumerate(found)
    )


def _parts(
    parts: Sequence[LoweredGraph | arms.Taken], plans: Mapping[arms.Place, Plan], place: arms.Place
) -> tuple[SegmentFiles | BranchFiles, ...]:
    from builder.triton import BranchFiles, SegmentFiles

    found: list[SegmentFiles | BranchFiles] = []
    for number, part in enumerate(parts):
        if not isinstance(part, arms.Taken):
            found.append(SegmentFiles("torch", part.inputs, part.outputs, single.saved(part)))
            continue
        condition, read = part.branch.condition, tuple(part.branch.values)
        both = [_arm(arm, plans, (*place, number, index)) for index, arm in enumerate(part.arms)]
        outputs = part.branch.outputs
        found.append(
            BranchFiles(
                single.saved(condition), condition.inputs, read, outputs, (both[0], both[1])
            )
        )
    return tuple(found)


def _arm(
    pieces: Pieces, plans: Mapping[arms.Place, Plan], place: arms.Place
) -> tuple[SegmentFiles, ...]:
    own = [plans.get((*place, number)) for number in range(len(pieces.conversions))]
    return _pieces(pieces, own, plans, place)
