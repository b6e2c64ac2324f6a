//! The functions of an opened MPI library, behind one trait for all binary interfaces.
//!
//! Place in the flow: below `engine`, its only caller; `library` chooses the file and its binary interface.
//!
//! Invariants: all calls come from the thread that initialised MPI (the table is not `Send`). Incomplete requests
//! are in one list without gaps, in the order that `test_any` uses. A status is opaque memory larger than any
//! library's, read only by `MPI_Get_count`, so its layout never matters.
//!
//! Deliberately absent: headers at build time. The interfaces differ in the type of a handle and the values of four
//! constants: addresses of symbols (Open MPI), numbers (MPICH), small numbers as pointers (the standard ABI).
#![allow(unsafe_code)] // Foreign functions take pointers.

use super::library::{Abi, MpiError};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// An error, in the library's words.
#[derive(Clone, Debug)]
pub(super) struct MpiFault(pub(super) String);

/// A completed request: its index in the list, from which the last request then moves into its place, and the bytes
/// received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complete {
    pub(super) index: usize,
    pub(super) bytes: usize,
}

/// One message: its length, peer and tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) bytes: usize,
    pub(super) peer: c_int,
    pub(super) tag: c_int,
}

/// The calls.
pub(super) trait Calls {
    /// `MPI_Init_thread`; errors are returned from then on.
    fn init(&self) -> Result<(), MpiFault>;
    /// This process's rank, and the number of processes.
    fn rank_and_size(&self) -> Result<(c_int, c_int), MpiFault>;
    /// The library's version text.
    fn version(&self) -> String;
    /// Starts a send, at the end of the list. `is_synchronous`: it completes only after the peer has begun to
    /// receive.
    ///
    /// # Safety
    /// The bytes from `from` on are valid and unchanged until the request is complete.
    unsafe fn send(&self, from: *const u8, message: Message, is_synchronous: bool) -> Result<(), MpiFault>;
    /// Starts a receive, at the end of the list.
    ///
    /// # Safety
    /// The bytes from `to` on are valid and exclusive until the request is complete.
    unsafe fn receive(&self, to: *mut u8, message: Message) -> Result<(), MpiFault>;
    /// A completed request, if any.
    fn test_any(&self) -> Result<Option<Complete>, MpiFault>;
    /// Length of the list.
    fn under_way(&self) -> usize;
    /// Waits for all requests from that index on, and removes them from the list.
    fn wait(&self, from: usize) -> Result<(), MpiFault>;
    /// Gathers the same number of bytes from every rank, in the order of ranks. Waits for all.
    fn gather_all(&self, own: &[u8], ranks: usize) -> Result<Vec<u8>, MpiFault>;
    /// Waits for all ranks, and ends MPI.
    fn finalize(&self) -> Result<(), MpiFault>;
    /// Ends all processes of the job.
    fn abort(&self, code: c_int);
}

/// The type of the library's handles.
trait Handle: Copy + 'static {}
/// MPICH.
impl Handle for c_int {}
/// Open MPI and the standard ABI.
impl Handle for *mut c_void {}

/// Larger than any library's status, which have 20 to 40 bytes.
#[repr(C, align(16))]
struct Status(MaybeUninit<[u8; 256]>);

