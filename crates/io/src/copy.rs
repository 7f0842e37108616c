//! Copying out of memory that may vanish: a mapped file that is truncated raises
//! SIGBUS, and the copy then stops and says how much is left.
//!
//! A core that walks one page after the other has few lines of memory on their way
//! at a time: its prefetchers stop at each page's end. Eight pages side by side keep
//! more of them coming, and copy up to a fifth faster than `rep movsb` on some
//! processors; on others (Zen 4) that is faster by up to half. So does asking for
//! lines 6 KiB ahead, of which a core's second cache keeps more on their way than
//! its first. `Choice` finds out.

#![allow(unsafe_code, reason = "copies between slots that the borrow checker can't follow")]

mod choice;

pub use choice::Choice;

/// Destination of a copy's stores: the cache, or memory past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// In the processor's cache.
    Cached,
    /// In the cache, too, by the processor's own instruction for copies.
    Moved,
    /// In the cache, with what is read next asked for further ahead than the processor does by itself.
    Ahead,
    /// In memory, past the cache.
    Streamed,
}

/// True if `guarded_copy` can survive a fault on this processor.
pub const GUARDED_COPIES: bool = cfg!(all(target_arch = "x86_64", not(miri)));

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use super::Stores;
    use crate::clock;
    use std::sync::{Once, OnceLock};
    use std::time::Duration;

    // rep movsb keeps its progress in registers, so a fault leaves in rcx exactly what is missing. The others copy
    // strips of eight pages, a line of each in turn or (`ahead`) one page after the other, and leave in rdx how many strips are
    // missing. Stores past the cache go line after line (strips of them take longer on AMD's processors), with AVX-512 four of
    // them at a time, which rdx counts; without, rdx counts lines.
    std::arch::global_asm!(
        ".globl forebay_copy_begin",
        ".hidden forebay_copy_begin",
        ".globl forebay_copy_end",
        ".hidden forebay_copy_end",
        ".p2align 6",
        "forebay_copy_begin:",
        "mov rcx, rdx",
        "rep movsb",
        "forebay_copy_end:",
        "mov rax, rcx",
        "ret",
        ".globl forebay_strips_begin",
        ".hidden forebay_strips_begin",
        ".globl forebay_strips_end",
        ".hidden forebay_strips_end",
        ".p2align 6",
        "forebay_strips_begin:",
        "2:",
        "mov ecx, 64",
        "3:",
        "vmovdqu64 zmm16, [rsi]",
        "vmovdqu64 zmm17, [rsi + 4096]",
        "vmovdqu64 zmm18, [rsi + 8192]",
        "vmovdqu64 zmm19, [rsi + 12288]",
        "vmovdqu64 zmm20, [rsi + 16384]",
        "vmovdqu64 zmm21, [rsi + 20480]",
        "vmovdqu64 zmm22, [rsi + 24576]",
        "vmovdqu64 zmm23, [rsi + 28672]",
        "vmovdqu64 [rdi], zmm16",
        "vmovdqu64 [rdi + 4096], zmm17",
        "vmovdqu64 [rdi + 8192], zmm18",
        "vmovdqu64 [rdi + 12288], zmm19",
        "vmovdqu64 [rdi + 16384], zmm20",
        "vmovdqu64 [rdi + 20480], zmm21",
        "vmovdqu64 [rdi + 24576], zmm22",
        "vmovdqu64 [rdi + 28672], zmm23",
        "add rsi, 64",
        "add rdi, 64",
        "dec ecx",
        "jnz 3b",
        "add rsi, 28672",
        "add rdi, 28672",
        "dec rdx",
        "jnz 2b",
        "forebay_strips_end:",
        "mov rax, rdx",
        "ret",
        ".globl forebay_ahead_begin",
        ".hidden forebay_ahead_begin",
        ".globl forebay_ahead_end",
        ".hidden forebay_ahead_end",
        ".p2align 6",
        "forebay_ahead_begin:",
        "4:",
        "mov ecx, 128",
        "5:",
        "prefetcht1 [rsi + 6144]",
        "prefetcht1 [rsi + 6208]",
        "prefetcht1 [rsi + 6272]",
        "prefetcht1 [rsi + 6336]",
        "vmovdqu64 zmm16, [rsi]",
        "vmovdqu64 zmm17, [rsi + 64]",
        "vmovdqu64 zmm18, [rsi + 128]",
        "vmovdqu64 zmm19, [rsi + 192]",
        "vmovdqu64 [rdi], zmm16",
        "vmovdqu64 [rdi + 64], zmm17",
        "vmovdqu64 [rdi + 128], zmm18",
        "vmovdqu64 [rdi + 192], zmm19",
        "add rsi, 256",
        "add rdi, 256",
        "dec ecx",
        "jnz 5b",
        "dec rdx",
        "jnz 4b",
        "forebay_ahead_end:",
        "mov rax, rdx",
        "ret",
        ".globl forebay_streamed_begin",
        ".hidden forebay_streamed_begin",
        ".globl forebay_streamed_end",
        ".hidden forebay_streamed_end",
        ".p2align 6",
        "forebay_streamed_begin:",
        "4:",
        // What lies behind the last one isn't asked for: it is another's, and takes a processor's turn at memory.
        "cmp rdx, 16",
        "jbe 5f",
        "prefetcht1 [rsi + 4096]",
        "prefetcht1 [rsi + 4160]",
        "prefetcht1 [rsi + 4224]",
        "prefetcht1 [rsi + 4288]",
        "5:",
        "vmovdqu64 zmm16, [rsi]",
        "vmovdqu64 zmm17, [rsi + 64]",
        "vmovdqu64 zmm18, [rsi + 128]",
        "vmovdqu64 zmm19, [rsi + 192]",
        "vmovntdq [rdi], zmm16",
        "vmovntdq [rdi + 64], zmm17",
        "vmovntdq [rdi + 128], zmm18",
        "vmovntdq [rdi + 192], zmm19",
        "add rsi, 256",
        "add rdi, 256",
        "dec rdx",
        "jnz 4b",
        "forebay_streamed_end:",
        "sfence",
        "mov rax, rdx",
        "ret",
        ".globl forebay_streamed_lines_begin",
        ".hidden forebay_streamed_lines_begin",
        ".globl forebay_streamed_lines_end",
        ".hidden forebay_streamed_lines_end",
        ".p2align 6",
        "forebay_streamed_lines_begin:",
        "6:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovntdq [rdi], ymm0",
        "vmovntdq [rdi + 32], ymm1",
        "add rsi, 64",
        "add rdi, 64",
        "dec rdx",
        "jnz 6b",
        "forebay_streamed_lines_end:",
        "vzeroupper",
        "sfence",
        "mov rax, rdx",
        "ret",
        ".globl forebay_word_begin",
        ".hidden forebay_word_begin",
        ".globl forebay_word_end",
        ".hidden forebay_word_end",
        ".p2align 4",
        "forebay_word_begin:",
        "mov eax, 1",
        "mov ecx, [rsi]",
        "mov [rdi], ecx",
        "xor eax, eax",
        "forebay_word_end:",
        "ret",
    );

    // Short copies, by vectors of one width: lines, which leave in rdx how many are missing; and rows, which leave in rcx how
    // many rows are missing. `line` copies 64 bytes from rax + r10 to rdi + r10, `last` those that end there. `done` follows a
    // fault as well. A row begins in a page that the processor finds slowly, and several of those it finds at a time only if
    // they are asked for one right after the other: so the first two lines of four rows are, up to 24 rows (192 bytes of
    // numbers) further on. rbp is how far, r11 the end of the numbers, rbx what a row has of whole lines.
    // Processors with AVX-512 ask for too little by themselves of rows of several lines: there each line is asked for four rows
    // (32 bytes of numbers) ahead, rbx bytes from the one that is copied.
    macro_rules! short_copies {
        ($name:literal, line: [$($line:literal),+], last: [$($last:literal),+], done: [$($done:literal),*]) => {
            std::arch::global_asm!(
                concat!(".globl forebay_lines_", $name, "_begin"),
                concat!(".hidden forebay_lines_", $name, "_begin"),
                concat!(".globl forebay_lines_", $name, "_end"),
                concat!(".hidden forebay_lines_", $name, "_end"),
                ".p2align 6",
                concat!("forebay_lines_", $name, "_begin:"),
                "mov rax, rsi",
                "xor r10d, r10d",
                "6:",
                $($line,)+
                "add r10, 64",
                "dec rdx",
                "jnz 6b",
                concat!("forebay_lines_", $name, "_end:"),
                $($done,)*
                "mov rax, rdx",
                "ret",
                concat!(".globl forebay_rows_", $name, "_begin"),
                concat!(".hidden forebay_rows_", $name, "_begin"),
                concat!(".globl forebay_rows_", $name, "_end"),
                concat!(".hidden forebay_rows_", $name, "_end"),
                ".p2align 6",
                concat!("forebay_rows_", $name, "_begin:"),
                "push rbx",
                "push rbp",
                "lea r11, [rdx + rcx*8]",
                "mov rbp, rdx",
                "mov rbx, r8",
                "and rbx, -64",
                "5:",
                "lea rax, [rdx + 160]",
                "cmp rbp, rax",
                "ja 7f",
                "lea r10, [rdx + 192]",
                "cmp r10, r11",
                "cmova r10, r11",
                "cmp rbp, r10",
                "jae 7f",
                "6:",
                "mov rax, [rbp]",
                "imul rax, r9",
                "prefetcht1 [rsi + rax]",
                "prefetcht1 [rsi + rax + 64]",
                "add rbp, 8",
                "cmp rbp, r10",
                "jb 6b",
                "7:",
                "mov rax, [rdx]",
                "imul rax, r9",
                "add rax, rsi",
                "add rax, rbx",
                "add rdi, rbx",
                "mov r10, rbx",
                "neg r10",
                "8:",
                $($line,)+
                "add r10, 64",
                "jnz 8b",
                "mov r10, r8",
                "sub r10, rbx",
                "jz 9f",
                $($last,)+
                "add rdi, r10",
                "9:",
                "add rdx, 8",
                "dec rcx",
                "jnz 5b",
                concat!("forebay_rows_", $name, "_end:"),
                "pop rbp",
                "pop rbx",
                $($done,)*
                "mov rax, rcx",
                "ret",
            );
        };
    }

    short_copies!(
        "zmm",
        line: ["vmovdqu64 zmm16, [rax + r10]", "vmovdqu64 [rdi + r10], zmm16"],
        last: ["vmovdqu64 zmm16, [rax + r10 - 64]", "vmovdqu64 [rdi + r10 - 64], zmm16"],
        done: []
    );
    short_copies!(
        "ymm",
        line: [
            "vmovdqu ymm0, [rax + r10]",
            "vmovdqu ymm1, [rax + r10 + 32]",
            "vmovdqu [rdi + r10], ymm0",
            "vmovdqu [rdi + r10 + 32], ymm1"
        ],
        last: [
            "vmovdqu ymm0, [rax + r10 - 64]",
            "vmovdqu ymm1, [rax + r10 - 32]",
            "vmovdqu [rdi + r10 - 64], ymm0",
            "vmovdqu [rdi + r10 - 32], ymm1"
        ],
        // Code without AVX waits for the upper halves of registers that it knows nothing of.
        done: ["vzeroupper"]
    );

    std::arch::global_asm!(
        ".globl forebay_long_rows_begin",
        ".hidden forebay_long_rows_begin",
        ".globl forebay_long_rows_end",
        ".hidden forebay_long_rows_end",
        ".p2align 6",
        "forebay_long_rows_begin:",
        "push rbx",
        "lea r11, [rdx + rcx*8 - 8]",
        "7:",
        "lea rax, [rdx + 32]",
        "cmp rax, r11",
        "cmova rax, r11",
        "mov rbx, [rax]",
        "imul rbx, r9",
        "mov rax, [rdx]",
        "imul rax, r9",
        "sub rbx, rax",
        "add rax, rsi",
        "mov r10, r8",
        "8:",
        "prefetcht1 [rax + rbx]",
        "vmovdqu64 zmm16, [rax]",
        "vmovdqu64 [rdi], zmm16",
        "add rax, 64",
        "add rdi, 64",
        "sub r10, 64",
        "cmp r10, 64",
        "jae 8b",
        "test r10, r10",
        "jz 9f",
        "vmovdqu64 zmm16, [rax + r10 - 64]",
        "vmovdqu64 [rdi + r10 - 64], zmm16",
        "add rdi, r10",
        "9:",
        "add rdx, 8",
        "dec rcx",
        "jnz 7b",
        "forebay_long_rows_end:",
        "pop rbx",
        "mov rax, rcx",
        "ret",
    );

    /// Copies `lines` of 64 bytes (or strips), and returns how many are missing.
    type Lines = unsafe extern "sysv64" fn(to: *mut u8, from: *const u8, lines: usize) -> usize;

    /// Copies rows of a line at least: number n of `numbers` lies at `base` + n × `step`. Returns how many are missing.
    type Rows = unsafe extern "sysv64" fn(
        to: *mut u8,
        base: *const u8,
        numbers: *const u64,
        count: usize,
        row_bytes: usize,
        step: u64,
    ) -> usize;

    /// Routines for short copies by the widest vectors that this processor has.
    struct ShortCopies {
        lines: Lines,
        rows: Rows,
        /// Rows of `LONG_ROW_MIN` bytes and more.
        long_rows: Rows,
    }

    impl ShortCopies {
        #[inline]
        fn of_this_processor() -> Option<ShortCopies> {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return Some(ShortCopies {
                    lines: forebay_lines_zmm_begin,
                    rows: forebay_rows_zmm_begin,
                    long_rows: forebay_long_rows_begin,
                });
            }
            let rows: Rows = forebay_rows_ymm_begin;
            let ymm = ShortCopies { lines: forebay_lines_ymm_begin, rows, long_rows: rows };
            std::arch::is_x86_feature_detected!("avx2").then_some(ymm)
        }
    }

    extern "sysv64" {
        fn forebay_copy_begin(to: *mut u8, from: *const u8, bytes: usize) -> usize;
        fn forebay_copy_end();
        fn forebay_strips_begin(to: *mut u8, from: *const u8, strips: usize) -> usize;
        fn forebay_strips_end();
        fn forebay_ahead_begin(to: *mut u8, from: *const u8, strips: usize) -> usize;
        fn forebay_ahead_end();
        fn forebay_streamed_begin(to: *mut u8, from: *const u8, fours: usize) -> usize;
        fn forebay_streamed_end();
        fn forebay_streamed_lines_begin(to: *mut u8, from: *const u8, lines: usize) -> usize;
        fn forebay_streamed_lines_end();
        fn forebay_lines_zmm_begin(to: *mut u8, from: *const u8, lines: usize) -> usize;
        fn forebay_lines_zmm_end();
        fn forebay_rows_zmm_begin(
            to: *mut u8,
            base: *const u8,
            numbers: *const u64,
            count: usize,
            row_bytes: usize,
            step: u64,
        ) -> usize;
        fn forebay_rows_zmm_end();
        fn forebay_lines_ymm_begin(to: *mut u8, from: *const u8, lines: usize) -> usize;
        fn forebay_lines_ymm_end();
        fn forebay_rows_ymm_begin(
            to: *mut u8,
            base: *const u8,
            numbers: *const u64,
            count: usize,
            row_bytes: usize,
            step: u64,
        ) -> usize;
        fn forebay_rows_ymm_end();
        fn forebay_long_rows_begin(
            to: *mut u8,
            base: *const u8,
            numbers: *const u64,
            count: usize,
            row_bytes: usize,
            step: u64,
        ) -> usize;
        fn forebay_long_rows_end();
        fn forebay_word_begin(to: *mut u32, from: *const u32) -> u32;
        fn forebay_word_end();
    }

    /// Eight pages are read in step, because CPUs prefetch within a page only.
    const STRIP: usize = 8 * 4096;
    const LINE: usize = 64;
    /// Longer copies are as fast by `rep movsb`.
    const SHORT_BYTES_MAX: usize = 8 << 10;
    /// Shorter rows are over before what was asked for four rows ahead arrives.
    const LONG_ROW_MIN: usize = 512;
    /// As far ahead as takes memory to answer while rows are copied that aren't short.
    const AHEAD_ROWS: usize = 8;
    /// The processor itself asks for what follows that in a page.
    const AHEAD_BYTES: usize = 256;

    /// First and last instruction of each routine that a fault may interrupt, and goes on at the last.
    fn routines() -> [(i64, i64); 11] {
        [
            (forebay_copy_begin as *const () as i64, forebay_copy_end as *const () as i64),
            (forebay_strips_begin as *const () as i64, forebay_strips_end as *const () as i64),
            (forebay_ahead_begin as *const () as i64, forebay_ahead_end as *const () as i64),
            (forebay_streamed_begin as *const () as i64, forebay_streamed_end as *const () as i64),
            (
                forebay_streamed_lines_begin as *const () as i64,
                forebay_streamed_lines_end as *const () as i64,
            ),
            (forebay_lines_zmm_begin as *const () as i64, forebay_lines_zmm_end as *const () as i64),
            (forebay_rows_zmm_begin as *const () as i64, forebay_rows_zmm_end as *const () as i64),
            (forebay_lines_ymm_begin as *const () as i64, forebay_lines_ymm_end as *const () as i64),
            (forebay_rows_ymm_begin as *const () as i64, forebay_rows_ymm_end as *const () as i64),
            (forebay_long_rows_begin as *const () as i64, forebay_long_rows_end as *const () as i64),
            (forebay_word_begin as *const () as i64, forebay_word_end as *const () as i64),
        ]
    }

    static GUARD: Once = Once::new();
    // SAFETY: an all-zero sigaction is SIG_DFL without flags.
    static mut BEFORE: libc::sigaction = unsafe { std::mem::zeroed() };

    /// Takes SIGBUS once for the process; what isn't ours goes to whoever had it before.
    pub fn install_copy_guard() {
        GUARD.call_once(|| {
            // SAFETY: installs a handler that only touches registers and statics written here, once.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_bus as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(libc::SIGBUS, &action, std::ptr::addr_of_mut!(BEFORE));
            }
        });
    }

    /// Returns whether a fault is survived on this thread: not where its owner blocks the signal, as the process ends then.
    pub fn has_copy_guard() -> bool {
        // SAFETY: a set of signals on this frame, which is written as a whole where the call succeeds.
        unsafe {
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked) == 0
                && libc::sigismember(&blocked, libc::SIGBUS) == 0
        }
    }

    extern "C" fn on_bus(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid ucontext; inside a copy of ours, resuming at its end returns what is left
        // to the caller. Elsewhere the former handler is put back and the instruction faults again under it.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let at = registers[libc::REG_RIP as usize];
            match routines().into_iter().find(|(begin, end)| (*begin..*end).contains(&at)) {
                Some((_, end)) => registers[libc::REG_RIP as usize] = end,
                None => {
                    libc::sigaction(signal, std::ptr::addr_of!(BEFORE), std::ptr::null_mut());
                }
            }
        }
    }

    /// Copies `bytes`, and returns how many were not copied because their page is gone.
    ///
    /// # Safety
    /// `to` is valid for `bytes`; `from` lies in a mapping at least that long, whose pages may be gone.
    #[inline]
    pub unsafe fn guarded_copy(to: *mut u8, from: *const u8, bytes: usize, stores: Stores) -> usize {
        if stores == Stores::Streamed && bytes >= STRIP {
            // SAFETY: the caller's promise.
            return unsafe { guarded_stream(to, from, bytes) };
        }
        let by_vectors = stores != Stores::Moved;
        let wide = by_vectors && bytes >= STRIP && std::arch::is_x86_feature_detected!("avx512f");
        let is_short = by_vectors && bytes <= SHORT_BYTES_MAX;
        if bytes >= LINE && (is_short || !wide && waits_for_itself(to, from)) {
            if let Some(short) = ShortCopies::of_this_processor() {
                // SAFETY: the caller's promise.
                return unsafe { guarded_short(to, from, bytes, short.lines) };
            }
        }
        let mut done = 0;
        if wide {
            let strips = bytes / STRIP;
            // SAFETY: the caller's promise, for the whole strips; a SIGBUS inside is handled by `on_bus`.
            let left = unsafe {
                match stores {
                    Stores::Ahead => forebay_ahead_begin(to, from, strips),
                    _ => forebay_strips_begin(to, from, strips),
                }
            };
            done = (strips - left) * STRIP;
        }
        // SAFETY: likewise, for the rest. After a fault it meets the same page, and counts exactly.
        unsafe { forebay_copy_begin(to.add(done), from.add(done), bytes - done) }
    }

    /// As `guarded_copy`, for a strip at least, by stores past the cache from the destination's first whole line on.
    ///
    /// # Safety
    /// As for `guarded_copy`.
    unsafe fn guarded_stream(to: *mut u8, from: *const u8, bytes: usize) -> usize {
        let head = to.align_offset(LINE);
        // SAFETY: the caller's promise: less than a line of it.
        let left = unsafe { forebay_copy_begin(to, from, head) };
        if left > 0 {
            return bytes - head + left;
        }
        // SAFETY: the rest, as promised; a SIGBUS inside is handled by `on_bus`.
        let streamed = |each: usize, copy: Lines| unsafe {
            let whole = (bytes - head) / each;
            match whole {
                0 => 0,
                _ => (whole - copy(to.add(head), from.add(head), whole)) * each,
            }
        };
        let done = head
            + if std::arch::is_x86_feature_detected!("avx512f") {
                streamed(4 * LINE, forebay_streamed_begin)
            } else if std::arch::is_x86_feature_detected!("avx2") {
                streamed(LINE, forebay_streamed_lines_begin)
            } else {
                0
            };
        // SAFETY: what is left of it. After a fault it meets the same page, and counts exactly.
        unsafe { guarded_copy(to.add(done), from.add(done), bytes - done, Stores::Cached) }
    }

    /// Returns whether `rep movsb` would take four times as long (Zen 3): where the destination's place in its page is a few bytes
    /// behind the source's, as that of NumPy's arrays is behind a file's pages, each load waits for the store before it.
    #[inline]
    fn waits_for_itself(to: *mut u8, from: *const u8) -> bool {
        (1..LINE).contains(&((to as usize).wrapping_sub(from as usize) % 4096))
    }

    /// Returns whether the system's own copy out of the page cache, from byte `offset` of a file on, would wait for itself: it is
    /// `rep movsb`, too. Whether that is so on this processor is measured once.
    pub fn system_copy_waits(to: *const u8, offset: u64) -> bool {
        static DOES: OnceLock<bool> = OnceLock::new();
        waits_for_itself(to.cast_mut(), offset as *const u8) && *DOES.get_or_init(|| moved(16) > 2 * moved(0))
    }

    /// The least time of `rep movsb` between buffers in the cache, to so many bytes behind the source's place in its page.
    fn moved(behind: usize) -> Duration {
        const BYTES: usize = 16 << 10;
        let mut memory = vec![0u8; 2 * (BYTES + 4096)];
        let from = memory.as_mut_ptr().wrapping_add(memory.as_ptr().align_offset(4096));
        let to = from.wrapping_add(BYTES + behind);
        let once = || {
            let began = clock::monotonic_now();
            // SAFETY: both lie in the memory, one behind the other.
            unsafe { forebay_copy_begin(to, from, BYTES) };
            began.elapsed()
        };
        (0..8).map(|_| once()).min().unwrap_or_default()
    }

    /// As `guarded_copy`, for a line at least: `rep movsb` takes longer to begin than a short row takes to copy.
    ///
    /// # Safety
    /// As for `guarded_copy`; the processor has the vectors of `copy`.
    #[inline]
    unsafe fn guarded_short(to: *mut u8, from: *const u8, bytes: usize, copy: Lines) -> usize {
        let (lines, odd) = (bytes / LINE, bytes % LINE);
        // SAFETY: the caller's promise; a SIGBUS inside is handled by `on_bus`, and leaves the lines that are missing.
        let mut left = unsafe { copy(to, from, lines) };
        let mut done = (lines - left) * LINE;
        if left == 0 && odd > 0 {
            let last = bytes - LINE;
            // SAFETY: the last line of the range, which overlaps the one before.
            left = unsafe { copy(to.add(last), from.add(last), 1) };
            done = if left == 0 { bytes } else { done };
        }
        if done == bytes {
            return 0;
        }
        // SAFETY: the rest, as promised; it meets the same page, and counts exactly.
        unsafe { forebay_copy_begin(to.add(done), from.add(done), bytes - done) }
    }

    /// Copies rows one behind the other to `to`: number n lies at `base` + n × `step`. Returns how many were not copied because
    /// the page of the first of those is gone.
    ///
    /// # Safety
    /// `to` has room for all of them, each of which lies in a mapping whose pages may be gone.
    pub unsafe fn guarded_row_copy(
        to: *mut u8,
        base: *const u8,
        (numbers, step): (&[u64], u64),
        row_bytes: usize,
    ) -> usize {
        if (LINE..=SHORT_BYTES_MAX).contains(&row_bytes) && !numbers.is_empty() {
            if let Some(short) = ShortCopies::of_this_processor() {
                let (from, count) = (numbers.as_ptr(), numbers.len());
                let rows = if row_bytes < LONG_ROW_MIN { short.rows } else { short.long_rows };
                // SAFETY: the caller's promise; a SIGBUS inside is handled by `on_bus`, and leaves the rows that are missing.
                return unsafe { rows(to, base, from, count, row_bytes, step) };
            }
        }
        let place = |number: u64| base.wrapping_add((number * step) as usize);
        for (i, number) in numbers.iter().enumerate() {
            if let Some(later) = numbers.get(i + AHEAD_ROWS) {
                prefetch_ahead(place(*later), row_bytes);
            }
            // SAFETY: the caller's promise.
            if unsafe { guarded_copy(to.add(i * row_bytes), place(*number), row_bytes, Stores::Cached) } > 0 {
                return numbers.len() - i;
            }
        }
        0
    }

    /// Asks for the first lines of memory that is read next; what isn't there is no fault.
    #[inline]
    pub fn prefetch_ahead(from: *const u8, bytes: usize) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        for line in (0..bytes.min(AHEAD_BYTES)).step_by(LINE) {
            // SAFETY: a hint, which no address makes fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast()) };
        }
    }

    /// Copies an aligned word by one load and one store. False: the page of one of them is gone.
    ///
    /// # Safety
    /// Both are aligned, and lie in mappings whose pages may be gone.
    #[inline]
    pub unsafe fn guarded_word_copy(to: *mut u32, from: *const u32) -> bool {
        // SAFETY: the caller's promise; a SIGBUS inside is handled by `on_bus`, and leaves 1.
        unsafe { forebay_word_begin(to, from) == 0 }
    }
}

