//! Quantised blocks to numbers: the layouts of ggml's `block_*` structs (`ggml-common.h`), little-endian.
//!
//! A block is a few scales and many small integers; a number is scale · integer (+ minimum). The arithmetic is f32 with the
//! scales widened from f16, as ggml's own, so that the result is the same to the bit.

use half::{bf16, f16};

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl BlockType {
    pub(super) const SUPPORTED: &'static str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";

    /// By ggml's number.
    pub(super) fn of(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// The name of ggml's number, for messages; most of these are not read.
    pub(super) fn name(kind: u32) -> String {
        const NAMES: [&str; 31] = [
            "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
            "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
            "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16",
        ];
        NAMES.get(kind as usize).map_or_else(|| format!("ggml type {kind}"), |name| (*name).to_owned())
    }

    /// Numbers in a block, and its bytes.
    fn size(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of so many numbers; `None` if they make no whole number of blocks.
    pub(super) fn bytes(self, numbers: usize) -> Option<usize> {
        let (per_block, bytes) = self.size();
        numbers.is_multiple_of(per_block).then(|| (numbers / per_block).checked_mul(bytes))?
    }

    /// The numbers of whole blocks, in order.
    pub(super) fn values(self, bytes: &[u8]) -> Vec<f32> {
        let (per_block, block_bytes) = self.size();
        let mut values = vec![0.0; bytes.len() / block_bytes * per_block];
        let unpack: fn(&[u8], &mut [f32]) = match self {
            Self::F32 => |block, out| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Self::F16 => |block, out| out[0] = half_at(block, 0),
            Self::Bf16 => |block, out| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            Self::Q4_0 => |block, out| {
                let d = half_at(block, 0);
                nibbles(&block[2..], |place, q| out[place] = f32::from(i16::from(q) - 8) * d);
            },
            Self::Q4_1 => |block, out| {
                let (d, min) = (half_at(block, 0), half_at(block, 2));
                nibbles(&block[4..], |place, q| out[place] = f32::from(q) * d + min);
            },
            Self::Q5_0 => |block, out| {
                let d = half_at(block, 0);
                let fifth = fifth_bits(&block[2..6]);
                nibbles(&block[6..], |place, q| out[place] = f32::from(i16::from(q | fifth(place)) - 16) * d);
            },
            Self::Q5_1 => |block, out| {
                let (d, min) = (half_at(block, 0), half_at(block, 2));
                let fifth = fifth_bits(&block[4..8]);
                nibbles(&block[8..], |place, q| out[place] = f32::from(q | fifth(place)) * d + min);
            },
            Self::Q8_0 => |block, out| {
                let d = half_at(block, 0);
                out.iter_mut().zip(&block[2..]).for_each(|(value, q)| *value = f32::from(q.cast_signed()) * d);
            },
            Self::Q4K => |block, out| q4_k(block, &[0; 32], &block[16..], out),
            Self::Q5K => |block, out| q4_k(block, &block[16..48], &block[48..], out),
            Self::Q6K => q6_k,
        };
        let blocks = bytes.chunks_exact(block_bytes);
        blocks.zip(values.chunks_exact_mut(per_block)).for_each(|(block, out)| unpack(block, out));
        values
    }
}

fn half_at(block: &[u8], place: usize) -> f32 {
    f16::from_le_bytes([block[place], block[place + 1]]).to_f32()
}

/// 16 bytes of two 4-bit numbers each: the low halves come first, then the high ones.
fn nibbles(bytes: &[u8], mut each: impl FnMut(usize, u8)) {
    for (place, byte) in bytes.iter().enumerate() {
        each(place, byte & 0x0F);
        each(place + bytes.len(), byte >> 4);
    }
}

/// The fifth bit of each of 32 numbers, in its place.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> u8 {
    move |place| ((bytes[place / 8] >> (place % 8)) & 1) << 4
}

/// Eight groups of 32, each with a 6-bit scale and a 6-bit minimum of its own: d · scale · q − dmin · min. Q5_K adds a fifth
/// bit to each number: those of group g are the bits g of the 32 bytes `fifth`.
fn q4_k(block: &[u8], fifth: &[u8], quants: &[u8], out: &mut [f32]) {
    let (d, dmin, scales) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    // The first four are in the low six bits; the high bits of these are the high bits of the last four.
    let scale_and_min = |group: usize| match group {
        0..4 => (scales[group] & 63, scales[group + 4] & 63),
        _ => (
            (scales[group + 4] & 0x0F) | ((scales[group - 4] >> 6) << 4),
            (scales[group + 4] >> 4) | ((scales[group] >> 6) << 4),
        ),
    };
    for (pair, (quants, out)) in quants.chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
        let group = |which: usize| {
            let (scale, min) = scale_and_min(2 * pair + which);
            (d * f32::from(scale), dmin * f32::from(min))
        };
        let groups = [group(0), group(1)];
        nibbles(quants, |place, q| {
            let (which, within) = (place / 32, place % 32);
            let (scale, min) = groups[which];
            let fifth = (fifth[within] >> (2 * pair + which) & 1) << 4;
            out[place] = scale * f32::from(q | fifth) - min;
        });
    }
}

