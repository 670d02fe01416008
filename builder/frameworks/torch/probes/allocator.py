"""A model of the memory that PyTorch reserves of a GPU, for the hook of the check `compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 2**20
PAGES = {True: 2 * MIB, False: 20 * MIB}
"""Of segments that grow, for small pieces and for others."""


@dataclass(eq=False)
class Block:
    """A piece of a segment: its bytes, and the pieces beside it."""

    size: int
    small: bool
    used: bool = False
    before: Block | None = None
    after: Block | None = None


class Allocator:
    """PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), without the GPU.

    It rounds to 512 bytes. Up to 1 MiB is cut from segments of 2 MiB, what is below 10 MiB from
    segments of 20 MiB, and a larger one has a segment of its own, rounded to 2 MiB. It takes the
    smallest free piece that is large enough. Where the device has no more, it gives back segments
    that are free as a whole.

    grows: `expandable_segments`. There is one segment for the small pieces and one for all others.
    They grow at the end, by pages of 2 or 20 MiB, and where the device has no more, pages that are
    free go back. PyTorch takes their addresses again, and here nobody does.

    room: bytes of the device. reserved: bytes of segments now; peak: at the most. used: bytes of
    pieces now; most: at the most, as torch.cuda.max_memory_allocated says it. workspace: bytes that
    cuBLAS still has to get. ends: of the segments that grow, no bytes.
    """

    def __init__(self, room: int, workspace: int = 0, grows: bool = False) -> None:
        self.room, self.reserved, self.peak, self.used, self.most = room, 0, 0, 0, 0
        self.workspace, self.grows = workspace, grows
        self.free: list[Block] = []
        self.ends = {small: Block(0, small, used=True) for small in (True, False)}

    def multiply(self) -> None:
        """Give cuBLAS its workspace with the first product of matrices; it keeps that."""
        if self.workspace:
            self.take(self.workspace)
            self.workspace = 0

    def take(self, size: int) -> Block:
        """Return a piece for so many bytes."""
        size = max(rounded(size, 512), 512)
        small = size <= MIB
        fit = [each for each in self.free if each.small == small and each.size >= size]
        find = self.grown if self.grows else self.segment
        block = min(fit, key=self.order) if fit else find(size, small)
        self.free.remove(block)
        block.used = True
        if block.size - size >= 512 if small or self.grows else block.size - size > MIB:
            self.free.append(cut(block, size))
        self.used += block.size
        self.most = max(self.most, self.used)
        return block

    def order(self, block: Block) -> tuple[bool, int]:
        """Return by what the best piece is the least: the one that can grow is the last."""
        return block.after is self.ends[block.small], block.size

    def grown(self, size: int, small: bool) -> Block:
        """Return the piece at the end of a segment, which is free and has grown to a size."""
        end, page = self.ends[small], PAGES[small]
        last = end.before
        more = rounded(size - (last.size if last and not last.used else 0), page)
        if self.reserved + more > self.room:
            self.give_pages()
            last = end.before
        if last is None or last.used:
            last = Block(0, small, before=last, after=end)
            if last.before:
                last.before.after = last
            end.before = last
            self.free.append(last)
        more = rounded(size - last.size, page)
        last.size += more
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        return last

    def give_pages(self) -> None:
        """Give back the whole pages of free pieces. A piece without them is never free again."""
        for small, end in self.ends.items():
            pieces = []
            while end.before:
                end = end.before
                pieces.append(end)
            at = 0
            for block in reversed(pieces):
                begin, at = at, at + block.size
                first, last = rounded(begin, PAGES[small]), at // PAGES[small] * PAGES[small]
                if block.used or last <= first:
                    continue
                self.free.remove(block)
                self.reserved -= last - first
                if first > begin:
                    self.free.append(block)
                    block = cut(block, first - begin)
                block.used = True
                if at > last:
                    self.free.append(cut(block, last - first))

    def segment(self, size: int, small: bool) -> Block:
        """Return a new segment, which is free."""
        large = 20 * MIB if size < 10 * MIB else rounded(size, 2 * MIB)
        block = Block(2 * MIB if small else large, small)
        if self.reserved + block.size > self.room:
            for each in [each for each in self.free if not each.before and not each.after]:
                self.free.remove(each)
                self.reserved -= each.size
        self.reserved += block.size
        self.peak = max(self.peak, self.reserved)
        self.free.append(block)
        return block

    def give(self, block: Block) -> None:
        """Take a piece back, and join it with free ones beside it."""
        block.used = False
        self.used -= block.size
        if block.after and not block.after.used:
            self.free.remove(block.after)
            block.size, block.after = block.size + block.after.size, block.after.after
        if block.before and not block.before.used:
            self.free.remove(block.before)
            block.size, block.before = block.size + block.before.size, block.before.before
        if block.after:
            block.after.before = block
        if block.before:
            block.before.after = block
        self.free.append(block)


def cut(block: Block, size: int) -> Block:
    """Cut a piece to a size, and return the rest of it."""
    rest = Block(block.size - size, block.small, before=block, after=block.after)
    if rest.after:
        rest.after.before = rest
    block.size, block.after = size, rest
    return rest


def grows(environment: Mapping[str, str]) -> bool:
    """Tell whether a program lets segments grow. The older variable is read first
    (c10/cuda/CUDAAllocatorConfig.h, `instance`)."""
    said = environment.get("PYTORCH_CUDA_ALLOC_CONF", environment.get("PYTORCH_ALLOC_CONF", ""))
    return "expandable_segments:True" in "".join(said.split()).split(",")


def rounded(size: int, to: int) -> int:
    """Return the next multiple."""
    return -(-size // to) * to
