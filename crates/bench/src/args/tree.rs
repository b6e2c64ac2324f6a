//! The options of `bramble bench tree`.

use super::BenchForm;
use bramble_cluster::args::{LinkKind, element_type, kernel};
use bramble_kernel::Choice;
use bramble_matrix::DType;
use clap::Args;

/// Default links: all that the system supports.
const LINKS: &str = if cfg!(target_os = "linux") { "pipe,shm" } else { "tcp" };

#[derive(Args, Debug)]
pub struct BenchTreeArgs {
    /// Edges of the square products, comma-separated
    #[arg(long, value_name = "LIST", default_value = "2048", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) size: Vec<u32>,
    /// Levels of Strassen–Winograd's method, comma-separated; 0 is the plain product
    #[arg(long, value_name = "LIST", default_value = "0,1,2,3", value_delimiter = ',',
          value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(crate) levels: Vec<u8>,
    /// Links to the workers, comma-separated: pipe, shm, tcp
    #[arg(long, value_name = "LIST", default_value = LINKS, value_delimiter = ',', value_parser = between_processes)]
    pub(crate) link: Vec<LinkKind>,
    /// Numbers of worker processes, comma-separated (default: one per core)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) local: Vec<u16>,
    /// Threads of each worker (default: the cores, divided equally)
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Element type: f32, f64, i32, i64
    #[arg(long, value_name = "TYPE", default_value = "f64", value_parser = element_type)]
    pub(crate) dtype: DType,
    /// Kernel of the workers (default: the fastest available)
    #[arg(long, value_name = "K", value_parser = kernel)]
    pub(crate) kernel: Option<Choice>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

fn between_processes(text: &str) -> Result<LinkKind, String> {
    let known = [LinkKind::Tcp, LinkKind::Pipe, LinkKind::Shm].into_iter().find(|link| link.name() == text);
    known.ok_or_else(|| "use pipe, shm or tcp, the links between local processes".to_owned())
}