/// Longest text of an error or version in any of the interfaces.
const TEXT_BYTES: usize = 8192;
const SUCCESS: c_int = 0;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type SetHandler<H> = unsafe extern "C" fn(H, H) -> c_int;
type Number<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type Send<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Receive<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type TestAny<H> = unsafe extern "C" fn(c_int, *mut H, *mut c_int, *mut c_int, *mut Status) -> c_int;
type Wait<H> = unsafe extern "C" fn(*mut H, *mut Status) -> c_int;
type GetCount<H> = unsafe extern "C" fn(*const Status, H, *mut c_int) -> c_int;
type AllGather<H> = unsafe extern "C" fn(*const c_void, c_int, H, *mut c_void, c_int, H, H) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Abort<H> = unsafe extern "C" fn(H, c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// Constants of one library.
struct Constants<H> {
    world: H,
    byte: H,
    errors_return: H,
    /// The level `MPI_THREAD_FUNNELED`: only one of several threads makes calls.
    funneled: c_int,
}

/// Functions of one library that start and complete requests.
struct RequestCalls<H> {
    send: Send<H>,
    synchronous_send: Send<H>,
    receive: Receive<H>,
    test_any: TestAny<H>,
    wait: Wait<H>,
    get_count: GetCount<H>,
}

/// Functions and constants of one library. It is never closed, because it may have threads of its own.
struct Table<H> {
    constants: Constants<H>,
    init: Init,
    set_handler: SetHandler<H>,
    rank: Number<H>,
    size: Number<H>,
    request: RequestCalls<H>,
    all_gather: AllGather<H>,
    finalize: Finalize,
    abort: Abort<H>,
    error_text: ErrorText,
    version: Version,
    /// Incomplete requests.
    requests: RefCell<Vec<H>>,
    _is_of_one_thread: PhantomData<*const ()>,
}

/// An opened library.
pub(super) type Opened = (Abi, Box<dyn Calls>);

/// Opens a library. `None` if the file does not exist; an error if it cannot be used.
pub(super) fn open(file: &OsStr, abi: Option<Abi>) -> Result<Option<Opened>, MpiError> {
    // Plugins that Open MPI opens itself look for its symbols among the global ones.
    // SAFETY: the names are MPI libraries', or the user vouches for the file; their initialisers need nothing of us.
    let library = match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => library,
        Err(_) if abi.is_some() => return Ok(None),
        // The loader's error for a missing file cannot be distinguished from others.
        Err(e) => {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            return Err(MpiError::Unfit(file.into(), why));
        }
    };
    let missing = |e: libloading::Error| MpiError::Unfit(file.into(), e.to_string());
    let abi = abi.unwrap_or_else(|| told(&library));
    let calls = match abi {
        Abi::OpenMpi => {
            let symbol = |name: &[u8]| {
                // SAFETY: only the address is taken, which is what this interface has for a handle.
                unsafe { library.get::<*mut c_void>(name) }.map(|symbol| *symbol).map_err(missing)
            };
            let world = symbol(b"ompi_mpi_comm_world\0")?;
            let constants = [world, symbol(b"ompi_mpi_byte\0")?, symbol(b"ompi_mpi_errors_return\0")?];
            boxed(&library, constants, 1).map_err(missing)?
        }
        Abi::Mpich => {
            let constants: [c_int; 3] = [0x4400_0000, 0x4c00_010d, 0x5400_0001];
            boxed(&library, constants, 1).map_err(missing)?
        }
        Abi::Standard => {
            let constants = [0x101, 0x247, 0x143].map(ptr::without_provenance_mut::<c_void>);
            boxed(&library, constants, 1024).map_err(missing)?
        }
    };
    std::mem::forget(library);
    Ok(Some((abi, calls)))
}

/// The interface of a file that the user has named: each has symbols that no other interface has.
fn told(library: &Library) -> Abi {
    // SAFETY: only whether the symbols exist is asked.
    let has = |name: &[u8]| unsafe { library.get::<*mut c_void>(name) }.is_ok();
    if has(b"ompi_mpi_comm_world\0") {
        return Abi::OpenMpi;
    }
    // A part of MPICH's own interface that its library for the standard ABI does not have.
    if has(b"MPIR_Dup_fn\0") { Abi::Mpich } else { Abi::Standard }
}

