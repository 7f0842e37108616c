//! The one decoder of what cuFile returns: its own codes from 5000 on, the
//! driver's where cuFile passes one on, and errno.

use super::calls::Status;
use std::fmt;

/// Why a call of cuFile's failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuFileError {
    /// CUfileOpError, 0 where cuFile wasn't reached or gave an errno.
    pub code: i32,
    /// The nearest errno.
    pub errno: i32,
    text: String,
}

/// Codes from `FIRST` on: the name's end and what it means for whoever asked.
const FIRST: i32 = 5000;
const CODES: &[(i32, &str, &str)] = &[
    (5001, "DRIVER_NOT_INITIALIZED", "nvidia-fs isn't loaded and compatibility mode isn't allowed"),
    (5002, "DRIVER_INVALID_PROPS", "a property isn't valid"),
    (5003, "DRIVER_UNSUPPORTED_LIMIT", "a property is out of range"),
    (5004, "DRIVER_VERSION_MISMATCH", "nvidia-fs and libcufile don't match"),
    (5005, "DRIVER_VERSION_READ_ERROR", "nvidia-fs doesn't report its version"),
    (5006, "DRIVER_CLOSING", "cuFile is being closed"),
    (5007, "PLATFORM_NOT_SUPPORTED", "cuFile doesn't support this platform"),
    (5008, "IO_NOT_SUPPORTED", "cuFile doesn't support this file or its file system"),
    (5009, "DEVICE_NOT_SUPPORTED", "cuFile doesn't support this GPU"),
    (5010, "NVFS_DRIVER_ERROR", "nvidia-fs refused a request"),
    (5011, "CUDA_DRIVER_ERROR", "the CUDA driver failed"),
    (5012, "CUDA_POINTER_INVALID", "the address isn't a GPU's"),
    (5013, "CUDA_MEMORY_TYPE_INVALID", "memory of this kind can't be used"),
    (5014, "CUDA_POINTER_RANGE_ERROR", "the range ends behind its allocation"),
    (5015, "CUDA_CONTEXT_MISMATCH", "the memory belongs to another CUDA context"),
    (5016, "INVALID_MAPPING_SIZE", "more than may be pinned"),
    (5017, "INVALID_MAPPING_RANGE", "outside what is registered"),
    (5018, "INVALID_FILE_TYPE", "cuFile can't read files of this type"),
    (5019, "INVALID_FILE_OPEN_FLAG", "the file was opened with flags that cuFile refuses"),
    (5020, "DIO_NOT_SET", "the file isn't open with O_DIRECT"),
    (5022, "INVALID_VALUE", "an argument isn't valid"),
    (5023, "MEMORY_ALREADY_REGISTERED", "the buffer is registered already"),
    (5024, "MEMORY_NOT_REGISTERED", "the buffer isn't registered"),
    (5025, "PERMISSION_DENIED", "no permission for the driver or the file"),
    (5026, "DRIVER_ALREADY_OPEN", "cuFile is open already"),
    (5027, "HANDLE_NOT_REGISTERED", "cuFile couldn't learn which file system and device the file is on"),
    (5028, "HANDLE_ALREADY_REGISTERED", "the file is registered already"),
    (5029, "DEVICE_NOT_FOUND", "no such GPU"),
    (5030, "INTERNAL_ERROR", "an error within cuFile"),
    (5031, "GETNEWFD_FAILED", "no further file descriptor"),
    (5033, "NVFS_SETUP_ERROR", "nvidia-fs couldn't be set up"),
    (5034, "IO_DISABLED", "cufile.json denies I/O on this file"),
    (5035, "BATCH_SUBMIT_FAILED", "a batch couldn't be submitted"),
    (5036, "GPU_MEMORY_PINNING_FAILED", "GPU memory couldn't be pinned"),
    (5037, "BATCH_FULL", "the batch is full"),
    (5038, "ASYNC_NOT_SUPPORTED", "stream calls aren't supported"),
    (5039, "INTERNAL_BATCH_SETUP_ERROR", "a batch couldn't be set up"),
    (5040, "INTERNAL_BATCH_SUBMIT_ERROR", "a batch couldn't be submitted"),
    (5041, "INTERNAL_BATCH_GETSTATUS_ERROR", "a batch couldn't be asked for its status"),
    (5042, "INTERNAL_BATCH_CANCEL_ERROR", "a batch couldn't be cancelled"),
    (5043, "NOMEM_ERROR", "no memory"),
    (5044, "IO_ERROR", "the I/O failed"),
    (5045, "INTERNAL_BUF_REGISTER_ERROR", "the buffer couldn't be registered"),
    (5046, "HASH_OPR_ERROR", "an error within cuFile"),
    (5047, "INVALID_CONTEXT_ERROR", "no CUDA context, or not a valid one"),
    (5048, "NVFS_INTERNAL_DRIVER_ERROR", "an error within nvidia-fs"),
    (5049, "BATCH_NOCOMPAT_ERROR", "the batch needs compatibility mode, which isn't allowed"),
    (5050, "IO_MAX_ERROR", "longer than cuFile's longest I/O"),
];

