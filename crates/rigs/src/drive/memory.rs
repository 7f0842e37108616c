//! Memory that the driver lent, by address.

use forebay_nvme::transport::pcie::{HostMemory, Unmapped};
use rustix::fd::OwnedFd;

/// Memory that the driver lent.
#[derive(Default)]
pub struct Memory(pub Vec<(u64, u64, OwnedFd)>);

impl Memory {
    pub fn place(&self, address: u64, bytes: u64) -> Result<(&OwnedFd, u64), Unmapped> {
        let inside = |(begin, len, _): &&(u64, u64, OwnedFd)| {
            address >= *begin && address.checked_add(bytes).is_some_and(|end| end <= begin + len)
        };
        let (begin, _, fd) = self.0.iter().find(inside).ok_or(Unmapped { address, bytes })?;
        Ok((fd, address - begin))
    }
}

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unmapped> {
        let (fd, at) = self.place(address, into.len() as u64)?;
        assert_eq!(rustix::io::pread(fd, &mut *into, at).unwrap(), into.len());
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Unmapped> {
        let (fd, at) = self.place(address, from.len() as u64)?;
        assert_eq!(rustix::io::pwrite(fd, from, at).unwrap(), from.len());
        Ok(())
    }

    fn load(&self, address: u64) -> Result<u32, Unmapped> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_ne_bytes(word))
    }

    fn store(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        self.write(address, &value.to_ne_bytes())
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        self.place(address, bytes).is_ok()
    }
}
