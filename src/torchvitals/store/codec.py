"""Blobs: how rows, blocks and pyramids become bytes and come back, bit for bit.

Every blob is a CRC-32 (4 bytes, little-endian) and a payload. Payloads of blocks are laid out so
that zstd finds the redundancy: neighbours along time are xored (floats) or subtracted (integers),
then the bytes are shuffled, all first bytes together, then all second bytes, and so on. Nothing is
rounded: NaN payloads, −0.0 and subnormals survive. A blob that fails its checksum, does not
decompress or has the wrong size raises `Damaged`.
"""

from __future__ import annotations

import struct
import sys
import threading
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.bins import NUM_BINS
from torchvitals.record.row import Counts, Floats

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

Ints: TypeAlias = NDArray[np.int64]
Times: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]

LEVEL: Final = -1
"""Of zstd: a quarter faster than level 1, which saves a fortieth of the bytes."""

MISSING_COUNT: Final = 0xFFFF_FFFF
"""In the first bin: this site's histogram was not taken at this step."""

CELL_BYTES: Final = 14
"""Three floats, flags and count of one column in one cell of a pyramid."""

_WORTH_IT: Final = 0.95
_CRC = struct.Struct("<I")
_STAMP = struct.Struct("<qd")
_COUNTS = struct.Struct("<IBB")


class Damaged(ValueError):
    """A blob that is not what was written; the reader adds where it lies."""


def row_blob(step: int, time: float, payload: bytes) -> bytes:
    """A raw row: its checksum covers step and time too, which stand in columns of their own."""
    return _CRC.pack(zlib.crc32(payload, zlib.crc32(_STAMP.pack(step, time)))) + payload


def row_payload(step: int, time: float, blob: bytes) -> memoryview:
    """The payload of `row_blob`, checked."""
    payload = memoryview(blob)[_CRC.size :]
    crc = zlib.crc32(payload, zlib.crc32(_STAMP.pack(step, time)))
    if blob[: _CRC.size] != _CRC.pack(crc):
        raise Damaged("its checksum does not match")
    return payload


def encode_values(columns: Floats) -> bytes:
    """A group of columns, shape (columns, rows)."""
    bits = np.ascontiguousarray(columns, dtype="<f4").view("<u4")
    lanes = _shuffle(_changed_bits(bits)).reshape(4, *bits.shape)
    # The low bytes of a mantissa are noise, the high ones are not. Apart, the noise can be stored
    # as it is, which is smaller and twice as fast to read as one frame of everything. Columns that
    # hardly change (counts) have no noise: only their first value is kept.
    noisy = lanes[:2, :, 1:].any(axis=(0, 2))
    noise = lanes[:2, :, 1:].take(np.flatnonzero(noisy), axis=1)
    low = _compress(noise)
    if len(low) > _WORTH_IT * noise.size:
        low = noise.tobytes()
    packed = b"".join(
        [
            _CRC.pack(len(low)),
            np.packbits(noisy).tobytes(),
            lanes[:2, :, 0].tobytes(),
            low,
            _compress(lanes[2:]),
        ]
    )
    return _CRC.pack(zlib.crc32(packed)) + packed


class Lanes(NamedTuple):
    """A group of columns, decompressed but not yet decoded."""

    first: Bytes
    """Low bytes of the first row, (2, columns)."""
    noisy: NDArray[np.bool_]
    """Which columns have low bytes that change."""
    noise: Bytes
    """Those of the other rows, (2, noisy columns, rows − 1)."""
    high: Bytes
    """High bytes, (2, columns, rows)."""

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.noise.nbytes + self.high.nbytes


