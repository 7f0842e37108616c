//! Many files, each read whole: opened, read and closed by the thread pool.

use super::opened::size_of;
use super::place::{Address, Range};
use super::processors;
use super::request::{Request, Source};
use super::thread_pool;
use forebay_io::CudaEvent;
use forebay_model::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// Sizes of many files, asked for by several threads.
pub fn sizes_of(paths: &[PathBuf]) -> Result<Vec<u64>, Error> {
    let share = paths.len().div_ceil(processors::threads()).max(256);
    std::thread::scope(|scope| {
        let asked: Vec<_> = paths
            .chunks(share)
            .map(|some| scope.spawn(|| some.iter().map(|p| size_of(p)).collect::<Result<Vec<_>, _>>()))
            .collect();
        let mut sizes = Vec::with_capacity(paths.len());
        for some in asked {
            sizes.extend(some.join().expect("looking at files doesn't panic")?);
        }
        Ok(sizes)
    })
}

/// Begins to read each file whole, `sizes[i]` bytes of it, to its place.
pub fn read_files(
    paths: Vec<PathBuf>,
    sizes: &[u64],
    places: &[Address],
    after: Vec<CudaEvent>,
) -> Result<Arc<Request>, Error> {
    assert!(paths.len() == sizes.len() && paths.len() == places.len(), "a size and a place for each file");
    let ranges: Vec<Range> = sizes
        .iter()
        .zip(places)
        .enumerate()
        .map(|(file, (&bytes, &to))| Range { file: file as u32, offset: 0, bytes: bytes as usize, to })
        .collect();
    let files = paths.into_iter().zip(sizes.iter().copied()).collect();
    let request = Arc::new(Request::new(Source::Many(files), &ranges, after, processors::threads(), None));
    thread_pool::submit(&request)?;
    Ok(request)
}
