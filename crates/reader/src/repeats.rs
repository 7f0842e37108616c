//! Rows that come twice in a launch: looked for where that pays.

use forebay_io::ROW_ELSEWHERE;

/// Counts the numbers that are rows of the file.
pub(super) fn here(numbers: &[u64]) -> usize {
    numbers.iter().filter(|number| **number != ROW_ELSEWHERE).count()
}

/// Numbers of a long launch that are sampled to tell whether rows come twice often enough to look at all: it takes
/// tens of nanoseconds of a processor for each, as much as all else about a row.
pub(super) const SAMPLE: usize = 1024;
/// Repetitions in the sample that tell of a tenth in a launch of 32,768, or more.
const OFTEN: usize = 4;

/// Returns whether looking for repeated rows is worthwhile.
pub(super) fn repeats_pay(numbers: &[u64]) -> bool {
    numbers.len() <= SAMPLE || many_repeat(&numbers[..SAMPLE])
}

/// Returns whether many of these first numbers are repeated.
pub(super) fn many_repeat(sample: &[u64]) -> bool {
    here(&split_repeats(sample).1) >= OFTEN
}

/// The numbers with `ELSEWHERE` where one stood before, and in place of each of those the index of its first; that is
/// empty where none comes twice.
pub(super) fn split_repeats(numbers: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let slots = (numbers.len() * 2).next_power_of_two().max(2);
    let shift = 64 - slots.trailing_zeros();
    let mut seen = vec![(ROW_ELSEWHERE, 0u32); slots];
    let mut once = numbers.to_vec();
    let mut again = Vec::new();
    for (i, number) in once.iter_mut().enumerate().filter(|(_, number)| **number != ROW_ELSEWHERE) {
        // Fibonacci hashing: neighbours go far apart.
        let mut at = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize;
        while seen[at].0 != ROW_ELSEWHERE && seen[at].0 != *number {
            at = (at + 1) & (slots - 1);
        }
        if seen[at].0 == ROW_ELSEWHERE {
            seen[at] = (*number, i as u32);
            continue;
        }
        if again.is_empty() {
            again.resize(numbers.len(), ROW_ELSEWHERE);
        }
        again[i] = seen[at].1.into();
        *number = ROW_ELSEWHERE;
    }
    (once, again)
}
