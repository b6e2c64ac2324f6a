//! CRC-32C of bytes that were summed in two parts.
//!
//! The library's own function for that takes as long as summing 100 KiB. Here the first part's sum is multiplied by
//! x^(8·length of the second) modulo the polynomial, whose powers x^(2^n) are a table that is made when this is
//! compiled: one multiplication for each bit that is set in the length.

/// The polynomial 0x1EDC6F41, lowest coefficient in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(2^n).
const POWERS: [u32; 64 + 3] = powers();

/// The sum of two parts together, from that of each.
pub(crate) fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    let (mut left, mut shifted) = (crate::to_u64(second_bytes), first);
    // A byte is eight bits: the powers begin at x^8.
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

/// The product of two polynomials, modulo the one of the sum.
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
    // x itself.
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

    proptest! {
        #[test]
        fn two_parts_have_the_sum_of_the_whole(first in proptest::collection::vec(any::<u8>(), 0..300), second in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let whole = crc32c::crc32c_append(crc32c::crc32c(&first), &second);
            prop_assert_eq!(combine(crc32c::crc32c(&first), crc32c::crc32c(&second), second.len()), whole);
        }
    }
}
