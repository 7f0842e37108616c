//! A link between host and target that does what links do at their worst, by a seed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Mischief with the target's bytes; what the host says passes as it is.
#[derive(Clone, Copy, Default)]
pub struct Mischief {
    /// A connection is cut after a random number of bytes up to this.
    pub cut_within: Option<u64>,
    /// One bit of a random byte among so many is flipped, from the second kilobyte on.
    pub flip_one_in: Option<u64>,
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8) % n.max(1)
    }
}

pub struct Link {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Connections that were cut, and bits that were flipped.
    pub done: Arc<AtomicU32>,
    quiet: Arc<AtomicBool>,
}

impl Link {
    pub fn to(target: SocketAddr, mischief: Mischief, seed: u64) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, done, quiet): (Arc<AtomicBool>, Arc<AtomicU32>, Arc<AtomicBool>) = Default::default();
        let (ends, counts, calm) = (stop.clone(), done.clone(), quiet.clone());
        let random = Mutex::new(Random::new(seed));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(target) = TcpStream::connect(target) else { continue };
                let own = Random::new(random.lock().unwrap().below(u64::MAX));
                let (from_host, to_target) = (host.try_clone().unwrap(), target.try_clone().unwrap());
                std::thread::spawn(move || pass(from_host, to_target));
                let (counts, calm) = (counts.clone(), calm.clone());
                std::thread::spawn(move || spoil(target, host, mischief, own, &counts, &calm));
            }
        });
        Link { address, stop, done, quiet }
    }

    /// From now on it behaves.
    pub fn behave(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// No longer.
    pub fn misbehave(&self) {
        self.quiet.store(false, Ordering::Relaxed);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn spoil(
    mut from: TcpStream,
    mut to: TcpStream,
    mischief: Mischief,
    mut random: Random,
    done: &AtomicU32,
    quiet: &AtomicBool,
) {
    let mut left = mischief.cut_within.map(|most| 1 + random.below(most));
    let mut flip_in = mischief.flip_one_in.map(|n| 1024 + random.below(n));
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let mut n = n;
        if !quiet.load(Ordering::Relaxed) {
            if let Some(bytes) = &mut left {
                n = n.min(*bytes as usize);
                *bytes -= n as u64;
            }
            while let (Some(at), Some(every)) = (flip_in, mischief.flip_one_in) {
                if at >= n as u64 {
                    flip_in = Some(at - n as u64);
                    break;
                }
                buffer[at as usize] ^= 1 << random.below(8);
                done.fetch_add(1, Ordering::Relaxed);
                flip_in = Some(at + 1 + random.below(2 * every));
            }
        }
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
        if left == Some(0) && !quiet.load(Ordering::Relaxed) {
            done.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
