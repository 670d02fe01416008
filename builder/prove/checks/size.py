"""Is the image small enough? Asks for at most image.yaml's `size_budget` bytes in a pull."""

from __future__ import annotations

from builder.prove.receipts import Defect
from builder.prove.session import Session
from builder.prove.suite import Answer, Check


def run(session: Session) -> Answer:
    """Compare the size with the budget. Unknown sizes pass, and images without a budget."""
    subject, budget = session.subject, session.subject.spec.size_budget
    size, defects = subject.compressed_bytes or 0, []
    if budget is not None and size > budget:
        names = ", ".join(f"{name} ({part / 1e6:.0f} MB)" for name, part in subject.largest[:3])
        over = f"{size / 1e9:.2f} GB to pull are over the budget of {budget / 1e9:.2f} GB"
        fix = f"raise size_budget in images/{subject.target}/image.yaml, or drop a requirement"
        defects.append(Defect(f"{over}; the largest packages: {names}", fix))
    return defects, {"compressed_bytes": subject.compressed_bytes, "budget_bytes": budget}


CHECK = Check("size", 1, run)