def open_values(blob: bytes, columns: int, rows: int) -> Lanes:
    """Checksum and size verified; `take_columns` and `take_row` decode what is needed."""
    payload = _checked(blob)
    start = _CRC.size + (columns + 7) // 8
    body = start + 2 * columns
    if len(payload) < body:
        raise Damaged(f"it holds {len(payload)} bytes where at least {body} belong")
    end = body + _CRC.unpack_from(payload)[0]
    mask = np.frombuffer(payload[_CRC.size : start], np.uint8)
    noisy = np.unpackbits(mask, count=columns).view(bool)
    changing = int(np.count_nonzero(noisy))
    size = 2 * changing * (rows - 1)
    noise: bytes | memoryview = payload[body:end]
    if len(noise) != size:
        noise = _inflate(noise)
    high = _inflate(payload[end:])
    if len(noise) != size or len(high) != 2 * columns * rows:
        raise Damaged(f"it holds {len(noise) + len(high)} bytes, more or fewer than belong")
    return Lanes(
        np.frombuffer(payload[start:body], np.uint8).reshape(2, columns),
        noisy,
        np.frombuffer(noise, np.uint8).reshape(2, changing, rows - 1),
        np.frombuffer(high, np.uint8).reshape(2, columns, rows),
    )


def take_columns(lanes: Lanes, chosen: NDArray[np.intp]) -> Floats:
    """Some columns out of `open_values`, shape (columns, rows)."""
    words = np.zeros((len(chosen), lanes.high.shape[2], 4), dtype=np.uint8)
    words[:, 0, :2] = lanes.first[:, chosen].T
    mine = np.flatnonzero(lanes.noisy[chosen])
    theirs = (np.cumsum(lanes.noisy) - 1)[chosen[mine]]
    for lane in (0, 1):
        words[mine, 1:, lane] = lanes.noise[lane, theirs]
        words[:, :, lane + 2] = lanes.high[lane, chosen]
    bits = np.bitwise_xor.accumulate(words.view("<u4")[..., 0], axis=1)
    return _native(bits.view("<f4"), np.float32)


def take_column(lanes: Lanes, column: int) -> Floats:
    """One column out of `open_values`: what reading a long series does hundreds of times."""
    words = np.zeros((lanes.high.shape[2], 4), dtype=np.uint8)
    words[:, 2] = lanes.high[0, column]
    words[:, 3] = lanes.high[1, column]
    words[0, :2] = lanes.first[:, column]
    if lanes.noisy[column]:
        place = int(np.count_nonzero(lanes.noisy[:column]))
        words[1:, 0] = lanes.noise[0, place]
        words[1:, 1] = lanes.noise[1, place]
    bits = np.bitwise_xor.accumulate(words.view("<u4")[:, 0])
    return _native(bits.view("<f4"), np.float32)


def take_row(parts: Sequence[Lanes], row: int) -> Floats:
    """One row out of all parts of a block, in one go: a wide row has a hundred of them."""
    noisy = np.concatenate([lanes.noisy for lanes in parts])
    words = np.empty((len(noisy), 4), dtype=np.uint8)
    words[:, :2] = np.concatenate([lanes.first for lanes in parts], axis=1).T
    noise = np.concatenate([lanes.noise[:, :, :row] for lanes in parts], axis=1)
    words[noisy, :2] ^= np.bitwise_xor.reduce(noise, axis=2).T
    high = np.concatenate([lanes.high[:, :, : row + 1] for lanes in parts], axis=1)
    words[:, 2:] = np.bitwise_xor.reduce(high, axis=2).T
    return _native(words.view("<f4")[:, 0], np.float32)


def decode_values(blob: bytes, columns: int, rows: int) -> Floats:
    """The inverse of `encode_values`."""
    return take_columns(open_values(blob, columns, rows), np.arange(columns))


def encode_counts(counts: Counts) -> bytes:
    """Histograms, shape (rows, sites, NUM_BINS), of which most bins are empty.

    Kept are the bins that are not: the gap to the one before and the count, each as narrow as the
    largest of them allows.
    """
    flat = np.ascontiguousarray(counts).reshape(-1)
    places = np.flatnonzero(flat)
    gaps = _narrow(np.diff(places, prepend=-1).astype("<u4"))
    found = _narrow(flat[places].astype("<u4"))
    head = _COUNTS.pack(len(places), gaps.dtype.itemsize, found.dtype.itemsize)
    body = np.concatenate([_shuffle(gaps).reshape(-1), _shuffle(found).reshape(-1)])
    packed = head + _compress(body)
    return _CRC.pack(zlib.crc32(packed)) + packed


def decode_counts(blob: bytes, sites: int, rows: int) -> Counts:
    """The inverse of `encode_counts`."""
    return _sparse(_checked(blob), (rows, sites, NUM_BINS))


