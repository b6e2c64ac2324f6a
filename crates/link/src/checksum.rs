//! CRC-32C of bytes, with the instructions that the processor has, and of two parts whose checksums are known.
//!
//! Two libraries compute the same checksum. Where x86 has carry-less multiplication, `crc_fast` needs a half to a
//! third of the time of `crc32c`, least for bytes far from the cache. On all other machines `crc32c` is used, which
//! needs fewer processor features (a Raspberry Pi 4 has CRC instructions and no carry-less multiplication).
//!
//! The libraries' own functions to combine two checksums take as long as the checksum of 100 KiB. This one
//! multiplies the first checksum by x^(8·length of the second) modulo the polynomial, with a table of the powers
//! x^(2^n) that is computed at compile time: one multiplication per set bit of the length.

/// The polynomial 0x1EDC6F41, lowest coefficient in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(2^n).
const POWERS: [u32; 64 + 3] = powers();

/// For fewer bytes the simple way is as fast.
#[cfg(target_arch = "x86_64")]
const LONG_BYTES: usize = 512;

/// The checksum of some bytes, continued from that of the bytes before; 0 to begin.
pub(crate) fn append(sum: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LONG_BYTES
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
    {
        let state = u64::from(!sum);
        let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
        digest.update(bytes);
        if let Ok(sum) = u32::try_from(digest.finalize()) {
            return sum;
        }
    }
    crc32c::crc32c_append(sum, bytes)
}

/// The checksum of two parts together, from the checksum of each.
pub(crate) fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    let (mut left, mut shifted) = (crate::to_u64(second_bytes), first);
    // A byte is eight bits, so the powers begin at x^8.
    for power in &POWERS[3..] {
        if left == 0 {
            break;
        }
        if left & 1 == 1 {
            shifted = times(*power, shifted);
        }
        left >>= 1;
    }
    shifted ^ second
}

/// The product of two polynomials modulo the CRC polynomial.
const fn times(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while a != 0 {
        if a >> 31 == 1 {
            product ^= b;
        }
        a <<= 1;
        b = if b & 1 == 1 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
    }
    product
}

const fn powers() -> [u32; 64 + 3] {
    // The polynomial x.
    let mut powers = [1 << 30; 64 + 3];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = times(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_megabyte_of_zeros_counts() {
        let (front, zeros) = (crc32c::crc32c(b"front"), vec![0; 1 << 20]);
        assert_eq!(combine(front, crc32c::crc32c(&zeros), 1 << 20), crc32c::crc32c_append(front, &zeros));
    }

    #[test]
    fn both_libraries_give_one_sum() {
        let bytes: Vec<u8> = (0u32..70_000).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for start in [0, 1, 7, 64, 999] {
            for end in [start, start + 9, start + 511, start + 512, start + 513, start + 4096, 66_001, 70_000]
            {
                let (front, back) = (&bytes[..start], &bytes[start..end]);
                let whole = append(append(0, front), back);
                assert_eq!(whole, crc32c::crc32c(&bytes[..end]), "{start}..{end}");
            }
        }
        assert_eq!(append(0, b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn two_parts_have_the_sum_of_the_whole(
            first in proptest::collection::vec(any::<u8>(), 0..300),
            second in proptest::collection::vec(any::<u8>(), 0..5000),
        ) {
            let whole = crc32c::crc32c_append(crc32c::crc32c(&first), &second);
            prop_assert_eq!(combine(crc32c::crc32c(&first), crc32c::crc32c(&second), second.len()), whole);
        }
    }
}
