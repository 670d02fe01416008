"""Picture files as a person sees them, in the form that decodes fastest. Needs Pillow.

Decoders for training ignore much that an image viewer respects. This module applies it once: EXIF
rotation, transparency, CMYK, 16 bits a channel, colour profiles, the first frame of an animation.
"""

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUFFIXES = frozenset(
    [
        ".bmp",
        ".gif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".mpo",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    ]
)
ENCODINGS = ("jpeg", "png", "keep")
_AS_SEEN = frozenset(("JPEG", "PNG", "GIF", "BMP"))
"""Formats that tf.io.decode_image reads in every TensorFlow of the images."""
_ORIENTATION = 0x0112


class UnreadablePicture(Exception):  # noqa: N818 - named for what was found
    """A picture cannot be decoded; the message says why."""


@dataclass(frozen=True)
class PictureForm:
    """How pictures are stored."""

    encoding: str = "jpeg"
    """jpeg: baseline JPEG; a JPEG file that already has this form is taken over as it is. png: PNG,
    without loss. keep: the file as it is if TensorFlow reads it as a person sees it, otherwise
    jpeg."""
    quality: int = 90
    """Of a JPEG, 1 to 100, on libjpeg's scale."""
    subsampling: str = "4:2:0"
    """Of a JPEG's colours. 4:2:0 has half the samples of 4:4:4."""
    resize: int | None = None
    """Pixels of the shorter side, never enlarged; for squares, pixels of each side."""
    square: bool = False
    """Squeeze the whole picture into a square of `resize` pixels."""
    background: str = "white"
    """Colour behind transparent pixels."""


@dataclass(frozen=True)
class StoredPicture:
    """A picture as it is stored, and facts about it."""

    content: bytes
    width: int
    height: int
    facts: tuple[str, ...]
    """Its format and what was done to it; `dataset.json` counts these."""
    jpeg: bool
    """The content is a JPEG file."""


def prepare(content: bytes, form: PictureForm) -> StoredPicture:
    """Decode, correct and encode a picture. Raises UnreadablePicture."""
    from PIL import Image

    try:
        return _prepare(content, form)
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, LookupError) as error:
        # Pillow's readers raise all of these for damaged files.
        raise UnreadablePicture(_reason(error)) from error
    except (Image.DecompressionBombError, MemoryError, OverflowError) as error:
        raise UnreadablePicture(f"too large: {_reason(error)}") from error


def _prepare(content: bytes, form: PictureForm) -> StoredPicture:
    from PIL import Image, ImageOps

    image: Any
    with Image.open(io.BytesIO(content)) as image:
        facts = [f"format {image.format}"]
        original, size = image, image.size
        jpeg = image.format == "JPEG" and image.mode in ("RGB", "L")
        if form.resize and jpeg:
            # Decode at a half, a quarter or an eighth if that is still twice the wanted size.
            scale = 2 * form.resize / min(size)
            if scale < 1:
                image.draft(image.mode, (round(size[0] * scale), round(size[1] * scale)))
        rotated = image.getexif().get(_ORIENTATION, 1) not in (0, 1)
        image.load()  # This rotates a TIFF file's picture; a PNG file may note EXIF at its end.
        rotated |= image.getexif().get(_ORIENTATION, 1) not in (0, 1)
        if rotated:
            image = ImageOps.exif_transpose(image)
            facts.append("EXIF rotation applied")
        animated = getattr(original, "n_frames", 1) > 1 and original.format != "MPO"
        if animated:
            facts.append("first frame of an animation")
        image, changed = _flat(image, form.background)
        facts += changed
        image = _resized(image, form)
        untouched = not (changed or rotated or animated) and image.size == size

        if untouched and (kept := _as_it_is(content, original, form)):
            encoded = kept
            facts.append("taken over as it is")
        elif form.encoding == "png":
            encoded = _saved(image, "PNG")
        else:
            options: dict[str, Any] = {"quality": form.quality, "optimize": True}
            if image.mode == "RGB":
                options["subsampling"] = form.subsampling
            encoded = _saved(image, "JPEG", **options)
        if image.mode == "L":
            facts.append("grey")
        jpeg = encoded.startswith(b"\xff\xd8\xff")
        return StoredPicture(encoded, image.width, image.height, tuple(facts), jpeg)


