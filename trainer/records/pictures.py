"""Picture files as a person sees them, in the form that decodes fastest. Needs Pillow
and simplejpeg.

Decoders for training ignore much that an image viewer respects. This module applies it once: EXIF
rotation, transparency, CMYK, 16 bits a channel, colour profiles, the first frame of an animation.
"""

import io
import struct
from dataclasses import dataclass
from typing import Any, Literal

from trainer.options import Section

SUFFIXES = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".mpo"),
        *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
    )
)
_ORIENTATION = 0x0112
_POINTS, _FLAT = (9, 8), 16
"""Of a likeness: points across and down, and grey levels that a picture needs to have one."""
_HALVED = [(2, 2), (1, 1), (1, 1)]
"""Sampling of a JPEG's components in 4:2:0."""


class UnreadablePicture(Exception):  # noqa: N818 - named for what was found
    """A picture cannot be decoded; the message says why."""


_option = Section("options")


@dataclass(frozen=True)
class PictureForm:
    """Says how pictures are stored. A file that needs no change is taken over as it is."""

    encoding: Literal["jpeg", "png"] = _option(
        "jpeg", "jpeg: small, a baseline JPEG in 4:2:0; png: no loss"
    )
    quality: int = _option(90, "of JPEGs, 1 to 100, on libjpeg's scale", least=1, most=100)
    bits: int = _option(
        0,
        "of 16 that a grey picture uses, 8 to 16; 0: 12 where it has nothing above 4095, else 16",
        most=16,
    )
    resize: int = _option(
        0,
        "pixels of the shorter side; never enlarges. With --square: of the square that the whole "
        "picture becomes; 0: as they are",
        most=65535,
    )
    square: bool = _option(
        False,
        "squares of --resize pixels; training with --image-size of the same number then resizes "
        "nothing",
        bare=True,
    )


@dataclass(frozen=True)
class StoredPicture:
    """Holds a picture as it is stored."""

    content: bytes
    width: int
    height: int
    jpeg: bool
    """The content is a JPEG file."""
    likeness: int | None = None
    """See `likeness`."""


def prepare(content: bytes, form: PictureForm) -> StoredPicture:
    """Return a picture decoded, corrected and encoded. Raises UnreadablePicture."""
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

    original: Any
    with Image.open(io.BytesIO(content)) as original:
        if original.format in ("JPEG", "MPO"):
            _check(content)
        size, smallest = original.size, min(original.size)
        if form.resize and smallest > 2 * form.resize:
            # A JPEG is decoded at a half, a quarter or an eighth; other formats ignore it.
            scale = 2 * form.resize / smallest
            original.draft(original.mode, (round(size[0] * scale), round(size[1] * scale)))
        original.load()  # A PNG file may note EXIF at its end.
        image: Any = original
        if original.getexif().get(_ORIENTATION, 1) not in (0, 1):
            image = ImageOps.exif_transpose(original)
        image = _resized(_flat(image, form.bits), form)
        if image is original and image.size == size and _fits(original, form):
            encoded = without_metadata(content) if form.encoding == "jpeg" else content
        elif form.encoding == "png":
            encoded = _saved(image, "PNG")
        else:
            encoded = _saved(
                image, "JPEG", quality=form.quality, optimize=True, subsampling="4:2:0"
            )
        jpeg = form.encoding == "jpeg"
        return StoredPicture(encoded, image.width, image.height, jpeg, likeness(image))


def likeness(image: Any) -> int | None:
    """Return 64 bits that are those of a picture which looks the same: whether each of 9 x 8 points
    is brighter than its left neighbour (Krawetz 2013, Kind of Like That). None: it is flat."""
    from PIL import Image

    size = _POINTS
    points = image.convert("L").resize(size, Image.Resampling.BILINEAR, reducing_gap=2).tobytes()
    if max(points) - min(points) < _FLAT:
        return None
    bits = (points[at] < points[at + 1] for at in range(len(points) - 1) if (at + 1) % size[0])
    return sum(bit << number for number, bit in enumerate(bits))


def _check(jpeg: bytes) -> None:
    """Refuse what libjpeg only warns of: Pillow says nothing, and the rest of the picture is grey
    or torn. At an eighth of its size most work is that of its codes. Raises ValueError."""
    import simplejpeg

    colours = simplejpeg.decode_jpeg_header(jpeg)[2]
    wanted = "CMYK" if colours in ("CMYK", "YCCK") else "GRAY" if colours == "Gray" else "RGB"
    simplejpeg.decode_jpeg(jpeg, wanted, True, True, 1, 1)


def _flat(image: Any, bits: int) -> Any:
    """Return the picture made opaque, in RGB or L; the same object where nothing was to do."""
    from PIL import Image

    if image.mode == "F":
        raise ValueError("floating-point pixels: which value is white is not known")
    if image.mode.startswith("I"):
        # A 16-bit PNG: `convert` would clip it, and everything above 255 would be white.
        image = image.convert("I")
        bits = bits or (12 if image.getextrema()[1] < 1 << 12 else 16)
        image = image.point(lambda value: value * 2.0 ** (8 - bits)).convert("L")
    profile = image.info.get("icc_profile")
    if profile and image.mode in ("RGB", "RGBA", "CMYK"):
        image = _to_srgb(image, profile)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _to_srgb(image: Any, profile: bytes) -> Any:
    """Return the picture in sRGB; as it is, if its profile says that or cannot be used."""
    try:
        from PIL import ImageCms

        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(source):
            return image
        mode = "RGB" if image.mode == "CMYK" else image.mode
        srgb = ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, source, srgb, outputMode=mode)
    except (ImportError, ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image


def _resized(image: Any, form: PictureForm) -> Any:
    from PIL import Image

    if not form.resize:
        return image
    scale = min(1.0, form.resize / min(image.size))
    size = tuple(max(1, round(side * scale)) for side in image.size)
    if form.square:
        size = (form.resize, form.resize)
    if image.size == size:
        return image
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3)


def _fits(image: Any, form: PictureForm) -> bool:
    """Return whether a picture's file is in the form that is wanted."""
    if image.format != form.encoding.upper() or getattr(image, "is_animated", False):
        return False
    if form.encoding == "png":
        return True
    sampling = [layer[1:3] for layer in image.layer]  # (id, horizontal, vertical, table) of each
    return not image.info.get("progressive") and (image.mode == "L" or sampling == _HALVED)


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


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.info = {}  # so that Pillow writes no profile or comment
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "not a picture that Pillow knows" if "cannot identify" in text else text[:200]