def encode_count_row(counts: Counts) -> bytes:
    """The payload of one raw histogram row, shape (sites, NUM_BINS)."""
    return encode_counts(counts)[_CRC.size :]


def decode_count_row(payload: bytes | memoryview, sites: int) -> Counts:
    """The inverse of `encode_count_row`."""
    return _sparse(memoryview(payload), (sites, NUM_BINS))


def _narrow(words: NDArray[Any]) -> NDArray[Any]:
    top = int(words.max(initial=0))
    return words.astype("u1" if top < 1 << 8 else "<u2" if top < 1 << 16 else "<u4", copy=False)


def _sparse(payload: memoryview, shape: tuple[int, ...]) -> Counts:
    if len(payload) < _COUNTS.size:
        raise Damaged(f"it holds {len(payload)} bytes where at least {_COUNTS.size} belong")
    number, gap_bytes, count_bytes = _COUNTS.unpack_from(payload)
    if not {gap_bytes, count_bytes} <= {1, 2, 4}:
        raise Damaged("its widths are impossible")
    body = _inflate(payload[_COUNTS.size :])
    cut = number * gap_bytes
    gaps = _unshuffle(body[:cut], f"<u{gap_bytes}", (number,))
    found = _unshuffle(body[cut:], f"<u{count_bytes}", (number,))
    flat = np.zeros(int(np.prod(shape)), dtype=np.uint32)
    places = np.cumsum(gaps, dtype=np.int64) - 1
    if number and places[-1] >= len(flat):
        raise Damaged("it has counts outside of its sites")
    flat[places] = found
    return flat.reshape(shape)


def encode_axis(steps: Ints, times: Times, seqs: Ints) -> bytes:
    """Step, time and sequence number of every row of a block."""
    lines = np.stack([steps.astype("<i8"), times.astype("<f8").view("<i8"), seqs.astype("<i8")])
    return _seal(_shuffle(_zigzag(_differences(lines, np.int64))))


def decode_axis(blob: bytes, rows: int) -> tuple[Ints, Times, Ints]:
    """The inverse of `encode_axis`."""
    delta = _unzigzag(_unshuffle(_open(blob), "<u8", (3, rows)), np.int64)
    lines = np.cumsum(delta, axis=-1, dtype=np.int64)
    return lines[0], lines[1].view(np.float64), lines[2]


def encode_cells(floats: Floats, small: Bytes) -> bytes:
    """A pyramid: `floats` of shape (3, columns, cells), `small` of shape (2, columns, cells)."""
    delta = _changed_bits(np.ascontiguousarray(floats, dtype="<f4").view("<u4"))
    return _seal(np.concatenate([_shuffle(delta).reshape(-1), small.reshape(-1)]))


def open_cells(blob: bytes, columns: int, cells: int) -> Bytes:
    """A pyramid unpacked to its bytes, shape (CELL_BYTES, columns, cells), for `unpack_cells`."""
    payload = _open(blob)
    size = columns * cells
    if len(payload) != CELL_BYTES * size:
        raise Damaged(f"it holds {len(payload)} bytes where {CELL_BYTES * size} belong")
    return np.frombuffer(payload, np.uint8).reshape(CELL_BYTES, columns, cells)


def unpack_cells(opened: Bytes) -> tuple[Floats, Bytes]:
    """Opened pyramids of several blocks, shape (blocks, CELL_BYTES, columns, cells).

    Gives the `floats` and `small` of `encode_cells`, the blocks' cells one after the other.
    """
    blocks, _, columns, cells = opened.shape
    lanes = opened[:, :12].reshape(blocks, 4, 3, columns, cells)
    words = np.empty((3, columns, blocks, cells, 4), dtype=np.uint8)
    for lane in range(4):
        words[..., lane] = lanes[:, lane].transpose(1, 2, 0, 3)
    bits = np.bitwise_xor.accumulate(words.view("<u4")[..., 0], axis=-1)
    floats = _native(bits.view("<f4"), np.float32).reshape(3, columns, blocks * cells)
    small = opened[:, 12:].transpose(1, 2, 0, 3).reshape(2, columns, blocks * cells)
    return floats, small