fn boxed<H: Handle>(
    library: &Library,
    [world, byte, errors_return]: [H; 3],
    funneled: c_int,
) -> Result<Box<dyn Calls>, libloading::Error>
where
    Table<H>: Calls,
{
    // SAFETY: the standard gives these functions these signatures, with the handles of this interface.
    let table = unsafe {
        Table {
            constants: Constants { world, byte, errors_return, funneled },
            init: *library.get(b"MPI_Init_thread\0")?,
            set_handler: *library.get(b"MPI_Comm_set_errhandler\0")?,
            rank: *library.get(b"MPI_Comm_rank\0")?,
            size: *library.get(b"MPI_Comm_size\0")?,
            request: RequestCalls {
                send: *library.get(b"MPI_Isend\0")?,
                synchronous_send: *library.get(b"MPI_Issend\0")?,
                receive: *library.get(b"MPI_Irecv\0")?,
                test_any: *library.get(b"MPI_Testany\0")?,
                wait: *library.get(b"MPI_Wait\0")?,
                get_count: *library.get(b"MPI_Get_count\0")?,
            },
            all_gather: *library.get(b"MPI_Allgather\0")?,
            finalize: *library.get(b"MPI_Finalize\0")?,
            abort: *library.get(b"MPI_Abort\0")?,
            error_text: *library.get(b"MPI_Error_string\0")?,
            version: *library.get(b"MPI_Get_library_version\0")?,
            requests: RefCell::default(),
            _is_of_one_thread: PhantomData,
        }
    };
    Ok(Box::new(table))
}

impl<H: Handle> Table<H> {
    /// The error for a return code.
    fn checked(&self, function: &str, code: c_int) -> Result<(), MpiFault> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the buffer is longer than any error text.
        let text = text(|to, length| unsafe { (self.error_text)(code, to, length) });
        Err(MpiFault(format!("{function}: {}", text.replace('\n', " "))))
    }

    fn started(&self, function: &str, start: impl FnOnce(*mut H) -> c_int) -> Result<(), MpiFault> {
        let mut request = MaybeUninit::uninit();
        self.checked(function, start(request.as_mut_ptr()))?;
        // SAFETY: a call that succeeds has written the handle.
        self.requests.borrow_mut().push(unsafe { request.assume_init() });
        Ok(())
    }
}

/// A text that a function writes, with its length.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut bytes: Vec<c_char> = vec![0; TEXT_BYTES + 1];
    let mut length = 0;
    if write(bytes.as_mut_ptr(), &raw mut length) != SUCCESS {
        return "an error without a text".to_owned();
    }
    // SAFETY: it is followed by at least one zero, the last byte.
    let text = unsafe { CStr::from_ptr(bytes.as_ptr()) };
    text.to_string_lossy().trim().to_owned()
}

fn count(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or_else(|_| panic!("a message of {bytes} bytes"))
}

impl<H: Handle> Calls for Table<H> {
    fn init(&self) -> Result<(), MpiFault> {
        let mut level = 0;
        // SAFETY: it may be called without the program's arguments.
        let code =
            unsafe { (self.init)(ptr::null_mut(), ptr::null_mut(), self.constants.funneled, &raw mut level) };
        self.checked("MPI_Init_thread", code)?;
        if level < self.constants.funneled {
            return Err(MpiFault(
                "MPI_Init_thread: this library supports only processes without threads".to_owned(),
            ));
        }
        // SAFETY: the handles are of this library.
        self.checked("MPI_Comm_set_errhandler", unsafe {
            (self.set_handler)(self.constants.world, self.constants.errors_return)
        })
    }

