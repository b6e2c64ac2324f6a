//! The options of `bramble bench accumulate`.

use super::{BenchForm, BenchSize, size};
use crate::accumulate::AccumulateMethod;
use bramble_cluster::args::{element_type, kernel};
use bramble_kernel::Choice;
use bramble_matrix::DType;
use clap::Args;

#[derive(Args, Debug)]
pub struct BenchAccumulateArgs {
    /// Ways to add, comma-separated: owner, mutex, atomic, atomic-each; owner is always measured
    #[arg(long, value_name = "LIST", default_value = "owner,mutex,atomic", value_delimiter = ',', value_parser = way)]
    pub(crate) way: Vec<AccumulateMethod>,
    /// Jobs added to each block, comma-separated
    #[arg(long, value_name = "LIST", default_value = "4,8,16", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Vec<u16>,
    /// Sizes of a job, comma-separated: N for a square product, or MxKxN
    #[arg(long, value_name = "LIST", default_value = "52,73,100,150,209", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<BenchSize>,
    /// Threads, comma-separated (default: one per core)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: Vec<u16>,
    /// Kernel of the products; atomic-each always uses plain loops
    #[arg(long, value_name = "K", default_value = "simd", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// Element types, comma-separated: f32, f64, i32, i64
    #[arg(long, value_name = "LIST", default_value = "f32,f64,i32,i64", value_delimiter = ',', value_parser = element_type)]
    pub(crate) dtype: Vec<DType>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

fn way(text: &str) -> Result<AccumulateMethod, String> {
    let known = AccumulateMethod::ALL.into_iter().find(|way| way.name() == text);
    known.ok_or_else(|| format!("use {}", AccumulateMethod::ALL.map(AccumulateMethod::name).join(", ")))
}
