//! Finds, opens and checks the BLAS libraries.
//!
//! Place in the flow: `open` calls it once per process for each library, and keeps the result.
//!
//! Invariant: an accepted library has 32-bit integers, may be called from many threads at once, was set to one
//! thread per call, and has multiplied small matrices correctly.
//!
//! Deliberately absent: a search of the file system. The names below, and an override, go to the system's loader.
#![allow(unsafe_code)] // Opening a library runs its code.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use bramble_matrix::{Element, View, ViewMut};
use libloading::Library;

use super::{Blas, multiply};
use crate::{KernelError, KernelName, Product, reference};

/// The properties of a library before it is opened.
struct Known {
    name: KernelName,
    /// Names for the loader; the first that opens is used.
    files: &'static [&'static str],
    /// The environment variable that names the file instead.
    variable: &'static str,
    how: &'static str,
    /// Refuses unusable builds, and sets one thread.
    prepare: fn(&Library) -> Result<(), String>,
}

const OPENBLAS: Known = Known {
    name: KernelName::OpenBlas,
    files: if cfg!(target_os = "macos") {
        &[
            "libopenblas.0.dylib",
            "libopenblas.dylib",
            "/opt/homebrew/opt/openblas/lib/libopenblas.dylib",
            "/usr/local/opt/openblas/lib/libopenblas.dylib",
        ]
    } else if cfg!(windows) {
        &["libopenblas.dll", "openblas.dll"]
    } else {
        &["libopenblas.so.0", "libopenblas.so"]
    },
    variable: "BRAMBLE_OPENBLAS",
    how: "install it with 'sudo apt install libopenblas0-pthread' (Debian, Ubuntu, Raspberry Pi OS), 'sudo \
          dnf install openblas-threads' (Fedora) or 'brew install openblas' (macOS), or name the file in \
          BRAMBLE_OPENBLAS",
    prepare: prepare_openblas,
};

const BLIS: Known = Known {
    name: KernelName::Blis,
    files: if cfg!(target_os = "macos") {
        &["libblis.4.dylib", "libblis.dylib", "/opt/homebrew/opt/blis/lib/libblis.dylib"]
    } else if cfg!(windows) {
        &["libblis.dll", "blis.dll"]
    } else {
        &["libblis.so.4", "libblis.so.3", "libblis.so"]
    },
    variable: "BRAMBLE_BLIS",
    how: "install it with 'sudo apt install libblis4-pthread' (Debian, Ubuntu, Raspberry Pi OS), 'sudo dnf \
          install blis-threads' (Fedora) or 'brew install blis' (macOS), or name the file in BRAMBLE_BLIS",
    prepare: prepare_blis,
};

/// Whether this process belongs to another program, whose libraries must stay as they are.
static IS_GUEST: AtomicBool = AtomicBool::new(false);

/// From now on this process opens no BLAS library: another program owns it, NumPy may use the same library, and Bramble would set
/// it to one thread. `auto` is then `simd`.
pub fn keep_libraries_out() {
    IS_GUEST.store(true, Relaxed);
}

/// The opened library of that name; opened and checked by the first call, then kept.
pub(crate) fn open(name: KernelName) -> Result<Arc<Blas>, KernelError> {
    static OPENED: [OnceLock<Result<Arc<Blas>, KernelError>>; 2] = [OnceLock::new(), OnceLock::new()];
    if IS_GUEST.load(Relaxed) {
        let how = "this process shares its libraries with another program, a Python interpreter; use simd"
            .to_owned();
        return Err(KernelError::Missing { name, how });
    }
    let (slot, known) = match name {
        KernelName::OpenBlas => (&OPENED[0], OPENBLAS),
        KernelName::Blis => (&OPENED[1], BLIS),
        KernelName::Reference | KernelName::Simd => unreachable!("{name} is no library"),
    };
    slot.get_or_init(|| load(&known, std::env::var_os(known.variable)).map(Arc::new)).clone()
}