    fn rank_and_size(&self) -> Result<(c_int, c_int), MpiFault> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: both are written to.
        self.checked("MPI_Comm_rank", unsafe { (self.rank)(self.constants.world, &raw mut rank) })?;
        // SAFETY: as before.
        self.checked("MPI_Comm_size", unsafe { (self.size)(self.constants.world, &raw mut size) })?;
        Ok((rank, size))
    }

    fn version(&self) -> String {
        // SAFETY: the buffer is longer than any version text.
        let text = text(|to, length| unsafe { (self.version)(to, length) });
        let line = text.lines().next().unwrap_or_default();
        line.split(',').next().unwrap_or_default().replace(":\t", " ")
    }

    unsafe fn send(&self, from: *const u8, message: Message, is_synchronous: bool) -> Result<(), MpiFault> {
        let (name, send) = if is_synchronous {
            ("MPI_Issend", self.request.synchronous_send)
        } else {
            ("MPI_Isend", self.request.send)
        };
        let Message { bytes, peer, tag } = message;
        // SAFETY: the caller's, and the handles are of this library.
        self.started(name, |request| unsafe {
            send(from.cast(), count(bytes), self.constants.byte, peer, tag, self.constants.world, request)
        })
    }

    unsafe fn receive(&self, to: *mut u8, message: Message) -> Result<(), MpiFault> {
        let Message { bytes, peer, tag } = message;
        // SAFETY: the caller's, and the handles are of this library.
        self.started("MPI_Irecv", |request| unsafe {
            (self.request.receive)(
                to.cast(),
                count(bytes),
                self.constants.byte,
                peer,
                tag,
                self.constants.world,
                request,
            )
        })
    }

    fn test_any(&self) -> Result<Option<Complete>, MpiFault> {
        let mut requests = self.requests.borrow_mut();
        if requests.is_empty() {
            return Ok(None);
        }
        let (mut index, mut is_done, mut bytes) = (0, 0, 0);
        let mut status = Status(MaybeUninit::uninit());
        let length = count(requests.len());
        // SAFETY: the list has this length, all in it are requests of this library, and the status is large enough.
        let code = unsafe {
            let list = requests.as_mut_ptr();
            (self.request.test_any)(length, list, &raw mut index, &raw mut is_done, &raw mut status)
        };
        self.checked("MPI_Testany", code)?;
        if is_done == 0 {
            return Ok(None);
        }
        let Some(at) = usize::try_from(index).ok().filter(|at| *at < requests.len()) else {
            return Err(MpiFault(format!("MPI_Testany: request {index} of {length} is complete")));
        };
        requests.swap_remove(at);
        // SAFETY: the call before has written the status. The count of a send request is not used.
        self.checked("MPI_Get_count", unsafe {
            (self.request.get_count)(&raw const status, self.constants.byte, &raw mut bytes)
        })?;
        Ok(Some(Complete { index: at, bytes: usize::try_from(bytes).unwrap_or(0) }))
    }

    fn under_way(&self) -> usize {
        self.requests.borrow().len()
    }

    fn wait(&self, from: usize) -> Result<(), MpiFault> {
        let mut requests = self.requests.borrow_mut();
        for mut request in requests.drain(from..) {
            let mut status = Status(MaybeUninit::uninit());
            // SAFETY: the request is of this library, and the status is large enough.
            self.checked("MPI_Wait", unsafe { (self.request.wait)(&raw mut request, &raw mut status) })?;
        }
        Ok(())
    }

    fn gather_all(&self, own: &[u8], ranks: usize) -> Result<Vec<u8>, MpiFault> {
        let mut all = vec![0; own.len() * ranks];
        let (each, from, to) = (count(own.len()), own.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: as many bytes are read here, and as many of each rank written there.
        let code = unsafe {
            (self.all_gather)(
                from,
                each,
                self.constants.byte,
                to,
                each,
                self.constants.byte,
                self.constants.world,
            )
        };
        self.checked("MPI_Allgather", code)?;
        Ok(all)
    }

    fn finalize(&self) -> Result<(), MpiFault> {
        // SAFETY: nothing of this library is used after it.
        self.checked("MPI_Finalize", unsafe { (self.finalize)() })
    }

    fn abort(&self, code: c_int) {
        // SAFETY: the handle is of this library.
        let _ = unsafe { (self.abort)(self.constants.world, code) };
    }
}
