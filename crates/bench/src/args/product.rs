//! The options of `bramble bench product`.

use super::BenchForm;
use bramble_cluster::args::{LinkKind, element_type, kernel};
use bramble_kernel::Choice;
use bramble_matrix::DType;
use clap::Args;

/// Default links: all that the system supports.
const LINKS: &str = if cfg!(target_os = "linux") { "thread,tcp,pipe,shm" } else { "thread,tcp" };

#[derive(Args, Debug)]
pub struct BenchProductArgs {
    /// Edges of the square products, comma-separated
    #[arg(long, value_name = "LIST", default_value = "100,200,400,800,1600,3200", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) size: Vec<u32>,
    /// Links to the workers, comma-separated; thread is this process without workers
    #[arg(
        long,
        value_name = "LIST",
        default_value = LINKS,
        value_delimiter = ',',
          value_parser = within_a_machine)]
    pub(crate) link: Vec<LinkKind>,
    /// Worker processes over each link
    #[arg(long, value_name = "P", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) local: u16,
    /// Threads of this process, or of each worker, to compare with one thread (default: one per core)
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Element type: f32, f64, i32, i64
    #[arg(long, value_name = "TYPE", default_value = "f64", value_parser = element_type)]
    pub(crate) dtype: DType,
    /// Kernel (default: the fastest available)
    #[arg(long, value_name = "K", value_parser = kernel)]
    pub(crate) kernel: Option<Choice>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

fn within_a_machine(text: &str) -> Result<LinkKind, String> {
    let known = [LinkKind::Thread, LinkKind::Tcp, LinkKind::Pipe, LinkKind::Shm];
    let named = known.into_iter().find(|link| link.name() == text);
    named.ok_or_else(|| {
        "use thread, tcp, pipe or shm; workers over MPI have to be started by mpirun".to_owned()
    })
}