def decode_cells(blob: bytes, columns: int, cells: int) -> tuple[Floats, Bytes]:
    """The inverse of `encode_cells`."""
    return unpack_cells(open_cells(blob, columns, cells)[None])


def encode_ids(ids: Ints) -> bytes:
    """The column ids of a layout."""
    payload = ids.astype("<i4").tobytes()
    return _CRC.pack(zlib.crc32(payload)) + payload


def decode_ids(blob: bytes) -> Ints:
    """The inverse of `encode_ids`."""
    payload = _checked(blob)
    if len(payload) % 4:
        raise Damaged(f"it holds {len(payload)} bytes, not a whole number of ids")
    return np.frombuffer(payload, "<i4").astype(np.int64)


class _Compressor(threading.local):
    """One a thread, used again and again: making one costs half as much as using it."""

    def __init__(self) -> None:
        self.frames = zstd.ZstdCompressor(level=LEVEL)


_compressor = _Compressor()


def _compress(payload: Bytes) -> bytes:
    frames = _compressor.frames
    return frames.compress(payload.data, frames.FLUSH_FRAME)


def _seal(payload: Bytes) -> bytes:
    packed = _compress(payload)
    return _CRC.pack(zlib.crc32(packed)) + packed


def _checked(blob: bytes) -> memoryview:
    payload = memoryview(blob)[_CRC.size :]
    if blob[: _CRC.size] != _CRC.pack(zlib.crc32(payload)):
        raise Damaged("its checksum does not match")
    return payload


def _open(blob: bytes) -> bytes:
    return _inflate(_checked(blob))


def _inflate(payload: bytes | memoryview) -> bytes:
    # Not `zstd.decompress`: its loop over frames costs as much as a small frame itself.
    frame = zstd.ZstdDecompressor()
    try:
        found = frame.decompress(payload)
    except zstd.ZstdError as error:
        raise Damaged(f"it does not decompress ({error})") from None
    if not frame.eof or frame.unused_data:
        raise Damaged("it ends too early, or something follows its end")
    return found


def _changed_bits(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each word xored with the one before it along the last axis; the first ones as they are."""
    flat = bits.reshape(-1)
    delta = np.empty_like(bits)
    # In one go over all lines, and then their first words put right: four times as fast.
    np.bitwise_xor(flat[1:], flat[:-1], out=delta.reshape(-1)[1:])
    delta[..., :1] = bits[..., :1]
    return delta


def _shuffle(words: NDArray[Any]) -> Bytes:
    size = words.dtype.itemsize
    lanes = np.ascontiguousarray(words).reshape(-1).view(np.uint8).reshape(-1, size)
    return np.ascontiguousarray(lanes.T)


def _unshuffle(payload: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    expected = int(np.prod(shape)) * size
    if len(payload) != expected:
        raise Damaged(f"it holds {len(payload)} bytes where {expected} belong")
    lanes = np.frombuffer(payload, np.uint8).reshape(size, -1)
    words = np.empty((lanes.shape[1], size), dtype=np.uint8)
    for lane in range(size):
        # Lane by lane: four times as fast as copying the transpose.
        words[:, lane] = lanes[lane]
    return words.reshape(-1).view(dtype).reshape(shape)


def _differences(words: NDArray[Any], signed: type[np.signedinteger[Any]]) -> NDArray[Any]:
    # Modulo 2^32 or 2^64, so that every difference fits and the way back is exact.
    words = np.ascontiguousarray(words)
    delta = words.copy()
    delta[..., 1:] -= words[..., :-1]
    return delta.view(signed)


def _zigzag(delta: NDArray[Any]) -> NDArray[Any]:
    bits = 8 * delta.dtype.itemsize - 1
    return ((delta << 1) ^ (delta >> bits)).view(f"<u{delta.dtype.itemsize}")


def _unzigzag(words: NDArray[Any], signed: type[np.signedinteger[Any]]) -> NDArray[Any]:
    one = words.dtype.type(1)
    half = words >> one
    sign = (words & one).astype(bool)
    restored: NDArray[Any] = np.where(sign, ~half, half)
    return restored.view(signed)


def _native(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    native: NDArray[Any] = array.astype(dtype, copy=False)
    return native