// Miri doesn't know assembly.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use super::Stores;

    pub fn install_copy_guard() {}

    pub fn has_copy_guard() -> bool {
        false
    }

    pub fn system_copy_waits(_: *const u8, _: u64) -> bool {
        false
    }

    /// Of mappings never called: `GUARDED_COPIES` is false, and the map engine says so when it is asked for.
    ///
    /// # Safety
    /// As on x86-64.
    pub unsafe fn guarded_copy(to: *mut u8, from: *const u8, bytes: usize, _: Stores) -> usize {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        0
    }

    /// Never called, as `guarded_copy`.
    ///
    /// # Safety
    /// As on x86-64.
    pub unsafe fn guarded_row_copy(
        to: *mut u8,
        base: *const u8,
        (numbers, step): (&[u64], u64),
        row_bytes: usize,
    ) -> usize {
        for (i, number) in numbers.iter().enumerate() {
            let from = base.wrapping_add((number * step) as usize);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(i * row_bytes), row_bytes) };
        }
        0
    }

    /// A hint that nobody needs to take.
    pub fn prefetch_ahead(_: *const u8, _: usize) {}

    /// Faults aren't survived here; whoever maps memory of others asks `GUARDED` first.
    ///
    /// # Safety
    /// As on x86-64.
    pub unsafe fn guarded_word_copy(to: *mut u32, from: *const u32) -> bool {
        // SAFETY: the caller's promise.
        unsafe { to.write_volatile(from.read_volatile()) };
        true
    }
}

pub use imp::{
    guarded_copy, guarded_row_copy, guarded_word_copy, has_copy_guard, install_copy_guard, prefetch_ahead,
    system_copy_waits,
};

/// Copies memory that stays where it is as `guarded_copy` does: at the same rate wherever both lie in their pages.
///
/// # Safety
/// Both are valid for `bytes`, and don't overlap.
#[inline]
pub unsafe fn copy_memory(to: *mut u8, from: *const u8, bytes: usize, stores: Stores) {
    // SAFETY: the caller's promise.
    let left = unsafe { guarded_copy(to, from, bytes, stores) };
    debug_assert_eq!(left, 0, "memory that stays has no page that is gone");
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;
