"""Picture files of all kinds, made by Pillow, are stored as a person sees them. No TensorFlow."""

import io
from typing import Any

import pytest
from PIL import Image, ImageDraw

from trainer.records.pictures import (
    PictureForm,
    StoredPicture,
    UnreadablePicture,
    prepare,
    without_metadata,
)

RED, BLUE = (220, 30, 30), (20, 40, 200)


def picture(mode: str = "RGB", size: tuple[int, int] = (64, 32)) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    ImageDraw.Draw(image).rectangle((size[0] // 2, 0, *size), fill=BLUE)
    return image.quantize(16) if mode == "P" else image.convert(mode)


def file(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def shown(made: StoredPicture) -> Image.Image:
    image = Image.open(io.BytesIO(made.content))
    assert image.size == (made.width, made.height)
    return image.convert("RGB")


def assert_colour(image: Image.Image, where: tuple[int, int], colour: tuple[int, ...]) -> None:
    seen = image.getpixel(where)
    assert isinstance(seen, tuple)
    assert all(abs(one - other) < 25 for one, other in zip(seen, colour, strict=True)), seen


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(file(picture(), "JPEG", quality=95, subsampling=0), id="jpeg 4:4:4"),
        pytest.param(file(picture(), "JPEG", progressive=True), id="progressive jpeg"),
        pytest.param(file(picture("CMYK"), "JPEG", quality=95), id="cmyk jpeg"),
        pytest.param(file(picture(), "PNG"), id="png"),
        pytest.param(file(picture("RGBA"), "PNG"), id="opaque rgba png"),
        pytest.param(file(picture("P"), "PNG"), id="palette png"),
        pytest.param(file(picture(), "WEBP", quality=95), id="webp"),
        pytest.param(file(picture("P"), "GIF"), id="gif"),
        pytest.param(file(picture(), "BMP"), id="bmp"),
        pytest.param(file(picture(), "TIFF"), id="tiff"),
        pytest.param(file(picture("CMYK"), "TIFF"), id="cmyk tiff"),
    ],
)
def test_every_format_becomes_a_baseline_jpeg_in_4_2_0(content: bytes) -> None:
    made = prepare(content, PictureForm())
    with Image.open(io.BytesIO(made.content)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (64, 32))
        assert not image.info.get("progressive")
        assert [layer[1:3] for layer in image.layer] == [(2, 2), (1, 1), (1, 1)]
    assert_colour(shown(made), (10, 16), RED)
    assert_colour(shown(made), (54, 16), BLUE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_what_a_camera_noted_as_rotated_is_rotated(kind: str, encoding: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # Turned by 90 degrees, clockwise, to be seen upright.
    made = prepare(file(picture(), kind, exif=exif), PictureForm(encoding))
    image = shown(made)
    assert image.size == (32, 64)
    assert_colour(image, (16, 10), RED)
    assert_colour(image, (16, 54), BLUE)
    assert not image.getexif()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_behind_transparency_is_white(kind: str) -> None:
    image = picture("RGBA")
    ImageDraw.Draw(image).rectangle((0, 0, 31, 31), fill=(0, 0, 0, 0))
    made = prepare(file(image, kind), PictureForm("png"))
    assert_colour(shown(made), (10, 16), (255, 255, 255))
    assert_colour(shown(made), (54, 16), BLUE)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_of_an_animation_the_first_frame_counts(kind: str, encoding: str) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in (RED, BLUE, "white")]
    content = file(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    made = prepare(content, PictureForm(encoding))
    assert_colour(shown(made), (10, 10), RED)


def test_grey_stays_grey() -> None:
    made = prepare(file(Image.new("L", (10, 4), 77), "PNG"), PictureForm())
    assert Image.open(io.BytesIO(made.content)).mode == "L"


def test_16_bits_are_scaled_not_clipped() -> None:
    deep = Image.new("I;16", (8, 8), 0x8000)
    assert_colour(shown(prepare(file(deep, "PNG"), PictureForm())), (4, 4), (128, 128, 128))


@pytest.mark.parametrize(
    ("most", "bits", "shown_as"),
    [(4095, 0, 255), (2048, 0, 128), (0xFFFF, 0, 255), (1023, 10, 255), (4095, 16, 15)],
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_twelve_bits_in_sixteen_are_not_black(
    most: int, bits: int, shown_as: int, kind: str
) -> None:
    deep = Image.new("I;16", (8, 8), most)
    made = shown(prepare(file(deep, kind), PictureForm("png", bits=bits)))
    assert made.getpixel((4, 4)) == (shown_as,) * 3


def test_a_jpeg_that_is_right_already_is_taken_over_without_its_metadata() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    plain = file(picture(), "JPEG", quality=85, subsampling=2)
    noted = file(picture(), "JPEG", quality=85, subsampling=2, exif=exif, comment=b"hello")
    assert noted != plain
    made = prepare(noted, PictureForm())
    assert made.content == plain == without_metadata(plain)


def test_a_png_that_is_right_already_is_taken_over() -> None:
    content = file(picture(), "PNG")
    assert prepare(content, PictureForm("png")).content == content
    palette = prepare(file(picture("P"), "PNG"), PictureForm("png"))
    assert Image.open(io.BytesIO(palette.content)).mode == "RGB"


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_resize_is_of_the_shorter_side_and_never_enlarges(kind: str) -> None:
    content = file(picture(size=(400, 200)), kind)
    made = prepare(content, PictureForm(resize=50))
    assert (made.width, made.height) == (100, 50)
    assert_colour(shown(made), (20, 25), RED)
    assert_colour(shown(made), (80, 25), BLUE)
    made = prepare(content, PictureForm(resize=500))
    assert (made.width, made.height) == (400, 200)


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
@pytest.mark.parametrize("size", [(64, 32), (400, 900), (20, 10), (40, 40)])
def test_a_square_is_the_whole_picture_and_all_have_its_size(size: Any, encoding: str) -> None:
    form = PictureForm(encoding, resize=40, square=True)
    made = prepare(file(picture(size=size), "PNG"), form)
    assert (made.width, made.height) == shown(made).size == (40, 40)
    assert_colour(shown(made), (6, 20), RED)
    assert_colour(shown(made), (34, 20), BLUE)


whole_jpeg, whole_png = file(picture(size=(200, 200)), "JPEG"), file(picture(), "PNG")


def rotten(jpeg: bytes) -> bytes:
    """With zeros in the middle of its scan: decoders go on after it, with a warning at most."""
    return jpeg[: len(jpeg) // 2] + bytes(40) + jpeg[len(jpeg) // 2 + 40 :]


noise = Image.linear_gradient("L").resize((200, 200)).convert("RGB")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(rotten(file(noise, "JPEG", quality=95)), id="rot in a jpeg"),
        pytest.param(rotten(file(noise, "JPEG", progressive=True)), id="rot in a progressive one"),
        pytest.param(rotten(file(noise.convert("CMYK"), "JPEG", quality=95)), id="rot in cmyk"),
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>404</html>", id="no picture"),
        pytest.param(whole_jpeg[: len(whole_jpeg) // 2], id="half a jpeg"),
        pytest.param(whole_jpeg[:-2], id="jpeg without its end"),
        pytest.param(whole_png[: len(whole_png) // 2], id="half a png"),
        pytest.param(whole_png[:60] + bytes([whole_png[60] ^ 255]) + whole_png[61:], id="bit rot"),
        pytest.param(file(picture(), "WEBP")[:40], id="half a webp"),
        pytest.param(file(Image.new("F", (4, 4), 0.5), "TIFF"), id="floating point"),
    ],
)
@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_what_cannot_be_read_is_said_in_one_line(content: bytes, encoding: str) -> None:
    with pytest.raises(UnreadablePicture) as error:
        prepare(content, PictureForm(encoding))
    assert str(error.value)
    assert "\n" not in str(error.value)


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadablePicture, match="too large"):
        prepare(file(Image.new("1", (64, 64)), "PNG"), PictureForm())