/// Sixteen groups of 16, each with an 8-bit scale: d · scale · (q − 32), where q is four low bits and two high ones.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high, scales) = (&low[64 * half..], &high[32 * half..], &scales[8 * half..]);
        for (place, value) in out.iter_mut().enumerate() {
            let (quarter, within) = (place / 32, place % 32);
            let low = low[within + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 0x0F;
            let high = high[within] >> (2 * quarter) & 3;
            let scale = d * f32::from(scales[place / 16].cast_signed());
            *value = scale * f32::from(i16::from(low | high << 4) - 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn half(value: f32) -> [u8; 2] {
        f16::from_f32(value).to_le_bytes()
    }

    /// Byte i holds i in its low half and 15 - i in its high half.
    fn counting() -> Vec<u8> {
        (0..16).map(|i| i | (15 - i) << 4).collect()
    }

    #[test]
    fn plain_numbers() {
        assert_eq!(BlockType::F32.values(&1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(BlockType::F16.values(&half(-0.25)), [-0.25]);
        assert_eq!(BlockType::Bf16.values(&bf16::from_f32(3.0).to_le_bytes()), [3.0]);
    }

    #[test]
    fn four_bits_with_and_without_a_minimum() {
        let q4_0 = BlockType::Q4_0.values(&block(&[&half(0.5), &counting()]));
        assert_eq!((q4_0[0], q4_0[15], q4_0[16], q4_0[31]), (-4.0, 3.5, 3.5, -4.0));
        let q4_1 = BlockType::Q4_1.values(&block(&[&half(0.5), &half(-1.0), &counting()]));
        assert_eq!((q4_1[0], q4_1[3], q4_1[16], q4_1[31]), (-1.0, 0.5, 6.5, -1.0));
    }

    #[test]
    fn the_fifth_bit_lies_apart() {
        // Bits 1 and 31: the second number and the last.
        let high = [0b10, 0, 0, 0x80];
        let q5_0 = BlockType::Q5_0.values(&block(&[&half(1.0), &high, &counting()]));
        assert_eq!((q5_0[0], q5_0[1], q5_0[30], q5_0[31]), (-16.0, 1.0, -15.0, 0.0));
        let q5_1 = BlockType::Q5_1.values(&block(&[&half(1.0), &half(2.0), &high, &counting()]));
        assert_eq!((q5_1[0], q5_1[1], q5_1[30], q5_1[31]), (2.0, 19.0, 3.0, 18.0));
    }

    #[test]
    fn eight_bits_are_signed() {
        let quants: Vec<u8> = (0..32i8).map(|i| (i - 16).cast_unsigned()).collect();
        let values = BlockType::Q8_0.values(&block(&[&half(0.25), &quants]));
        assert_eq!((values[0], values[16], values[31]), (-4.0, 0.0, 3.75));
    }

    /// Group g has scale g + 1 and minimum g. All are below 16, so that no high bits are set but one: group 4's scale gets 16
    /// more from the top bits of the first byte.
    fn scales() -> [u8; 12] {
        let mut scales = [0u8; 12];
        for group in 0..4u8 {
            scales[usize::from(group)] = group + 1;
            scales[usize::from(group) + 4] = group;
            scales[usize::from(group) + 8] = (group + 5) | (group + 4) << 4;
        }
        scales[0] |= 1 << 6;
        scales
    }

    fn assert_groups(values: &[f32], number: impl Fn(usize) -> usize) {
        for (place, value) in values.iter().enumerate() {
            let group = place / 32;
            let scale = if group == 4 { 21 } else { group + 1 };
            let expected = (scale * number(place)) as f32 - 0.5 * group as f32;
            assert!((value - expected).abs() < 1e-6, "{place}: {value} {expected}");
        }
    }

    #[test]
    fn k_blocks_have_scales_of_their_own() {
        let values = BlockType::Q4K.values(&block(&[&half(1.0), &half(0.5), &scales(), &[0x21; 128]]));
        // Even groups read the low half, 1; odd ones the high half, 2.
        assert_groups(&values, |place| 1 + place / 32 % 2);
    }

    #[test]
    fn the_fifth_bits_of_a_k_block_lie_apart() {
        let mut fifth = [0u8; 32];
        (fifth[0], fifth[7]) = (0b1000_0001, 0b0000_0010);
        let values = BlockType::Q5K.values(&block(&[&half(1.0), &half(0.5), &scales(), &fifth, &[0x21; 128]]));
        // The first of groups 0 and 7, the eighth of group 1.
        let extra = |place| if [0, 7 * 32, 32 + 7].contains(&place) { 16 } else { 0 };
        assert_groups(&values, |place| 1 + place / 32 % 2 + extra(place));
    }

    #[test]
    fn six_bits_are_four_and_two() {
        let mut block = vec![0u8; 210];
        block[..128].fill(0x5A);
        // Quarters 0 to 3 of each half read the bit pairs 00, 01, 10, 11.
        block[128..192].fill(0b11_10_01_00);
        for group in 0..16u8 {
            block[192 + usize::from(group)] = if group == 15 { (-2i8).cast_unsigned() } else { group };
        }
        block[208..].copy_from_slice(&half(0.5));
        let values = BlockType::Q6K.values(&block);
        let expected = |place: usize| {
            let quarter = place % 128 / 32;
            let low = if quarter < 2 { 0xA } else { 0x5 };
            let scale = if place / 16 == 15 { -2.0 } else { (place / 16) as f32 };
            0.5 * scale * ((low + 16 * quarter) as f32 - 32.0)
        };
        for (place, value) in values.iter().enumerate() {
            assert!((value - expected(place)).abs() < 1e-6, "{place}: {value} {}", expected(place));
        }
    }

    #[test]
    fn numbers_come_in_whole_blocks() {
        assert_eq!(BlockType::Q4_1.bytes(64), Some(40));
        assert_eq!(BlockType::Q4_1.bytes(63), None);
        assert_eq!(BlockType::F32.bytes(usize::MAX), None);
    }
}
