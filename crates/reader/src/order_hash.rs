//! The hash of an order by the widest vectors that the processor has: by plain instructions it takes longer than all else about a
//! batch that nothing is read for.

#![allow(unsafe_code, reason = "instructions that not every processor has")]

use forebay_model::feed::EpochOrder;

/// As `EpochOrder::hash`.
pub(super) fn order_hash(order: &EpochOrder, first: u64, samples: &[u64]) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if std::arch::is_x86_feature_detected!("avx512dq") && std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has these.
            return unsafe { by_avx512(order, first, samples) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: likewise.
            return unsafe { by_avx2(order, first, samples) };
        }
    }
    order.hash(first, samples)
}

/// # Safety
/// The processor has AVX-512 F and DQ.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn by_avx512(order: &EpochOrder, first: u64, samples: &[u64]) -> u64 {
    order.hash(first, samples)
}

/// # Safety
/// The processor has AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
unsafe fn by_avx2(order: &EpochOrder, first: u64, samples: &[u64]) -> u64 {
    order.hash(first, samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::feed::Shuffle;

    #[test]
    fn vectors_give_the_hash_of_the_order_whatever_is_left_at_the_end() {
        let order = EpochOrder::new(1 << 20, 912, Shuffle::Rows, 7, 3, 0x1234_5678_9ABC_DEF0);
        for count in [0usize, 1, 3, 7, 8, 9, 31, 64, 1000] {
            let mut samples = vec![0; count];
            order.fill(11, &mut samples);
            assert_eq!(order_hash(&order, 11, &samples), order.hash(11, &samples), "{count}");
        }
    }
}
