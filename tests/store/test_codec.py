import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torchvitals.record.bins import NUM_BINS
from torchvitals.store import codec

bits = st.integers(0, 2**32 - 1) | st.sampled_from(
    # measured NaNs with payloads, MISSING, ±Inf, −0.0, subnormals, signalling NaN
    [0x7FC00000, 0x7FC00001, 0xFFC12345, 0x7FC0D15E, 0x7F800000, 0xFF800000, 1 << 31, 1, 0x7F800001]
)
shapes = st.tuples(st.integers(1, 20), st.integers(1, 40))


@given(hnp.arrays(np.uint32, shapes, elements=bits))
def test_values_come_back_bit_for_bit(words):
    blob = codec.encode_values(words.view(np.float32))
    back = codec.decode_values(blob, *words.shape)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back.view(np.uint32), words)
    lanes = codec.open_values(blob, *words.shape)
    for at in (0, words.shape[1] // 2, words.shape[1] - 1):
        np.testing.assert_array_equal(codec.take_row([lanes], at).view(np.uint32), words[:, at])
    for at in range(words.shape[0]):
        np.testing.assert_array_equal(codec.take_column(lanes, at).view(np.uint32), words[at])
    some = np.array([words.shape[0] - 1, 0])
    np.testing.assert_array_equal(codec.take_columns(lanes, some).view(np.uint32), words[some])


@given(st.integers(1, 5), st.integers(1, 7), st.randoms(use_true_random=False))
def test_counts_come_back(sites, rows, random):
    rng = np.random.default_rng(random.randrange(2**32))
    counts = rng.integers(0, 2**32, (rows, sites, NUM_BINS), dtype=np.uint32)
    counts[..., ::2] = 0
    counts >>= rng.integers(0, 32, dtype=np.uint32)  # narrow ones take another path
    back = codec.decode_counts(codec.encode_counts(counts), sites, rows)
    np.testing.assert_array_equal(back, counts)
    line = codec.decode_count_row(codec.encode_count_row(counts[0]), sites)
    np.testing.assert_array_equal(line, counts[0])


int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(int64, st.floats(), int64), min_size=1, max_size=30))
def test_axes_come_back(lines):
    steps, times, seqs = (np.array(column) for column in zip(*lines, strict=True))
    back = codec.decode_axis(codec.encode_axis(steps, times, seqs), len(lines))
    np.testing.assert_array_equal(back[0], steps)
    np.testing.assert_array_equal(back[1].view(np.int64), times.view(np.int64))
    np.testing.assert_array_equal(back[2], seqs)


@given(hnp.arrays(np.uint32, st.just((3, 4, 5)), elements=bits))
def test_cells_come_back(words):
    small = (words[:2] % 65).astype(np.uint8)
    floats, flags = codec.decode_cells(codec.encode_cells(words.view(np.float32), small), 4, 5)
    np.testing.assert_array_equal(floats.view(np.uint32), words)
    np.testing.assert_array_equal(flags, small)


@given(st.data())
def test_every_flipped_bit_is_found(data):
    blob = bytearray(codec.encode_values(np.arange(64, dtype=np.float32).reshape(4, 16)))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(codec.Damaged, match="checksum"):
        codec.decode_values(bytes(blob), 4, 16)


def test_a_raw_row_is_tied_to_its_step_and_time():
    blob = codec.row_blob(7, 1.5, b"abcd")
    assert bytes(codec.row_payload(7, 1.5, blob)) == b"abcd"
    with pytest.raises(codec.Damaged):
        codec.row_payload(8, 1.5, blob)
    with pytest.raises(codec.Damaged):
        codec.row_payload(7, 1.25, blob)


@pytest.mark.parametrize("shape", [(4, 15), (5, 16), (1, 1)])
def test_a_wrong_size_is_found(shape):
    blob = codec.encode_values(np.zeros((4, 16), dtype=np.float32))
    with pytest.raises(codec.Damaged, match=r"belong|not decompress"):
        codec.decode_values(blob, *shape)


def test_smooth_columns_get_small():
    steps = np.arange(512, dtype=np.float32)
    walk = np.stack([np.full(512, 589824, np.float32), steps])
    assert len(codec.encode_values(walk)) < 0.4 * walk.nbytes


def test_empty_histograms_come_back():
    counts = np.zeros((3, 2, NUM_BINS), dtype=np.uint32)
    np.testing.assert_array_equal(codec.decode_counts(codec.encode_counts(counts), 2, 3), counts)
