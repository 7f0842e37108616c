//! Samples of an order, and their hash, by the widest vectors that the processor has: by plain instructions either takes longer
//! than all else about a batch that nothing is read for.

#![allow(unsafe_code, reason = "instructions that not every processor has")]

use forebay_model::feed::EpochOrder;

/// Defines a function that calls a method of `EpochOrder`, compiled for each width of vectors.
macro_rules! by_widest_vectors {
    ($(#[$doc:meta])* $name:ident, $method:ident, ($($arg:ident: $type:ty),*) $(-> $result:ty)?) => {
        $(#[$doc])*
        pub(super) fn $name(order: &EpochOrder, $($arg: $type),*) $(-> $result)? {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            {
                /// # Safety
                /// The processor has AVX-512 F and DQ.
                #[target_feature(enable = "avx512f,avx512dq")]
                unsafe fn by_avx512(order: &EpochOrder, $($arg: $type),*) $(-> $result)? {
                    order.$method($($arg),*)
                }
                /// # Safety
                /// The processor has AVX2.
                #[target_feature(enable = "avx2")]
                unsafe fn by_avx2(order: &EpochOrder, $($arg: $type),*) $(-> $result)? {
                    order.$method($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx512dq") && std::arch::is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has these.
                    return unsafe { by_avx512(order, $($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: likewise.
                    return unsafe { by_avx2(order, $($arg),*) };
                }
            }
            order.$method($($arg),*)
        }
    };
}

by_widest_vectors!(
    /// As `EpochOrder::hash`.
    order_hash, hash, (first: u64, samples: &[u64]) -> u64
);
by_widest_vectors!(
    /// As `EpochOrder::fill`.
    order_samples, fill, (first: u64, into: &mut [u64])
);

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::feed::Shuffle;

    #[test]
    fn vectors_give_the_order_and_its_hash_whatever_is_left_at_the_end() {
        let order = EpochOrder::new((1 << 20) + 7, 912, Shuffle::Rows, 7, 3, 0x1234_5678_9ABC_DEF0);
        for count in [0usize, 1, 3, 7, 8, 9, 31, 64, 1000] {
            let (mut samples, mut each) = (vec![0; count], vec![0; count]);
            order.fill(11, &mut samples);
            order_samples(&order, 11, &mut each);
            assert_eq!(each, samples, "{count}");
            assert_eq!(order_hash(&order, 11, &samples), order.hash(11, &samples), "{count}");
        }
    }
}
