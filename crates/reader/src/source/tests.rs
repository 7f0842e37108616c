use super::*;
use forebay_rigs::drive::Drive;
use forebay_rigs::fake::{Fake, NQN};
use forebay_rigs::seccomp::forbid_entering;
use forebay_rigs::worker::content;
use std::io::Write;

/// A whole number of blocks, and of no MiB.
const BYTES: usize = (3 << 20) + 5 * 4096;
/// Offsets and lengths that begin and end on blocks, inside them, within one, and at the end.
const RANGES: [(u64, usize); 7] = [
    (0, BYTES),
    (1, 4095),
    (4096, 8192),
    (511, 2_500_000),
    (BYTES as u64 - 3, 3),
    (5000, 0),
    (1 << 20, (1 << 20) + 1),
];

fn open(uri: &str) -> SourceReader {
    SourceReader::open(uri, Opening::default()).unwrap_or_else(|e| panic!("{uri}: {e}"))
}

fn begun(source: &SourceReader, offset: u64, to: &mut [u8]) -> Result<Arc<Request>, Error> {
    let place = Address::Host(to.as_mut_ptr() as u64);
    source.read(&[Range { file: 0, offset, bytes: to.len(), to: place }], Vec::new())
}

/// Reads each range to memory that begins on a page, and to such that doesn't, all at the same time.
fn assert_reads(source: &SourceReader, expected: &[u8]) {
    assert_eq!(source.bytes(), expected.len() as u64);
    for shift in [0, 1] {
        let mut buffers: Vec<Vec<u8>> = RANGES.iter().map(|(_, bytes)| vec![0xee; bytes + 4098]).collect();
        let place = |buffer: &mut Vec<u8>| buffer.as_ptr().align_offset(4096) + shift;
        let mut requests = Vec::new();
        for (&(offset, bytes), buffer) in RANGES.iter().zip(&mut buffers) {
            let at = place(buffer);
            requests.push(begun(source, offset, &mut buffer[at..at + bytes]).unwrap());
        }
        for ((&(offset, bytes), buffer), request) in RANGES.iter().zip(&mut buffers).zip(requests) {
            request.wait(None);
            let report = request.outcome().unwrap();
            assert_eq!(report.bytes, bytes as u64);
            assert_eq!(report.staged_bytes + report.direct_bytes, report.bytes, "{report:?}");
            let at = place(buffer);
            assert!(buffer[at..at + bytes] == expected[offset as usize..][..bytes], "{bytes} from {offset}");
            assert!(buffer[..at].iter().chain(&buffer[at + bytes..]).all(|byte| *byte == 0xee), "beside it");
        }
    }
    let beyond = begun(source, 1, &mut vec![0; expected.len()]).map(drop).unwrap_err();
    assert!(beyond.found.contains(&format!("{} bytes", expected.len())), "{beyond}");
}

// promise: PYT-29
#[test]
fn files_stripes_and_models_read_the_bytes_below() {
    let home = forebay_rigs::gpu::home();
    let whole = content(BYTES);
    let chunk = 8192;
    let (mut members, mut odd) = ([Vec::new(), Vec::new()], whole.clone());
    whole.chunks(chunk).enumerate().for_each(|(at, bytes)| members[at % 2].extend_from_slice(bytes));
    odd.truncate(BYTES - 77);
    let path = |name: &str, bytes: &[u8]| {
        let path = home.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path.display().to_string()
    };
    // Of equal length, which the last chunk isn't.
    let even = BYTES / (2 * chunk) * (2 * chunk);
    members.iter_mut().for_each(|member| member.truncate(even / 2));
    let (a, b, odd_path) = (path("a", &members[0]), path("b", &members[1]), path("odd", &odd));
    let striped = open(&format!("stripe:?chunk=8k&m={a}&m={b}"));
    let mut read = vec![0; even];
    let request = begun(&striped, 0, &mut read).unwrap();
    request.wait(None);
    request.outcome().unwrap();
    assert!(read == whole[..even]);
    let rows = Layout { start: 3, step: 100, row_bytes: 100 };
    let numbers = [5u64, 6, 7, 9000, 0, 81, 80];
    let mut to = vec![0u8; 100 * numbers.len()];
    let place = Address::Host(to.as_mut_ptr() as u64);
    let request = striped.read_rows(&numbers.to_vec().into(), rows, place, Vec::new()).unwrap();
    request.wait(None);
    assert_eq!(request.outcome().unwrap().bytes, to.len() as u64);
    for (row, number) in to.chunks(100).zip(numbers) {
        assert!(row == &whole[rows.offset(number) as usize..][..100], "row {number}");
    }
    // More I/Os than are under way at a time, of a source that ends each as it is handed over.
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() {
        let folder = tempfile::tempdir_in(in_memory).unwrap();
        std::fs::write(folder.path().join("a"), &whole).unwrap();
        let source = open(&format!("stripe:?m={}", folder.path().join("a").display()));
        let (mut all, chunks) = (vec![0; whole.len() / (512 << 10) * (512 << 10)], 512 << 10);
        begun(&source, 0, &mut all).unwrap().wait(None);
        assert!(all == whole[..whole.len() / chunks * chunks]);
        let numbers: Vec<u64> = (0..100).rev().map(|number| number * 99).collect();
        let mut to = vec![0u8; 100 * numbers.len()];
        let place = Address::Host(to.as_mut_ptr() as u64);
        let request = source.read_rows(&numbers.clone().into(), rows, place, Vec::new()).unwrap();
        request.wait(None);
        request.outcome().unwrap();
        for (row, number) in to.chunks(100).zip(numbers) {
            assert!(row == &whole[rows.offset(number) as usize..][..100], "row {number}");
        }
    }
    let far = striped.read_rows(&vec![1 << 40].into(), rows, place, Vec::new()).map(drop).unwrap_err();
    assert_eq!(far.kind, Kind::Request);
    striped.close();
    for uri in [format!("file:{odd_path}"), format!("model:d7-ps1010?over={odd_path}")] {
        let source = open(&uri);
        let mut read = vec![0; odd.len() - 9];
        let request = begun(&source, 9, &mut read).unwrap();
        request.wait(None);
        assert_eq!(request.outcome().unwrap().bytes, read.len() as u64);
        assert!(read == odd[9..], "{uri}");
    }
}