pub(crate) const DRIVER_ALREADY_OPEN: i32 = 5026;
pub(crate) const HANDLE_NOT_REGISTERED: i32 = 5027;

impl CuFileError {
    pub fn new(text: impl Into<String>) -> CuFileError {
        CuFileError::with_errno(libc::EIO, text)
    }

    pub(crate) fn with_errno(errno: i32, text: impl Into<String>) -> CuFileError {
        CuFileError { code: 0, errno, text: text.into() }
    }

    /// A CUfileOpError; `cuda` is the CUresult beside it.
    fn of_code(call: &str, code: i32, cuda: i32) -> CuFileError {
        let known = CODES.iter().find(|(number, ..)| *number == code);
        let (name, meaning) = known
            .map_or(("UNKNOWN", "not a code that Forebay knows"), |(_, name, meaning)| (*name, *meaning));
        let beside = if cuda != 0 { format!(" (CUDA error {cuda})") } else { String::new() };
        let text = format!("{call}: {meaning}{beside} [CU_FILE_{name}, {code}]");
        CuFileError { code, errno: errno_of(code), text }
    }

    fn of_errno(call: &str, errno: i32) -> CuFileError {
        let text = format!("{call}: {}", std::io::Error::from_raw_os_error(errno));
        CuFileError { code: 0, errno, text }
    }

    /// The device below, or what cuFile needs to know about it, can't be told: a container without udev.
    pub fn lacks_udev(&self) -> bool {
        self.code == HANDLE_NOT_REGISTERED
    }
}

impl fmt::Display for CuFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CuFileError {}

/// Returns the errno of a failure, which decides what a worker does about it.
fn errno_of(code: i32) -> i32 {
    match code {
        5012..=5017 | 5019 | 5020 | 5022 | 5024 | 5050 => libc::EINVAL,
        5025 | 5034 => libc::EACCES,
        5036 | 5043 => libc::ENOMEM,
        5001 | 5007..=5009 | 5029 | 5038 => libc::ENOTSUP,
        _ => libc::EIO,
    }
}

/// Interprets the result of a call that returns a status.
pub(crate) fn check(call: &str, status: Status) -> Result<(), CuFileError> {
    match status.code.wrapping_abs() {
        0 => Ok(()),
        code => Err(CuFileError::of_code(call, code, status.cuda)),
    }
}

/// Interprets the result of a call that returns bytes: -1 with errno, a negated code of cuFile's, or a negated errno.
/// `errno` is asked for at once; stream and batch calls have none.
pub(crate) fn bytes(
    call: &str,
    result: isize,
    errno: impl FnOnce() -> Option<i32>,
) -> Result<usize, CuFileError> {
    if result >= 0 {
        return Ok(result as usize);
    }
    let value = i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX);
    Err(match (value, errno()) {
        (1, Some(errno)) if errno != 0 => CuFileError::of_errno(call, errno),
        (1, _) => CuFileError::new(format!("{call}: failed, and doesn't say why [-1]")),
        (FIRST.., _) => CuFileError::of_code(call, value, 0),
        (errno, _) => CuFileError::of_errno(call, errno),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: GPU-1
    #[test]
    fn each_range_is_told_apart() {
        let none = || None;
        assert_eq!(bytes("cuFileRead", 4096, none), Ok(4096));
        assert_eq!(bytes("cuFileRead", 0, none), Ok(0));
        assert_eq!(bytes("cuFileRead", -1, || Some(libc::EINVAL)).unwrap_err().errno, libc::EINVAL);
        assert_eq!(bytes("cuFileRead", -1, none).unwrap_err().errno, libc::EIO);
        assert_eq!(bytes("cuFileRead", -(libc::ENOSPC as isize), none).unwrap_err().errno, libc::ENOSPC);
        let own = bytes("cuFileRead", -5020, none).unwrap_err();
        assert_eq!((own.code, own.errno), (5020, libc::EINVAL));
        assert!(
            own.to_string().contains("O_DIRECT") && own.to_string().contains("CU_FILE_DIO_NOT_SET"),
            "{own}"
        );
        assert_eq!(bytes("cuFileRead", isize::MIN, none).unwrap_err().code, i32::MAX);
    }

    // promise: GPU-1
    #[test]
    fn a_status_names_its_code_and_the_drivers() {
        assert!(check("cuFileDriverOpen", Status { code: 0, cuda: 0 }).is_ok());
        let failed = check("cuFileBufRegister", Status { code: 5011, cuda: 2 }).unwrap_err().to_string();
        assert!(failed.contains("CUDA error 2") && failed.contains("5011"), "{failed}");
        assert!(check("cuFileHandleRegister", Status { code: 5027, cuda: 0 }).unwrap_err().lacks_udev());
        assert!(check("x", Status { code: 5999, cuda: 0 }).unwrap_err().to_string().contains("5999"));
        assert!(check("x", Status { code: i32::MIN, cuda: 0 }).is_err());
    }

    #[test]
    fn codes_are_in_order_and_named_once() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
