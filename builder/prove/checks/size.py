"""Is the image small enough? Asks for at most image.yaml's `size_budget` bytes in a pull."""

from __future__ import annotations

from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check


def run(session: Session) -> Answer | None:
    """Compare the size with the budget. Unknown sizes pass, and images without a budget."""
    sizes, target = session.subject.sizes, session.subject.target
    if sizes is None:
        return None
    defects = []
    budget = sizes.budget_bytes
    if budget is not None and (sizes.compressed_bytes or 0) > budget:
        names = ", ".join(f"{name} ({size / 1e6:.0f} MB)" for name, size in sizes.packages[:3])
        defects.append(
            Defect(
                message=f"{(sizes.compressed_bytes or 0) / 1e9:.2f} GB to pull are over the budget "
                f"of {budget / 1e9:.2f} GB; the largest packages: {names}",
                fix=f"raise size_budget in images/{target}/image.yaml, or drop a requirement",
            )
        )
    seen = {
        "compressed_bytes": sizes.compressed_bytes,
        "unpacked_bytes": sizes.unpacked_bytes,
        "budget_bytes": sizes.budget_bytes,
    }
    return defects, seen


CHECK = Check("size", 1, run)