def _flat(image: Any, background: str) -> tuple[Any, list[str]]:
    """Return the picture made opaque, in RGB or L, and what was done."""
    from PIL import Image

    done = []
    if image.mode in ("I;16", "I;16L", "I;16B", "I", "F"):
        done.append(f"mode {image.mode} to 8 bits")
        if image.mode == "F":
            raise ValueError("floating-point pixels: which value is white is not known")
        # A 16-bit PNG: `convert` would clip it, and everything above 255 would be white.
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    profile = image.info.get("icc_profile")
    if profile and image.mode in ("RGB", "RGBA", "CMYK", "L") and (how := _to_srgb(image, profile)):
        image = how
        done.append("colour profile applied")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        low, _ = image.getchannel("A").getextrema()
        if low < 255:
            done.append(f"transparency on {background}")
            under = Image.new("RGBA", image.size, background)
            image = Image.alpha_composite(under, image)
        else:
            done.append("alpha channel dropped")
    if image.mode == "CMYK":
        done.append("CMYK to RGB")
    if image.mode in ("1", "LA", "La"):
        image = image.convert("L")
    if image.mode not in ("RGB", "L"):
        image = image.convert("RGB")
    return image, done


def _to_srgb(image: Any, profile: bytes) -> Any:
    """Return the picture in sRGB; None if it already is, or if its profile cannot be used."""
    try:
        from PIL import ImageCms
    except ImportError:
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(source):
            return None
        mode = {"CMYK": "RGB"}.get(image.mode, image.mode)
        if mode == "L":
            return None
        return ImageCms.profileToProfile(
            image, source, ImageCms.createProfile("sRGB"), outputMode=mode
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def _resized(image: Any, form: PictureForm) -> Any:
    from PIL import Image

    if not form.resize:
        return image
    scale = form.resize / min(image.size)
    if form.square:
        size = (form.resize, form.resize)
    elif scale < 1:
        size = tuple(max(1, round(side * scale)) for side in image.size)
    else:
        return image
    if image.size == size:
        return image
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3)


def _as_it_is(content: bytes, image: Any, form: PictureForm) -> bytes | None:
    """Return the file's own bytes without metadata, if they can be stored; None if not."""
    if form.encoding == "keep":
        if image.format == "JPEG":
            return without_metadata(content) if image.mode in ("RGB", "L") else None
        return content if image.format in _AS_SEEN else None
    if form.encoding == "png":
        return content if image.format == "PNG" else None
    if form.encoding != "jpeg" or image.format != "JPEG" or image.info.get("progressive"):
        return None
    layers = getattr(image, "layer", ())  # (id, horizontal, vertical sampling, table) of each
    sampling = [layer[1:3] for layer in layers]
    wanted = {"4:2:0": (2, 2), "4:2:2": (2, 1), "4:4:4": (1, 1)}[form.subsampling]
    if image.mode == "RGB" and sampling != [wanted, (1, 1), (1, 1)]:
        return None
    finer = sum(image.quantization[0]) < sum(_table(form.quality))
    return None if finer else without_metadata(content)


def without_metadata(jpeg: bytes) -> bytes:
    """Return a JPEG file without comments, EXIF (thumbnails, positions) and profiles.

    Everything from the start of scan on is copied. APP0 (JFIF) and APP14 (Adobe) stay, because they
    say how colours are stored.
    """
    out, position = [jpeg[:2]], 2
    while position + 4 <= len(jpeg) and jpeg[position] == 0xFF:
        marker = jpeg[position + 1]
        if marker == 0xFF:  # Fill bytes may precede a marker.
            position += 1
            continue
        if marker == 0xDA:
            break
        end = position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        if marker not in (0xFE, *range(0xE1, 0xEE), 0xEF):
            out.append(jpeg[position:end])
        position = end
    return b"".join(out) + jpeg[position:]


_tables: dict[int, Mapping[int, list[int]]] = {}


def _table(quality: int) -> list[int]:
    """Return libjpeg's table of luminance quantisation for a quality."""
    from PIL import Image

    if quality not in _tables:
        grey = _saved(Image.new("L", (8, 8)), "JPEG", quality=quality)
        with Image.open(io.BytesIO(grey)) as image:
            _tables[quality] = image.quantization  # type: ignore[attr-defined]
    return _tables[quality][0]


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.info = {}  # so that Pillow writes no profile or comment
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "not a picture that Pillow knows" if "cannot identify" in text else text[:200]