// promise: PYT-29
#[test]
fn namespaces_read_what_is_there() {
    let data = Arc::new(Mutex::new(content(BYTES)));
    let target = Fake::start(data.clone(), 0);
    let source = open(&format!("nvme+tcp://{}/{NQN}?queues=2", target.address));
    assert_reads(&source, &content(BYTES));
    source.close();
    let drive = Drive::start(data);
    assert_reads(&open(&drive.uri("queues=2")), &content(BYTES));
}

// promise: PYT-29
#[test]
fn reads_of_a_target_that_ended_fail_and_its_worker_ends() {
    let target = Fake::start(Arc::new(Mutex::new(content(BYTES))), 0);
    let more = "reconnect_delay=0.1&ctrl_loss_tmo=0.2&fast_io_fail_tmo=0.2";
    let source = open(&format!("nvme+tcp://{}/{NQN}?{more}", target.address));
    target.stall(1);
    let mut to = vec![0; BYTES];
    let request = begun(&source, 0, &mut to).unwrap();
    while target.stalls() > 0 {
        std::thread::yield_now();
    }
    target.kill();
    request.wait(None);
    let error = request.outcome().unwrap_err();
    assert!(error.asked.contains("bytes at ") && !error.next.is_empty(), "{error}");
    source.close();
}

// promise: PYT-29
#[test]
fn a_cancelled_read_writes_no_more_though_nobody_answers() {
    let target = Fake::start(Arc::new(Mutex::new(content(BYTES))), 0);
    let source = open(&format!("nvme+tcp://{}/{NQN}?reconnect_delay=0.1", target.address));
    target.stall(1);
    target.hear_no_abort();
    let mut to = vec![0; BYTES];
    let request = begun(&source, 0, &mut to).unwrap();
    while target.stalls() > 0 {
        std::thread::yield_now();
    }
    assert!(!request.wait(Some(Duration::from_millis(1))));
    assert!(request.cancel() && request.is_done());
    assert!(request.outcome().unwrap_err().found.contains("cancelled"));
    // The next one comes, by a connection that was made anew.
    let again = begun(&source, 0, &mut to).unwrap();
    again.wait(None);
    again.outcome().unwrap();
    assert!(to == content(BYTES));
    // Nobody closes it, and nothing is under way: its worker is waited for.
    drop(source);
}

/// Tests a ring that may not be entered any more, and one that was never to be had.
// promise: ENG-6
#[test]
fn where_rings_may_not_be_entered_reads_say_so_or_do_without() {
    let home = forebay_rigs::gpu::home();
    let path = home.path().join("a");
    std::fs::write(&path, content(BYTES)).unwrap();
    let uri = format!("file:{}", path.display());
    let run = move || {
        let inbox = Arc::new(Inbox::default());
        let (worker, waker) = SourceWorker::set_up(target_of(&uri).unwrap(), inbox.clone()).unwrap();
        let has_ring = worker.reactor.has_ring();
        let under_way: Arc<UnderWay> = Arc::default();
        let mut to = vec![0; 4096];
        let place = Address::Host(to.as_mut_ptr() as u64);
        let range = [Range { file: 0, offset: 0, bytes: 4096, to: place }];
        let requests = [0, 0].map(|_| {
            let request = Request::apart(waker.clone(), Reading::begin(&under_way), &range, Vec::new());
            inbox.state.lock().unwrap().requests.push(request.clone());
            request
        });
        forbid_entering(libc::EPERM);
        inbox.ending.store(true, Ordering::Release);
        worker.run();
        if has_ring {
            for request in requests {
                let error = request.outcome().unwrap_err();
                assert!(request.is_done() && error.found.contains("io_uring"), "{error}");
            }
            assert!(inbox.state.lock().unwrap().closed.is_some());
        }
        // From here on by threads.
        let source = open(&uri);
        begun(&source, 0, &mut to).unwrap().wait(None);
        drop(source);
        assert!(to == content(BYTES)[..4096] && !under_way.any());
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn what_can_not_be_read_into_memory_says_why() {
    let refused = |uri: &str, opening: Opening| SourceReader::open(uri, opening).map(drop).unwrap_err();
    for (uri, found) in [
        ("nil:", "moves no bytes"),
        ("model:d7-ps1010", "virtual time"),
        ("stripe:?m=/nowhere/a&m=/nowhere/b", "no such file"),
        ("nvme+tcp://127.0.0.1:1/nqn.2014-08.org.example:none?ctrl_loss_tmo=0", ""),
        ("stripe:?m=", "empty"),
    ] {
        let error = refused(uri, Opening::default());
        assert!(error.found.contains(found) && !error.next.is_empty(), "{uri}: {error}");
        assert!(!error.next.contains('‹'), "{error}");
    }
    for (opening, option) in [
        (Opening { direct: Some(true), ..Opening::default() }, "direct=True"),
        (Opening { way: ReadPath::Mapped, ..Opening::default() }, "path=\"mapped\""),
        (Opening { prefer: Prefer::Rate, ..Opening::default() }, "prefer="),
    ] {
        let error = refused("nil:", opening);
        assert!(error.asked.contains(option), "{error}");
    }
}
