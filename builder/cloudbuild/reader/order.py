"""The steps that a step waits for: every step before it, the ids that it names, or none (`-`)."""

from __future__ import annotations

from builder.cloudbuild.reader.build import Step

AT_ONCE = "-"


def dependencies(steps: tuple[Step, ...]) -> tuple[frozenset[int], ...]:
    """For each step, the indices of the steps that it waits for. Unknown ids are left out."""
    by_id = {step.id: step.index for step in reversed(steps) if step.id}
    result = []
    for step in steps:
        if step.wait_for is None:
            result.append(frozenset(range(step.index)))
        else:
            result.append(frozenset(by_id[one] for one in step.wait_for if one in by_id))
    return tuple(result)


def circle(steps: tuple[Step, ...]) -> tuple[int, ...]:
    """The indices of steps that wait for each other, the first one again at the end. () if none."""
    needs = dependencies(steps)
    done: set[int] = set()

    def walk(index: int, above: tuple[int, ...]) -> tuple[int, ...]:
        if index in above:
            return (*above[above.index(index) :], index)
        if index not in done:
            for other in sorted(needs[index]):
                if found := walk(other, (*above, index)):
                    return found
            done.add(index)
        return ()

    for step in steps:
        if found := walk(step.index, ()):
            return found
    return ()


def needed_for(steps: tuple[Step, ...], wanted: int) -> tuple[int, ...]:
    """A step and everything that it waits for, in the order of the file."""
    needs = dependencies(steps)
    found: set[int] = set()
    open_ = [wanted]
    while open_:
        index = open_.pop()
        if index not in found:
            found.add(index)
            open_ += needs[index]
    return tuple(sorted(found))
