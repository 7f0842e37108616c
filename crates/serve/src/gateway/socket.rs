//! Unix sockets that only their owner may use.

use forebay_model::Error;
use rustix::fs::Mode;
use rustix::net::{bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

const BACKLOG: i32 = 16;

/// Listens at `path`, with permissions 0600 from the moment it is there. What a process that is gone has left there is
/// replaced; a missing folder is made, with permissions 0700.
///
/// # Errors
/// `Request`: somebody listens there, it is something else than a socket, the folder can't be made or written to.
pub(crate) fn listen_at(path: &Path) -> Result<UnixListener, Error> {
    let failed = |found: String, next: String| Error::request(path.display().to_string(), found, next);
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.exists() {
        let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
        made.map_err(|e| failed(format!("its folder: {e}"), format!("mkdir -p {}", folder.display())))?;
    }
    clear(path)?;
    let bound = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // bind makes the file with the permissions of the socket's own inode.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    let socket = bound().map_err(|e: rustix::io::Errno| {
        failed(e.to_string(), format!("another path, or sudo mkdir -p {}", folder.display()))
    })?;
    Ok(socket.into())
}

/// Takes away a socket that nobody listens at.
fn clear(path: &Path) -> Result<(), Error> {
    let asked = path.display().to_string();
    match std::fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::request(asked, "exists and is not a socket", "another path"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::request(
            asked,
            "something is already listening there",
            "another path, or stop that one",
        )),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|e| Error::request(asked, e.to_string(), format!("rm {}", path.display()))),
        Err(e) => Err(Error::request(asked, e.to_string(), format!("rm {}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    // promise: SNP-3
    #[test]
    fn only_its_owner_may_use_it_and_what_a_dead_process_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/a.sock");
        let listener = listen_at(&path).unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        UnixStream::connect(&path).unwrap();
        assert!(listen_at(&path).unwrap_err().found.contains("already"));
        // Not only closed: a child that another test begins at this moment has it, too, until it runs its program.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        drop(listener);
        assert!(path.exists());
        UnixStream::connect(&path).unwrap_err();
        listen_at(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").unwrap();
        assert!(listen_at(&path).unwrap_err().found.contains("not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let error = listen_at(Path::new("/proc/none/a.sock")).unwrap_err();
        assert_eq!(error.kind, forebay_model::Kind::Request);
    }
}