/// Opens the file named by the user, or the first of the known names that the loader finds.
fn load(known: &Known, named: Option<OsString>) -> Result<Blas, KernelError> {
    if let Some(file) = named {
        // SAFETY: the user vouches for the file; the initialisers of a BLAS have no preconditions.
        return match unsafe { Library::new(&file) } {
            Ok(library) => accept(known, library, Path::new(&file)),
            Err(error) => {
                Err(unfit(known, Path::new(&file), format!("{error} ({} names it)", known.variable)))
            }
        };
    }
    let mut refused = None;
    for file in known.files {
        // SAFETY: these names belong to BLAS libraries, whose initialisers have no preconditions.
        if let Ok(library) = unsafe { Library::new(*file) } {
            match accept(known, library, Path::new(file)) {
                Ok(blas) => return Ok(blas),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    Err(refused.unwrap_or_else(|| KernelError::Missing { name: known.name, how: known.how.to_owned() }))
}

fn unfit(known: &Known, path: &Path, why: String) -> KernelError {
    KernelError::Unfit { name: known.name, path: path.display().to_string(), why }
}

/// Takes the two functions from an opened library, and tests them.
fn accept(known: &Known, library: Library, path: &Path) -> Result<Blas, KernelError> {
    (known.prepare)(&library).map_err(|why| unfit(known, path, why))?;
    let missing = |e: libloading::Error| unfit(known, path, format!("{e}; {}", known.how));
    // SAFETY: these names have had this signature since CBLAS exists, with the 32-bit integers that `prepare` has
    // checked.
    let blas = unsafe {
        Blas {
            name: known.name,
            single: *library.get(b"cblas_sgemm\0").map_err(missing)?,
            double: *library.get(b"cblas_dgemm\0").map_err(missing)?,
        }
    };
    // The functions are used until the process ends, so the library must never be closed.
    std::mem::forget(library);
    let right = trial(|p| multiply(blas.single, p)) && trial(|p| multiply(blas.double, p));
    right.then_some(blas).ok_or_else(|| unfit(known, path, "it multiplies small matrices wrongly".to_owned()))
}

/// Multiplies 5×7 by 7×3 small integers in all four layouts, and compares exactly.
fn trial<T: Element>(multiply: impl Fn(Product<'_, T>)) -> bool {
    let fill =
        |len: usize, by: i64| (0..len as i64).map(|i| T::from_i64(i * by % 11 - 5)).collect::<Vec<T>>();
    let (a, b) = (fill(35, 7), fill(21, 5));
    let views_a = [View::row_major(&a, 5, 7), View::row_major(&a, 7, 5).transposed()];
    let views_b = [View::row_major(&b, 7, 3), View::row_major(&b, 3, 7).transposed()];
    views_a.iter().all(|&a| {
        views_b.iter().all(|&b| {
            let (mut got, mut want) = (fill(15, 3), fill(15, 3));
            let product = |c| Product::new(T::from_i64(2), a, b, T::from_i64(-1), c);
            multiply(product(ViewMut::row_major(&mut got, 5, 3)));
            reference::multiply(product(ViewMut::row_major(&mut want, 5, 3)));
            got == want
        })
    })
}

/// Calls a function of the library, if it exists.
fn ask<R>(library: &Library, symbol: &[u8]) -> Option<R> {
    // SAFETY: callers name functions without arguments that return R.
    unsafe { library.get::<unsafe extern "C" fn() -> R>(symbol).ok().map(|function| function()) }
}

fn prepare_openblas(library: &Library) -> Result<(), String> {
    if let Some(config) = ask::<*const c_char>(library, b"openblas_get_config\0").filter(|c| !c.is_null()) {
        // SAFETY: the function returns a string that lives as long as the library.
        let config = unsafe { CStr::from_ptr(config) }.to_string_lossy();
        if config.contains("USE64BITINT") {
            return Err("it is built with 64-bit integers; install a build with 32-bit ones".to_owned());
        }
    }
    // Old builds without threads share one buffer among all callers.
    if ask::<c_int>(library, b"openblas_get_parallel\0") == Some(0) {
        return Err("it is built without threads, so several threads may not call it at once; \
                    install 'libopenblas0-pthread' or its like"
            .to_owned());
    }
    // SAFETY: the function takes the number of threads as an int.
    unsafe {
        let set = library.get::<unsafe extern "C" fn(c_int)>(b"openblas_set_num_threads\0");
        set.map_err(|error| error.to_string())?(1);
    }
    Ok(())
}

fn prepare_blis(library: &Library) -> Result<(), String> {
    // BLIS counts in its own integers (gint_t), whose width is configurable; by default that of a pointer.
    if ask::<isize>(library, b"bli_info_get_blas_int_type_size\0").is_some_and(|bits| bits as u32 == 64) {
        return Err(
            "its BLAS interface is built with 64-bit integers; install a build with 32-bit ones".to_owned()
        );
    }
    // SAFETY: the function takes the number of threads as a dim_t, at most as wide as a pointer, in a register.
    unsafe {
        let set = library.get::<unsafe extern "C" fn(isize)>(b"bli_thread_set_num_threads\0");
        set.map_err(|error| error.to_string())?(1);
    }
    Ok(())
}

/// Tells BLAS libraries that are loaded later not to start threads, through the environment
/// (`OPENBLAS_NUM_THREADS`, `BLIS_NUM_THREADS`, and `OMP_NUM_THREADS` if the user has not set it).
///
/// Call it first in `main`. Does nothing, and returns false, if the process already has other threads (they may be
/// reading the environment) or if that cannot be determined (not Linux). That costs little: the libraries are told
/// again when they are opened, but OpenBLAS has then started and stopped its threads once.
pub fn quiet_blas_threads() -> bool {
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if alone {
        // SAFETY: this is the only thread of the process, so nothing reads the environment meanwhile.
        unsafe {
            std::env::set_var("OPENBLAS_NUM_THREADS", "1");
            std::env::set_var("BLIS_NUM_THREADS", "1");
            if std::env::var_os("OMP_NUM_THREADS").is_none() {
                std::env::set_var("OMP_NUM_THREADS", "1");
            }
        }
    }
    alone
}

/// Lets a write past the limit of the size of a file (`ulimit -f`) fail with an error, which is told, instead of ending the
/// process with SIGXFSZ. Programs that this one starts inherit it.
pub fn survive_file_size_limit() {
    /// The same number on Linux and macOS.
    const SIGXFSZ: c_int = 25;
    /// `SIG_IGN`.
    const IGNORED: usize = 1;
    unsafe extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }
    // SAFETY: no function is installed; the signal is ignored from now on.
    unsafe { signal(SIGXFSZ, IGNORED) };
}

/// Ends the process at once with that exit code, as the last call in `main`. A compute thread may still be inside a
/// BLAS library whose destructors would free its memory: with OpenBLAS, an interrupted run ended with a
/// segmentation fault instead of its exit code. Flush output before.
pub fn leave(code: u8) -> ! {
    unsafe extern "C" {
        fn _exit(code: c_int) -> !;
    }
    // SAFETY: it ends the process without running any of its code.
    unsafe { _exit(c_int::from(code)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_how_to_install_it() {
        let known = Known { files: &["libno-such-blas.so.9"], ..OPENBLAS };
        let error = load(&known, None).unwrap_err();
        assert!(matches!(error, KernelError::Missing { .. }));
        let text = error.to_string();
        assert!(
            text.contains("apt install libopenblas0-pthread") && text.contains("BRAMBLE_OPENBLAS"),
            "{text}"
        );
    }

    #[test]
    fn a_named_file_that_is_no_library_is_named_in_the_error() {
        let error = load(&BLIS, Some("/no/such/libblis.so".into())).unwrap_err();
        assert!(matches!(&error, KernelError::Unfit { path, .. } if path == "/no/such/libblis.so"));
        assert!(error.to_string().contains("BRAMBLE_BLIS names it"), "{error}");
    }

    #[test]
    fn the_trial_accepts_right_products_and_no_others() {
        assert!(trial::<f64>(reference::multiply));
        assert!(!trial::<f64>(|_| ()));
    }
}
