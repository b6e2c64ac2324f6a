//! The program `bramble`: see the library of this crate.

fn main() {
    let code = bramble_cli::run(std::env::args_os().collect());
    bramble_kernel::leave(code)
}
